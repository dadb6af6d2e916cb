"""A PyTorch profiler's trace (Kineto JSON) of a training loop that never heard of the suite, read layer by layer.

Autograd says what is needed. `AccumulateGrad` runs when a parameter's gradient is complete, and its input has the
parameter's shape. The backward node before it has the sequence number of the forward operation that used the parameter.
On a GPU these are the host's calls. A gradient is there when the kernels are done that its backward node launched, and
those before them on their streams. NCCL's kernels communicate, on a stream of their own or on that of the computation,
and are no part of a layer's time: a trace of one rank under DistributedDataParallel has the backward pass alone.
"""

import bisect
import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.errors import UserError
from wirebench.utils.parsing import json_of

GRADIENT = "torch::autograd::AccumulateGrad"
NODE = "autograd::engine::evaluate_function: "
MICROSECOND = 1e-6
COMMUNICATION = "nccl"
"""How the names of NCCL's kernels begin, in any version, in lower case."""


class Gradient(NamedTuple):
    """A parameter's gradient: its shape, the backward node that completed it, when it was there, and its use.

    used  when the forward operation began that used the parameter; None where the trace does not say
    """

    shape: tuple[int, ...]
    node: str
    ready: float
    used: float | None


class BackwardPass(NamedTuple):
    """One pass: microseconds on the device's clock; `forward` is where the forward pass before it began."""

    forward: float
    begin: float
    gradients: tuple[Gradient, ...]


class _Launch(NamedTuple):
    """A kernel or a copy: when the host called for it, and when it ran on the device."""

    called: float
    begin: float
    end: float


class _Node(NamedTuple):
    """A backward node as the host called it."""

    name: str
    sequence: int
    begin: float
    end: float


def load(path: Path) -> dict[str, Any]:
    """The file's content; UserError unless it is a profiler's trace."""
    try:
        content = path.read_bytes()
        table = json_of(gzip.decompress(content) if path.suffix == ".gz" else content)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError, EOFError) as error:
        raise UserError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(table, dict) or not isinstance(table.get("traceEvents"), list):
        raise UserError(f"{path}: has no traceEvents; torch.profiler's export_chrome_trace() writes them")
    for place, event in enumerate(table["traceEvents"]):
        for key in ("ts", "dur") if isinstance(event, dict) else ():
            _check_number(f"{path}: traceEvents[{place}].{key}", event.get(key, 0))
    return table


