"""What `test_synchronise.py` runs on each of four ranks: FSDP2's reduce-scatter in few bits."""

import os
import socket
import struct
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

import wirebench
from tests.dropin import pods as job
from tests.dropin.cases import run, says
from tests.dropin.pods import apart, gradients, loss_of, sgd, sharded, train, whole
from wirebench import collectives, compressors
from wirebench.compressors.bits.narrow import Form, added, quantised
from wirebench.costmodel.request_cost import Pricer
from wirebench.simulation.sharded import GLOO
from wirebench.simulation.sharded import sharded as planned
from wirebench.simulation.trace import Trace, TraceLayer
from wirebench.topology.tree import Link, Topology

FORMS: tuple[Form, ...] = ("int4", "int8", "fp8")


def few_bits(form: Form = "int8") -> Any:
    return compressors.build("quantised_sum", form=form, chunk=16, feedback=False)


def all_ranks() -> Any:
    return init_device_mesh("cpu", (4,), mesh_dim_names=("shard",))["shard"]


def a_share_is_the_fp32_sum_of_what_arrives() -> None:
    """By hand: quantise each rank's part of this share, add them up in rank order."""
    for form in FORMS:
        model = sharded(mesh=all_ranks())
        sums = wirebench.compress_shards(model, few_bits(form))
        for numel in (7, 16, 100):
            inputs = torch.randn(4 * numel, generator=torch.Generator().manual_seed(job.RANK + numel))
            every = [torch.empty_like(inputs) for _ in range(4)]
            dist.all_gather(every, inputs)
            padded = -(-numel // 16) * 16
            mine = [each.view(4, numel)[job.RANK].clone() for each in every]
            expected = added([quantised(each, 16, form, padded) for each in mine], 16, form)[:numel]
            for op, divisor in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, 4)):
                for dtype in (torch.float32, torch.bfloat16):
                    output = torch.empty(numel, dtype=dtype)
                    sums(output_tensor=output, input_tensor=inputs.clone(), group=dist.group.WORLD, op=op)
                    assert torch.equal(output, (expected / divisor).to(dtype)), (form, numel, op)
        sums.close()


