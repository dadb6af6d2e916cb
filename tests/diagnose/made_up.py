"""Profiler files of two ranks with GPUs, as torch 2.4 and torch 2.15 write them, made up: microseconds on each line.

A step has a kernel of the forward pass, one of the backward pass, one of NCCL and one of the update.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.cli.verbs import run

NODE = "autograd::engine::evaluate_function: AddmmBackward0"
KERNELS = {
    "2.4": "ncclDevKernel_{}_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
    "2.15": "ncclDevKernel_{}_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}
BASES = {"2.4": 1_700_000_000_000_000_000, "2.15": 1_790_857_026_000_000_000}


class Plan(NamedTuple):
    """What a rank's file holds.

    late       of each step this rank begins so much later, and waits inside NCCL's kernel the other one does
    host       when the backward pass is launched
    begin, comm  of NCCL's kernel, without waiting: from the step's begin
    ahead      of this rank's clock
    length     of a step
    first      number of the first step
    """

    rank: int = 0
    form: str = "2.15"
    late: float = 0.0
    others_late: float = 0.0
    host: float = 1000.0
    begin: float = 6000.0
    comm: float = 2000.0
    ahead: float = 0.0
    length: float = 10_000.0
    first: int = 0
    steps: int = 5
    name: str = "allreduce"
    dtype: str = "Float"
    elements: int = 1_000_000
    framework: str = "DistributedDataParallel.forward"


def diagnosed(*words: object) -> dict[str, Any]:
    """What `wirebench diagnose --kineto` says of these files."""
    done = run("diagnose", "--json", "--kineto", *words)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def write(path: Path, plan: Plan) -> Path:
    """The file."""
    events = [each for number in range(plan.first, plan.first + plan.steps) for each in _step(plan, number)]
    about = {
        "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
        "distributedInfo": {"backend": "nccl", "rank": plan.rank, "world_size": 2, "pg_count": 1},
        "baseTimeNanoseconds": BASES[plan.form], "traceEvents": events,
    }  # fmt: skip
    if plan.form == "2.15":
        about["host_name"] = f"node{plan.rank}"
    text = json.dumps(about).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def _step(plan: Plan, number: int) -> Iterator[dict[str, Any]]:
    begin, late, host = plan.ahead + 1e6 + number * plan.length, plan.late, plan.late + plan.host
    calls = 10 * number

    def event(category: str, name: str, at: float, took: float, tid: Any = 1, **args: Any) -> dict[str, Any]:
        named = {key.replace("_", " "): value for key, value in args.items()}
        return {"ph": "X", "cat": category, "name": name, "pid": 0 if category == "kernel" else 100, "tid": tid,
                "ts": begin + at, "dur": took, "args": named}  # fmt: skip

    def launched(
        call: int, at: float, tid: int, name: str, start: float, took: float, stream: int = 7, **args: Any
    ) -> Any:
        correlation = calls + call
        yield event("cuda_runtime", "cudaLaunchKernel", at, 5, tid, correlation=correlation)
        yield event("kernel", name, start, took, stream, correlation=correlation, stream=stream, **args)

    yield event("user_annotation", f"ProfilerStep#{number}", 0, plan.length)
    yield event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 50)
    yield event("user_annotation", plan.framework, late + 100, plan.host - 150)
    yield event("cpu_op", "aten::linear", late + 120, 60, Sequence_number=1, Input_Dims=[[8, 1000], [1000, 1000]])
    yield from launched(1, late + 150, 1, "gemm", late + 200, 3000)
    yield event("cpu_op", NODE, host, 100, 2, Sequence_number=1, Fwd_thread_id=1)
    back = max(late + 3200, host + 100)
    yield from launched(2, host + 50, 2, "gemm_backward", back, 5000)
    yield event("cpu_op", f"{NODE.partition(' ')[0]} torch::autograd::AccumulateGrad", host + 101, 150, 2)
    yield event("cpu_op", "torch::autograd::AccumulateGrad", host + 102, 5, 2, Input_Dims=[[1000, 1000]])
    yield from _collective(plan, event, launched, host)
    done = max(back + 5000, late + plan.begin + max(plan.others_late - late, 0) + plan.comm)
    yield event("user_annotation", "Optimizer.step#SGD.step", host + 500, 200)
    yield from launched(4, host + 600, 1, "sgd", done, 1500)


def _collective(plan: Plan, event: Any, launched: Any, host: float) -> Iterator[dict[str, Any]]:
    factor = 2 if "allgather" in plan.name else 1
    split = 2 if "reduce_scatter" in plan.name else 1
    told = {
        "Collective_name": plan.name, "dtype": plan.dtype, "In_msg_nelems": plan.elements // factor,
        "Out_msg_nelems": plan.elements // split, "Group_size": 2, "Process_Group_Name": "0",
        "Process_Group_Ranks": "[0, 1]",
    }  # fmt: skip
    kind = {"allreduce": "AllReduce_Sum", "_allgather_base": "AllGather"}.get(plan.name, "ReduceScatter_Sum")
    kernel = KERNELS[plan.form].format(kind)
    yield event("cpu_op", "record_param_comms", host + 140, 60, 2, **told)
    beside = {**told, "Seq": 1, "Is_asynchronized_op": True} if plan.form == "2.15" else {}
    took = plan.comm + max(plan.others_late - plan.late, 0.0)
    yield from launched(3, host + 150, 2, kernel, plan.late + plan.begin, took, 20, **beside)
