"""A PyTorch profiler's recording of a training loop that never heard of the suite, read layer by layer.

Autograd says what is needed. `AccumulateGrad` runs when a parameter's gradient is complete, and its input has the
parameter's shape. The backward node before it belongs to the forward operator that used the parameter: an arrow of the
file leads there, or the sequence number, which both have. The forward pass is the time within such operators, and in
operators between them that autograd watches too. Waiting, data, metrics and evaluation lie outside of them. A forward
operator that runs within a backward node recomputes (checkpointing), and is part of the backward pass.

On a GPU these are the host's calls. A gradient is complete when the kernels that its backward node launched are done,
and all earlier kernels on their streams. NCCL's kernels communicate, on their own stream or on the computation's, and
are no part of a layer's time. So a trace of one rank under DistributedDataParallel contains only the backward pass.
"""

import bisect
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from wirebench.errors import UserError
from wirebench.traces.profiler_file import NODE, Event, Recording

GRADIENT = "torch::autograd::AccumulateGrad"
MICROSECOND = 1e-6
COMMUNICATION = "nccl"
"""How the names of NCCL's kernels begin, in any version, in lower case."""
WAITING = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")
"""Operators in which the host waits for a number."""
CHECKPOINT = "CheckpointFunction"
"""The function of reentrant checkpointing, of PyTorch, Megatron and DeepSpeed alike: it saves the state of generators
and of autocast in Python, and its operators are the layers'."""
DATA_FIRST = ("aten::linear", "aten::conv", "aten::batch_norm", "aten::layer_norm", "aten::group_norm")
"""How the names of operators begin whose first tensor is data, and whose parameters come after it."""


class Gradient(NamedTuple):
    """A parameter's gradient: its shape, the backward node that completed it, when it was there, and its use.

    ready  microseconds on the device's clock
    used   the place in the pass' `forward` of the operator that used the parameter; None where the file does not say
    """

    shape: tuple[int, ...]
    node: str
    ready: float
    used: int | None


class BackwardPass(NamedTuple):
    """One pass: microseconds on the device's clock.

    start      when the forward pass began
    forward    time in each outermost operator of the forward pass, in order; no time counts twice
    begin      of the backward pass
    """

    start: float
    forward: tuple[float, ...]
    begin: float
    gradients: tuple[Gradient, ...]


class _Clock:
    """When the device had done what the host had called for; on a CPU that is the host's own time."""

    def __init__(self, path: Path, recording: Recording) -> None:
        self.operators = recording.operators
        self.launches = _launches(path, recording)
        self.calls = [called for called, _ in self.launches]

    def done(self, since: float, host: float) -> float:
        """The end of all that was launched from `since` up to `host`; where that is nothing, of what came last before.

        A stream runs its kernels one after the other, so that the last one's end is the stream's. Streams do not wait
        for each other: what another one is busy with says nothing of these.
        """
        after = bisect.bisect_right(self.calls, host)
        first = min(bisect.bisect_left(self.calls, since), after - 1)
        return max(kernel.end for _, kernel in self.launches[first:after]) if after else host

    def started(self, host: float) -> float:
        """The begin of what was launched next from `host` on."""
        place = bisect.bisect_left(self.calls, host)
        return self.launches[place][1].begin if place < len(self.launches) else host

    def spans(self, event: Event) -> list[tuple[float, float]]:
        """When the device worked for an operator of the host."""
        if not self.launches:
            return self._layers(event) if event.name == CHECKPOINT else [(event.begin, event.end)]
        first, after = bisect.bisect_left(self.calls, event.begin), bisect.bisect_right(self.calls, event.end)
        return [(kernel.begin, kernel.end) for _, kernel in self.launches[first:after]]

    def _layers(self, checkpoint: Event) -> list[tuple[float, float]]:
        """When the outermost operators within a checkpoint's function ran."""
        first, after = (
            bisect.bisect_left(self.operators, at, key=attrgetter("begin")) for at in (checkpoint.begin, checkpoint.end)
        )
        spans, done = list[tuple[float, float]](), checkpoint.begin
        for event in self.operators[first:after]:
            if event.root is checkpoint and event.name != CHECKPOINT and event.begin >= done:
                spans.append((event.begin, event.end))
                done = event.end
        return spans


class _NodeRun(NamedTuple):
    """Backward nodes of one pass, and the gradients that they completed, each with its node."""

    nodes: list[Event]
    gradients: list[tuple[Event, Event]]


