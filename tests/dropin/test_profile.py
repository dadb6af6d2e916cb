"""A loop's own steps, timed layer by layer: by `profile`, and by PyTorch's profiler, whose file is imported."""

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wirebench
from tests.cli.verbs import verb
from wirebench.errors import UserError
from wirebench.simulation import trace
from wirebench.simulation.trace import Trace
from wirebench.traces import kineto

imported = verb("trace", "import")
FORWARD, BACKWARD = (0.004, 0.008), (0.006, 0.012)
"""Seconds that the layers of `Net` sleep."""
NOTHING: Mapping[str, Any] = {}
GIVEN = ["--model", "a net", "--hardware", "a CPU", "--batch", "5"]


class Sleep(torch.autograd.Function):
    """x * w, in so many seconds each way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, forward: float, backward: float) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.seconds = backward
        time.sleep(forward)
        return x * w

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        time.sleep(ctx.seconds)
        return grads[0] * w, (grads[0] * x).sum(0), None, None


class Layer(nn.Module):
    def __init__(self, width: int, place: int) -> None:
        super().__init__()
        self.weight, self.place = nn.Parameter(torch.ones(width)), place

    def forward(self, x: Tensor) -> Tensor:
        return Sleep.apply(x, self.weight, FORWARD[self.place], BACKWARD[self.place])


class Net(nn.Module):
    """Two layers that sleep, and a tensor that no loss reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = Layer(3, 0), Layer(3, 1), nn.Parameter(torch.ones(7))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def steps(model: nn.Module, count: int) -> None:
    for _ in range(count):
        model(torch.randn(5, 3)).sum().backward()


def check(found: Trace, elapsed: float) -> None:
    """Each layer took what it slept, or more where something else runs, and all together no more than has passed."""
    layers = {layer.numel: layer for layer in found.layers if layer.numel == 3}
    sleepers = [layer for layer in found.layers if layer.numel == 3]
    assert len(sleepers) == 2, layers
    for layer, forward, backward in zip(sleepers, FORWARD, BACKWARD, strict=True):
        assert forward <= layer.forward_seconds and backward <= layer.backward_seconds
    assert found.forward_seconds + found.backward_seconds < elapsed


def test_profile_writes_what_the_planner_reads(tmp_path: Path) -> None:
    model, began = Net(), time.perf_counter()
    with wirebench.profile(model) as profiled:
        steps(model, 4)
        model.eval()
        model(torch.randn(2, 3))
    profiled.save(tmp_path / "mine.json")
    found = trace.load(tmp_path / "mine.json")
    check(found, time.perf_counter() - began)
    assert [(each.name, each.numel) for each in found.layers] == [
        ("unused", 7), ("first.weight", 3), ("second.weight", 3),
    ]  # fmt: skip
    assert (found.batch_size, found.estimate, found.model) == (5, False, "Net, 13 parameters")
    simulate = verb("simulate")
    assert simulate(["--trace", str(tmp_path / "mine.json"), "--network", "1gbe", "--workers", "4"]) == 0


@pytest.mark.parametrize(
    ("inputs", "given", "counted"),
    [
        (torch.zeros(4, 6, dtype=torch.int64), 0, (24, "tokens")),
        (torch.zeros(4, 6, dtype=torch.int64), 4, (4, "samples")),
        (torch.zeros(4, 6), 0, (4, "samples")),
        (torch.zeros(4, 1, 2, 3), 0, (4, "images")),
    ],
)
def test_a_batch_is_counted_in_what_the_model_takes(inputs: Tensor, given: int, counted: tuple[int, str]) -> None:
    model = (
        nn.Sequential(nn.Embedding(2, 3))
        if not inputs.is_floating_point()
        else nn.Sequential(nn.Linear(inputs.shape[-1], 2))
    )
    with wirebench.profile(model, given) as profiled:
        for _ in range(2):
            model(inputs).sum().backward()
    assert (profiled.trace.batch_size, profiled.trace.unit) == counted


def test_a_loop_that_calls_the_models_parts_is_profiled() -> None:
    model = Net()
    with wirebench.profile(model) as profiled:
        for _ in range(2):
            (model.forward(torch.randn(5, 3)) + model.second(model.first(torch.randn(5, 3)))).sum().backward()
    assert (profiled.trace.batch_size, profiled.trace.unit) == (5, "samples")
    assert profiled.trace.forward_seconds >= 2 * sum(FORWARD)


def test_too_few_passes_are_one_line() -> None:
    with pytest.raises(UserError, match="there were 1"), wirebench.profile(model := Net()):
        steps(model, 1)


@pytest.mark.parametrize("packed", [False, True])
def test_a_profilers_file_becomes_the_same_trace(packed: bool, tmp_path: Path) -> None:
    model, began = Net(), time.perf_counter()
    with wirebench.profile(model) as profiled, torch.profiler.profile(record_shapes=True) as recorded:
        steps(model, 4)
    file = tmp_path / f"kineto.json{'.gz' if packed else ''}"
    recorded.export_chrome_trace(str(file))
    assert imported([str(file), *GIVEN, "--out", str(tmp_path / "mine.json")]) == 0
    found = trace.load(tmp_path / "mine.json")
    check(found, time.perf_counter() - began)
    ours = [each for each in profiled.trace.layers if each.name != "unused"]  # no gradient, no word in the file
    assert [each.shape for each in found.layers] == [each.shape for each in ours]