def _check_number(where: str, value: Any) -> None:
    try:
        float(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: needs a number, got {value!r}") from error


def device(table: Mapping[str, Any]) -> str:
    """The GPU that the trace names; '' where it was made on a CPU."""
    properties = table.get("deviceProperties") or [{}]
    return str(properties[0].get("name", "")) if _kernels(_events(table)) else ""


def backward_passes(path: Path, table: Mapping[str, Any]) -> list[BackwardPass]:
    """All backward passes of the trace, in order; UserError where it does not have what is needed."""
    events = _events(table)
    if not any(event["name"] == GRADIENT for event in events):
        raise UserError(f"{path}: has no backward pass; record with ProfilerActivity.CPU and a whole training step")
    clock = _Clock(_launches(events))
    uses = _forward_operations(events)
    passes: list[BackwardPass] = []
    first, nodes, gradients = 0, list[_Node](), list[tuple[Mapping[str, Any], _Node]]()
    for event in events:
        if event["name"] == GRADIENT and nodes:
            gradients.append((event, nodes[-1]))
        elif event["name"].startswith(NODE) and (node := _node(event)) is not None:
            if nodes and node.sequence > max(each.sequence for each in nodes):
                # Sequence numbers grow from one forward pass to the next, and a backward pass goes down through them.
                passes += _pass(path, clock, uses, first, nodes, gradients)
                first, nodes, gradients = max(each.sequence for each in nodes) + 1, [], []
            nodes.append(node)
    return passes + _pass(path, clock, uses, first, nodes, gradients)


class _Clock:
    """When the device had done what the host had called for; on a CPU that is the host's own time."""

    def __init__(self, launches: Sequence[_Launch]) -> None:
        self.launches = launches
        self.calls = [launch.called for launch in launches]

    def done(self, since: float, host: float) -> float:
        """The end of all that was launched from `since` up to `host`; where that is nothing, of what came last before.

        A stream runs its kernels one after the other, so that the last one's end is the stream's. Streams do not wait
        for each other: what another one is busy with says nothing of these.
        """
        after = bisect.bisect_right(self.calls, host)
        first = min(bisect.bisect_left(self.calls, since), after - 1)
        return max(launch.end for launch in self.launches[first:after]) if after else host

    def started(self, host: float) -> float:
        """The begin of what was launched next from `host` on."""
        place = bisect.bisect_left(self.calls, host)
        return self.launches[place].begin if place < len(self.launches) else host


def _pass(
    path: Path,
    clock: _Clock,
    uses: Mapping[int, float],
    first: int,
    nodes: Sequence[_Node],
    gradients: Sequence[tuple[Mapping[str, Any], _Node]],
) -> list[BackwardPass]:
    """The pass of these nodes, whose forward operations have sequence numbers from `first` on; [] without gradients."""
    if not gradients:
        return []
    told = []
    for event, node in gradients:
        used = uses.get(node.sequence)
        ready = clock.done(node.begin, event["ts"] + event.get("dur", 0.0))
        name = node.name.removesuffix("0").removesuffix("Backward")
        told.append(Gradient(_shape(path, event), name, ready, None if used is None else clock.started(used)))
    last = max(node.sequence for node in nodes)
    begins = [begin for sequence, begin in uses.items() if first <= sequence <= last]
    begin = clock.started(nodes[0].begin)
    return [BackwardPass(min(map(clock.started, begins), default=begin), begin, tuple(told))]


def _shape(path: Path, event: Mapping[str, Any]) -> tuple[int, ...]:
    dims = event.get("args", {}).get("Input Dims")
    if not dims or not isinstance(dims[0], list):
        raise UserError(f"{path}: says no shapes; record with torch.profiler.profile(..., record_shapes=True)")
    return tuple(int(size) for size in dims[0])


def _events(table: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Everything that has a begin and a duration, in order of time."""
    known = [
        event
        for event in table["traceEvents"]
        if isinstance(event, dict) and event.get("ph") == "X" and isinstance(event.get("name"), str) and "ts" in event
    ]
    return sorted(known, key=lambda event: float(event["ts"]))


def _forward_operations(events: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """When the forward operation of each sequence number began: the outermost, which comes first."""
    uses: dict[int, float] = {}
    for event in events:
        args = event.get("args", {})
        if event.get("cat") == "cpu_op" and "Sequence number" in args and args.get("Fwd thread id", 0) == 0:
            uses.setdefault(int(args["Sequence number"]), float(event["ts"]))
    return uses


def _node(event: Mapping[str, Any]) -> _Node | None:
    sequence = event.get("args", {}).get("Sequence number")
    if sequence is None:
        return None
    begin = float(event["ts"])
    return _Node(event["name"].removeprefix(NODE), int(sequence), begin, begin + float(event.get("dur", 0.0)))


def _kernels(events: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """What ran on the device and does not communicate, by correlation."""
    on_device = ("kernel", "gpu_memcpy", "gpu_memset")
    computing = (event for event in events if not event["name"].lower().startswith(COMMUNICATION))
    return {event["args"]["correlation"]: event for event in computing if event.get("cat") in on_device}


def _launches(events: Sequence[Mapping[str, Any]]) -> list[_Launch]:
    """What ran on the device, in order of the host's calls."""
    kernels = _kernels(events)
    launches = []
    for event in events:
        kernel = kernels.get(event.get("args", {}).get("correlation", -1))
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and kernel is not None:
            begin = float(kernel["ts"])
            end = begin + float(kernel.get("dur", 0.0))
            launches.append(_Launch(float(event["ts"]), begin, end))
    return sorted(launches)