def backward_passes(path: Path, recording: Recording) -> list[BackwardPass]:
    """All backward passes of the recording, in order; UserError where it does not have what is needed."""
    if not any(event.name == GRADIENT for event in recording.operators):
        raise UserError(f"{path}: has no backward pass; record with ProfilerActivity.CPU and a whole training step")
    clock, links, stepped = _Clock(path, recording), _Links(recording), _stepped(recording)
    runs = [run for run in _runs(recording.operators, links) if run.gradients]
    # A pass that goes through another one's graph again has no forward pass of its own there.
    owner: dict[int, int] = {}
    for place, run in enumerate(runs):
        for node in run.nodes:
            if (root := links.use(node)) is not None:
                owner.setdefault(id(root), place)
    roots = [each for each in recording.operators if each.root is each and each.node is None]
    return [_pass(path, clock, run, _forward(roots, owner, place), links, stepped) for place, run in enumerate(runs)]


def _forward(roots: Sequence[Event], owner: Mapping[int, int], place: int) -> list[Event]:
    """The forward operators of a pass, and what autograd watched between them, such as a layer that is frozen."""
    own = [number for number, each in enumerate(roots) if owner.get(id(each)) == place]
    threads = {roots[number].thread for number in own}
    span = roots[own[0] : own[-1] + 1] if own else []
    between = (each for each in span if each.thread in threads and each.name not in WAITING)
    return [each for each in between if owner.get(id(each), place) == place]


class _Links:
    """Which forward operator a backward node belongs to: by the file's arrows, else by sequence numbers."""

    def __init__(self, recording: Recording) -> None:
        self._arrows: dict[tuple[str, str], list[float]] = {}
        self._ends = recording.arrows
        for thread, begin in sorted(recording.arrows):
            self._arrows.setdefault(thread, []).append(begin)
        self._operators: dict[int, list[Event]] = {}
        for event in recording.operators:
            if event.root is not None and event.sequence is not None and event.records:
                self._operators.setdefault(event.sequence, []).append(event)

    def recorded(self, node: Event) -> Event | None:
        """The outermost operator that recorded the node, maybe one that recomputes; None where the file has none."""
        known = [each for each in self._operators.get(node.sequence or 0, ()) if each.begin < node.begin]
        arrow = self._arrow(node)
        if arrow is not None:
            thread, at = arrow
            known = [each for each in known if each.thread == thread and each.begin <= at <= each.end] or known
        elif node.node is node:
            # Another thread's numbers begin at 0 too: a node outside of all others was not recomputed in one.
            known = [each for each in known if each.node is None] or known
        # Operators that record nothing have the number of the next one that does, and come before it.
        return known[-1].root if known else None

    def use(self, node: Event) -> Event | None:
        """The operator of the forward pass: of a node that was recomputed, the one that was checkpointed."""
        found = self.recorded(node)
        while found is not None and found.node is not None:
            outer, found = found.node, self.recorded(found.node) if found.node is not node else None
            node = outer
        return found

    def _arrow(self, node: Event) -> tuple[tuple[str, str], float] | None:
        begins = self._arrows.get(node.thread, [])
        place = bisect.bisect_left(begins, node.begin)
        inside = place < len(begins) and begins[place] <= node.end
        return self._ends[node.thread, begins[place]] if inside else None


def _runs(operators: Sequence[Event], links: _Links) -> list[_NodeRun]:
    """The backward nodes, pass by pass. Nodes within a node are of its pass.

    A pass has ended where the thread of the forward pass runs an operator outside of all nodes again, such as the one
    that makes the next pass' first gradient. Sequence numbers say it too, since a pass goes down through them.
    """
    outside: dict[tuple[str, str], list[float]] = {}
    for event in operators:
        if event.node is None and event.name != GRADIENT:
            outside.setdefault(event.thread, []).append(event.begin)
    runs: list[_NodeRun] = []
    highest: dict[tuple[tuple[str, str], object], int] = {}
    latest: dict[tuple[str, str], Event] = {}
    before = float("inf")
    for event in operators:
        if event.name == GRADIENT and (node := latest.get(event.thread)):
            runs[-1].gradients.append((event, node))
        elif event.name.startswith(NODE) and event.sequence is not None:
            if event.node is event:
                counter, use = (event.thread, str(event.args.get("Fwd thread id"))), links.recorded(event)
                others = outside.get(event.thread if use is None else use.thread, [])
                again = bisect.bisect_right(others, before) < bisect.bisect_left(others, event.begin)
                if not runs or again or event.sequence > highest.get(counter, event.sequence):
                    runs.append(_NodeRun([], []))
                    highest, latest = {}, {}
                highest[counter] = max(event.sequence, highest.get(counter, 0))
                before = event.begin
            runs[-1].nodes.append(event)
            latest[event.thread] = event
    return runs