def gradients_come_near_those_of_full_precision() -> None:
    """Also with a divide factor, forced sums, a bf16 sum, on a 2-D mesh, and beside compressed replicas."""
    bf16: Any = {"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)}
    kinds: tuple[tuple[Any, dict[str, Any], float | None, bool], ...] = (
        (all_ranks(), {}, None, False),
        (all_ranks(), {}, 2.0, True),
        (all_ranks(), bf16, None, False),
        (job.MESH, {}, None, False),
    )
    for mesh, options, factor, forced in kinds:
        found = []
        for narrow in (False, True):
            model = sharded(mesh=mesh, **options)
            for module in [each for each in model.modules() if isinstance(each, FSDPModule)]:
                module.set_force_sum_reduction_for_comms(forced)
                if factor is not None:
                    module.set_gradient_divide_factor(factor)
            sums = wirebench.compress_shards(model, few_bits()) if narrow else None
            loss_of(model, 0).backward()
            found.append(torch.cat([each.flatten() for each in gradients(model).values()]))
            if sums:
                report = sums.report()
                assert report["calls"] == 5 and report["wire_bytes"] > 0
                sums.close()
        assert 0 < float((found[0] - found[1]).norm() / found[0].norm()) < 0.02, (mesh, options, factor)


def a_model_learns_as_in_full_precision() -> None:
    """With compressed replicas, too: bytes fall on both levels."""
    ends = []
    for narrow in (False, True):
        model = sharded()
        replicas = wirebench.compress_replicas(model, compressors.build("none"), job.MESH["replicate"])
        sums = wirebench.compress_shards(model, few_bits()) if narrow else None
        train(model, sgd, 10)
        ends.append(whole(model))
        if sums:
            report = sums.report()
            assert report["wire_bytes"] < 0.45 * report["dense_bytes"], report  # int8, a scale for each 16, padding
            sums.close()
            before = replicas.steps
            loss_of(model, 0).backward()  # by FSDP's own reduce-scatter again
            assert sums.report() == report and replicas.steps == before + 1
        replicas.close()
    assert 0 < apart(*ends) < 0.02, apart(*ends)


def what_is_not_finite_reaches_its_share() -> None:
    model = sharded(mesh=all_ranks())
    sums = wirebench.compress_shards(model, few_bits())
    for bad in (torch.inf, torch.nan):
        inputs, output = torch.ones(4 * 20), torch.empty(20)
        if job.RANK == 2:
            inputs[25] = bad
        sums(output_tensor=output, input_tensor=inputs, group=dist.group.WORLD, op=dist.ReduceOp.SUM)
        assert bool(output.isfinite().all()) == (job.RANK != 1)
    sums.close()


class Stack(nn.Module):
    """Blocks of 66 kB, and a head of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(128, 128) for _ in range(3))
        self.head = nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x).relu()
        return self.head(x)


def arrived_bytes() -> int:
    """What the TCP connections of this process have received so far, by the kernel's own count."""
    total = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                continue
            copy = os.dup(int(number))
        except OSError:  # the listing's own
            continue
        with socket.socket(fileno=copy) as each:
            if each.family in (socket.AF_INET, socket.AF_INET6) and each.type == socket.SOCK_STREAM:
                info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
                total += struct.unpack_from("Q", info, 128)[0]  # tcpi_bytes_received
    return total


def fsdp_sends_on_gloo_what_the_planner_says() -> None:
    """4 N (S - 1)/S elements, of what is in no list 3 N: its reduce-scatter is an all-reduce.

    If this fails, that of torch has changed: look at GLOO in wirebench/simulation/sharded.py.
    """
    whole_model = Stack()
    layers = tuple(
        TraceLayer(name, each.numel(), 1e-3, 1e-3, tuple(each.shape)) for name, each in whole_model.named_parameters()
    )
    trace = Trace("stack", "stack", "a CPU", 4, False, "of a test", torch.__version__, layers)
    pricer = Pricer(collectives.build("ring"), Topology.flat(2, Link(0.0, 1e9)))
    expected = planned(trace, 2, pricer, GLOO).within_bytes
    for module in (*whole_model.blocks, whole_model):
        fully_shard(module, mesh=job.MESH["shard"])
    for step in range(2):  # in the first one connections are made
        dist.barrier()
        before = arrived_bytes()
        whole_model(torch.ones(4, 128)).sum().backward()
        found = arrived_bytes() - before
        assert step == 0 or abs(found / expected - 1) < 0.03, (found, expected)


def wrong_uses_are_one_line() -> None:
    wrap = wirebench.compress_shards
    says("a residual of the whole gradient", lambda: wrap(sharded(), compressors.build("quantised_sum")))
    grouped = compressors.build("quantised_sum", feedback=False, group=2)
    says("build it with group=0", lambda: wrap(sharded(), grouped))
    wrapped = compressors.build("quantised_sum", feedback=False, dense_below=8)
    says("without dense_below", lambda: wrap(sharded(), wrapped))
    for name, route in (("topk", "compress_replicas"), ("lion_sign", "synchronise")):
        says(f"wirebench.{route} takes it, between replicas", lambda: wrap(sharded(), compressors.build(name)))  # noqa: B023
    says("no module of it is sharded", lambda: wrap(job.Net(), few_bits()))
    random = compressors.build("quantised_sum", feedback=False, rounding="stochastic")
    says("build it with rounding=nearest", lambda: wrap(sharded(), random))
    mixed = job.Net()
    fully_shard(mixed.blocks[0], mesh=all_ranks())
    says("are sharded over different ranks", lambda: wrap(fully_shard(mixed, mesh=job.MESH["shard"]), few_bits()))
    model = sharded()
    differ = compressors.build("quantised_sum", feedback=False, form=FORMS[job.RANK % 2])
    says("compressor.form is 'int4' on rank", lambda: wrap(model, differ))
    sums = wrap(model, few_bits())
    says("has one already", lambda: wrap(model, few_bits()))
    op = dist._make_nccl_premul_sum(0.5)
    ones: Tensor = torch.ones(2)
    says("set_force_sum_reduction_for_comms(True)", lambda: sums(ones[:1], ones, dist.group.WORLD, op))
    sums.close()
    sums.close()


if __name__ == "__main__":
    run(job.start())
