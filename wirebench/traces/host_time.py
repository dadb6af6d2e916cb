"""The host's time in a profiler's file, in phases: the loop's ranges and autograd's operators and nodes divide it.

A step is the profiler's, else it lasts up to an update. Where gradients accumulate, it lasts up to the update in any
case.
"""

import bisect
import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from wirebench.errors import UserError
from wirebench.traces.profiler_file import Event, Recording
from wirebench.utils.spans import Span, union

STEP, UPDATE, ZERO, LOADER = "ProfilerStep#", "Optimizer.step#", "Optimizer.zero_grad#", "enumerate(DataLoader)#"
DDP = "DistributedDataParallel.forward"
FSDP, ROOTS = ("FSDP::", "FullyShardedDataParallel."), ("FSDP::root_pre_forward", "FullyShardedDataParallel.forward")
"""Begins of ranges' names, as PyTorch 2.4 to 2.15 write them; of FSDP in both forms."""


class HostPhases:
    """The host's time in phases: spans by label, in order.

    before   between an update and the next forward pass, without the data loader; waits: for Horovod
    wrapped  whether a wrapper's ranges say when a forward pass begins
    partial  whether the recording began within the first step
    """

    def __init__(self, path: Path, recording: Recording) -> None:
        self.notes = [each for each in recording.notes if each.category == "user_annotation"]
        steps = self._named(STEP)
        self.updates = _outermost(self._named(UPDATE))
        if not steps and not self.updates:
            raise UserError(
                f"{path}: has no steps, neither the profiler's nor an optimizer's; call the profiler's step() after "
                "each step, or record with wirebench.watch"
            )
        self.numbered = bool(steps)
        self.thread = (steps or self.updates)[0].thread
        self.waits = self._waits()
        self.loads = bool(self._named(LOADER))
        nodes = [each for each in recording.operators if each.node is each]
        self.threads = {self.thread, *(each.thread for each in nodes)}
        self.partial = False
        self.spans = self._phases(recording, nodes)
        begin = min((each.begin for each in recording.operators), default=self.updates[0].begin if not steps else 0.0)
        bounds = [begin, *(each.end for each in self.updates)]
        self.steps = (
            [(int(_digits(each.name)), each.begin, each.end) for each in steps]
            if steps
            else [(number, *pair) for number, pair in enumerate(pairwise(bounds))]
        )

    def join(self, sums: Iterable[float]) -> None:
        """Make one step of those up to an update; sums: microseconds at which gradients began to be summed.

        A loop that accumulates gradients may call the profiler's step() after each backward pass. One that sums without
        an update is a step of its own: a loss scaler leaves an update out.
        """
        ends = sorted([*(each.begin for each in self.updates), *(at for at in sums if self.label(at) == "backward")])
        joined, parts, begins = list[tuple[int, float, float]](), list[int](), list[float]()
        for number, begin, end in self.steps if self.updates else ():
            begins.append(begin)
            if _within(ends, begin, end) or not self.passes(begin, end):
                joined.append((number, begins[0], end))
                parts.append(len(begins))
                begins = []
        self.steps = joined or self.steps
        self.partial = bool(parts) and parts[0] < max(parts)

    def passes(self, begin: float, end: float) -> list[float]:
        """When the backward passes between two moments began."""
        return _within([span[0] for span in self.spans["backward"]], begin, end)

    def label(self, at: float) -> str:
        """The phase of a moment; "" outside of all."""
        for name, spans in self.spans.items():
            place = bisect.bisect_right(spans, (at, math.inf)) - 1
            if place >= 0 and spans[place][1] > at:
                return name
        return ""

    def _named(self, begin: str) -> list[Event]:
        return [each for each in self.notes if each.name.startswith(begin)]

    def _waits(self) -> list[Span]:
        """From the begin of an optimizer's range to the begin of the same thread's range in it."""
        waits, inner = [], [each for each in self._named(UPDATE) if each not in self.updates]
        for outer in self.updates:
            within = [each.begin for each in inner if outer.begin <= each.begin and each.end <= outer.end]
            if within:
                waits.append((outer.begin, within[0]))
        return waits

    def _phases(self, recording: Recording, nodes: Sequence[Event]) -> dict[str, list[Span]]:
        marks = [(each.begin, each.end, "backward") for each in nodes]
        marks += [(each.begin, each.end, "data") for each in self._named(LOADER)]
        marks += [(each.begin, each.end, "update") for each in self.updates]
        known = union([mark[:2] for mark in marks] + [(each.begin, each.end) for each in self._named(ZERO)])
        forwards = [each for name in (DDP, *ROOTS) for each in self._named(name)]
        self.wrapped = bool(forwards)
        marks += [(each.begin, each.end, "forward") for each in forwards]
        # Where a wrapper says when the forward pass begins, no operator before it is one of the pass.
        goes_on = "continued" if forwards else "forward"
        roots = [each for each in recording.operators if each.root is each and each.node is None]
        begins = [span[0] for span in known]
        for each in roots:
            place = bisect.bisect_right(begins, each.begin) - 1
            if each.thread == self.thread and not (place >= 0 and known[place][1] > each.begin):
                marks.append((each.begin, each.end, goes_on))
        return _segments(sorted(marks))


def _within(moments: Sequence[float], begin: float, end: float) -> list[float]:
    """The moments from `begin` on and before `end`; they are in order."""
    return list(moments[bisect.bisect_left(moments, begin) : bisect.bisect_left(moments, end)])


def _segments(marks: Sequence[tuple[float, float, str]]) -> dict[str, list[Span]]:
    """Spans by label: marks of one label make one span; a forward pass lasts until the next one's begin, if backward.

    `before` is what passes between an update, or the loader, and the forward pass.
    """
    spans: dict[str, list[Span]] = {name: [] for name in ("data", "forward", "backward", "update", "before")}
    label, begin, end = "", 0.0, -math.inf
    for at, until, name in marks:
        if name == "continued":
            if label != "forward":
                continue
            name = "forward"
        if name == label and name in ("forward", "backward"):
            end = max(end, until)
            continue
        if label:
            spans[label].append((begin, max(end, at) if label == "forward" and name == "backward" else end))
        if name == "forward" and label in ("update", "data") and at > end:
            spans["before"].append((end, at))
        label, begin, end = name, max(at, end), max(until, end)
    if label:
        spans[label].append((begin, end))
    return {name: union(each) for name, each in spans.items()}


def _outermost(events: Sequence[Event]) -> list[Event]:
    """Events, in order, that no other one of the same thread contains."""
    kept: list[Event] = []
    for each in events:
        if not any(outer.thread == each.thread and outer.end >= each.end for outer in kept[-1:]):
            kept.append(each)
    return kept


def _digits(name: str) -> str:
    return re.sub(r"\D", "", name) or "0"