def _pass(
    path: Path, clock: _Clock, run: _NodeRun, forward: Sequence[Event], links: _Links, stepped: set[tuple[int, ...]]
) -> BackwardPass:
    """The times of a pass on the device's clock."""
    begin = clock.started(run.nodes[0].begin)
    times, done, start = list[float](), float("-inf"), begin
    for operator in forward:
        spent = 0.0
        for first, last in sorted(clock.spans(operator)):
            start, first, last = min(start, first), max(first, done), min(last, begin)
            spent += max(0.0, last - first)
            done = max(done, last)
        times.append(spent)
    places = {id(operator): place for place, operator in enumerate(forward)}
    gradients = []
    for event, node in _of_parameters(path, run.gradients, links, stepped):
        name = node.name.removeprefix(NODE).removesuffix("0").removesuffix("Backward")
        used = places.get(id(links.use(node)))
        gradients.append(Gradient(_shape(path, event), name, clock.done(node.begin, event.end), used))
    return BackwardPass(start, tuple(times), begin, tuple(gradients))


def _of_parameters(
    path: Path, gradients: Sequence[tuple[Event, Event]], links: _Links, stepped: set[tuple[int, ...]]
) -> list[tuple[Event, Event]]:
    """The gradients of parameters, without the gradients of data, which checkpointing and some losses request.

    Data has a shape that no optimizer steps, or is the first tensor of a layer that has its parameters after it.
    """
    shapes = [_shape(path, event) for event, _ in gradients]
    if 2 * sum(shape in stepped for shape in shapes) >= len(shapes):
        gradients = [pair for pair, shape in zip(gradients, shapes, strict=True) if shape in stepped]
    kept = list(gradients)
    by_operator: dict[int, tuple[Event, list[tuple[Event, Event]]]] = {}
    for pair in gradients:
        operator = links.recorded(pair[1])
        if operator is not None and operator.name.startswith(DATA_FIRST):
            by_operator.setdefault(id(operator), (operator, []))[1].append(pair)
    for operator, pairs in by_operator.values():
        data, *parameters = operator.shapes or [()]
        alike = [pair for pair in pairs if _shape(path, pair[0]) == data]
        # The data's gradient is there before the weight's, which is transposed.
        for pair in alike[: max(0, len(alike) - parameters.count(data))]:
            kept.remove(pair)
    return kept


def _stepped(recording: Recording) -> set[tuple[int, ...]]:
    """The shapes of all tensors within optimizers' steps; none where the file has no such step."""
    steps = [note for note in recording.notes if note.name.startswith("Optimizer.step")]
    begins = [event.begin for event in recording.operators]
    found: set[tuple[int, ...]] = set()
    for step in steps:
        for event in recording.operators[bisect.bisect_left(begins, step.begin) : bisect.bisect_left(begins, step.end)]:
            found.update(event.shapes if event.thread == step.thread else ())
    return found


def _shape(path: Path, event: Event) -> tuple[int, ...]:
    if not event.shapes:
        raise UserError(f"{path}: says no shapes; record with torch.profiler.profile(..., record_shapes=True)")
    return event.shapes[0]


def _launches(path: Path, recording: Recording) -> list[tuple[float, Event]]:
    """(host's call, kernel) of what the device computed, in order of the calls; UserError for a kernel without one."""
    calls = {event.correlation: event.begin for event in recording.launches if "correlation" in event.args}
    since = min(calls.values(), default=float("-inf"))
    streams = {kernel.thread for kernel in recording.kernels if kernel.correlation in calls}
    launches, begun = [], set()
    for kernel in recording.kernels:
        called = calls.get(kernel.correlation)
        if called is not None:
            begun.add(kernel.thread)
            if not kernel.name.lower().startswith(COMMUNICATION):
                launches.append((called, kernel))
        # Only what was launched before the recording began has no call in it, and a stream runs that first.
        elif kernel.thread in begun or (kernel.thread not in streams and kernel.begin >= since):
            raise UserError(
                f"{path}: kernel {kernel.name!r} at {kernel.begin:g} us has no launch of its correlation; record with "
                "ProfilerActivity.CPU and the device's activity"
            )
    return sorted(launches, key=lambda launch: launch[0])