@pytest.mark.slow
@pytest.mark.clock
def test_a_profilers_file_takes_as_long_as_profile(tmp_path: Path) -> None:
    """The same layers of the same steps, and totals within 3 % in the median turn.

    Layers take milliseconds each: the profiler's own 40 us a layer are in the times of `profile` alone.
    """
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * 24 * 24, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip
    images, labels = torch.randn(160, 3, 24, 24), torch.arange(160) % 10
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ratios: dict[str, list[float]] = {"forward_seconds": [], "backward_seconds": []}
    for turn in range(6):
        with wirebench.profile(model) as profiled, torch.profiler.profile(record_shapes=True) as recorded:
            for _ in range(8):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
        recorded.export_chrome_trace(str(tmp_path / "kineto.json"))
        assert imported([str(tmp_path / "kineto.json"), *GIVEN, "--out", str(tmp_path / "mine.json")]) == 0
        ours, theirs = profiled.trace, trace.load(tmp_path / "mine.json")
        assert [each.shape for each in ours.layers] == [each.shape for each in theirs.layers] and len(ours.layers) == 8
        for name, found in ratios.items() if turn else ():  # the first one warms up
            found.append(getattr(theirs, name) / getattr(ours, name))
    middle = {name: statistics.median(found) for name, found in ratios.items()}
    print(f"torch {torch.__version__}: of profile's seconds its file has {middle}")
    assert all(found == pytest.approx(1, abs=0.03) for found in middle.values()), (torch.__version__, ratios)


def launched(
    call: float, begin: float, seconds: float, number: int, name: str = "gemm", stream: int = 7
) -> list[dict[str, Any]]:
    """A kernel, and the host's call that launched it."""
    args = {"correlation": number, "stream": stream}
    return [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": call, "dur": 1.0, "args": args},
        {"ph": "X", "cat": "kernel", "name": name, "ts": begin, "dur": seconds, "args": args},
    ]


def operation(name: str, at: float, number: int | None = None, args: Mapping[str, Any] = NOTHING) -> dict[str, Any]:
    kind = {"Sequence number": number, "Fwd thread id": 1 if "evaluate" in name else 0} if number is not None else {}
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": at, "dur": 2.0, "args": {**kind, **args}}


def gradient(at: float, shape: list[int]) -> dict[str, Any]:
    return operation(kineto.GRADIENT, at, args={"Input Dims": [shape]})


def gpu_step(at: float, number: int) -> list[dict[str, Any]]:
    """Two layers on a GPU that runs 1000 us behind its host; by hand: forward 100 and 200, backward 400 and 300 us."""
    late = at + 1000
    return [
        operation("aten::linear", at, number), *launched(at + 1, late, 100, 4 * number),
        operation("aten::conv2d", at + 10, number + 1), *launched(at + 11, late + 100, 200, 4 * number + 1),
        operation(f"{kineto.NODE}ConvolutionBackward0", at + 30, number + 1),
        *launched(at + 31, late + 300, 400, 4 * number + 2),
        gradient(at + 34, [8, 3, 3, 3]),
        operation(f"{kineto.NODE}AddmmBackward0", at + 40, number),
        *launched(at + 41, late + 700, 300, 4 * number + 3),
        gradient(at + 44, [10, 4]),
    ]  # fmt: skip


def exchanged(at: float, number: int) -> list[dict[str, Any]]:
    """What DistributedDataParallel does beside `gpu_step`, in a second stream: after the first gradient an all-reduce
    that outlasts the backward pass, then the division of the sum; after the second one another all-reduce."""
    sums = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
    return [
        *launched(at + 37, at + 1700, 900, 1000 + number, sums, stream=22),
        *launched(at + 38, at + 2600, 100, 2000 + number, "elementwise", stream=22),
        *launched(at + 47, at + 2700, 900, 3000 + number, "ncclKernel_AllReduce_RING_LL_Sum_float", stream=22),
    ]


@pytest.mark.parametrize("beside", [lambda at, number: [], exchanged], ids=["one rank", "several ranks"])
def test_on_a_gpu_the_kernels_times_count_and_not_the_hosts(beside: Callable[..., list], tmp_path: Path) -> None:
    steps = ((0, 0), (5000, 2), (10000, 4))
    events = [event for at, number in steps for event in (*gpu_step(at, number), *beside(at, number))]
    table = {"deviceProperties": [{"name": "NVIDIA H100"}], "traceEvents": events}
    (tmp_path / "gpu.json").write_text(json.dumps(table))
    words = ["--model", "two", "--batch", "4", "--out", str(tmp_path / "two.json")]
    assert imported([str(tmp_path / "gpu.json"), *words]) == 0
    found = trace.load(tmp_path / "two.json")
    assert found.hardware == "NVIDIA H100"
    times = [(each.numel, each.forward_seconds, each.backward_seconds) for each in found.layers]
    assert times == [(40, 100e-6, 300e-6), (216, 200e-6, 400e-6)]
