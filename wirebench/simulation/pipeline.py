"""One training step on paper: computation and the messages of a schedule, and what of them shows.

Messages go one after the other, in bucket order, as the communication thread sends them. How long each takes is given:
measured, or priced by the cost model (simulate.py).
"""

from collections.abc import Sequence
from typing import NamedTuple

from wirebench.gradient.schedule import Duration, Mode


class Passes(NamedTuple):
    """Computation of a step, in seconds; layers in backward order.

    forward   of each layer
    ready     from the start of the backward pass until each layer's gradient is there
    backward  of the whole backward pass
    other     everything else of a step: loading of data, update, bookkeeping
    """

    forward: tuple[float, ...]
    ready: tuple[float, ...]
    backward: float
    other: float = 0.0

    @property
    def seconds(self) -> float:
        """Of a step that exchanges nothing."""
        return sum(self.forward) + self.backward + self.other


class Span(NamedTuple):
    """A bucket's exchange, or one of its two parts: from `start` to `end`, seconds from the step's start."""

    bucket: int
    half: str
    ready: float
    start: float
    end: float


class Step(NamedTuple):
    """One step.

    seconds   of it; exposed: what the exchange adds
    backward  when the backward pass begins, with all that the forward pass waits for behind it
    spans     in the order in which they start; all-gathers of a split schedule go beyond the step, under the next one
    """

    seconds: float
    exposed: float
    backward: float
    spans: tuple[Span, ...]


def simulate_step(passes: Passes, groups: Sequence[range], mode: Mode, durations: Sequence[Duration]) -> Step:
    """A step of the schedule that cuts the layers into `groups`, each of which takes its `durations`.

    `native` synchronisers overlap as ours do. The first forward pass begins at 0.
    """
    assert len(groups) == len(durations), f"{len(groups)} buckets, {len(durations)} durations"
    if mode == "split":
        return _split(passes, groups, durations)
    forward = sum(passes.forward)
    free, spans = 0.0, []
    for number, (group, duration) in enumerate(zip(groups, durations, strict=True)):
        ready = forward + (passes.backward if mode == "after_backward" else passes.ready[group.stop - 1])
        start = 0.0 if mode == "elastic" else max(free, ready)
        free = start + duration.seconds
        spans.append(Span(number, "all", 0.0 if mode == "elastic" else ready, start, free))
    exposed = max(0.0, free - forward - passes.backward)
    return Step(passes.seconds + exposed, exposed, forward, tuple(spans))


def _split(passes: Passes, groups: Sequence[range], durations: Sequence[Duration]) -> Step:
    """All-gathers go under the next forward pass, the first layers' first.

    The second step counts, which begins as every one after it: a forward pass ends after all all-gathers.
    """
    bucket_of = [number for number, group in enumerate(groups) for _ in group]
    copied, free, begin = [0.0] * len(groups), 0.0, 0.0
    spans: list[Span] = []
    for _ in range(2):
        spans, now = [], begin
        for layer in reversed(range(len(bucket_of))):
            now = max(now, copied[bucket_of[layer]]) + passes.forward[layer]
        for number, (group, duration) in enumerate(zip(groups, durations, strict=True)):
            ready = now + passes.ready[group.stop - 1]
            start = max(free, ready)
            free = start + duration.seconds
            spans.append(Span(number, "reduce", ready - begin, start - begin, free - begin))
        end = max(now + passes.backward, free)
        for number in reversed(range(len(groups))):
            start = max(free, end)
            free = copied[number] = start + durations[number].copy_seconds
            spans.append(Span(number, "copy", end - begin, start - begin, free - begin))
        period, backward, begin = end + passes.other - begin, now - begin, end + passes.other
    return Step(period, max(0.0, period - passes.seconds), backward, tuple(spans))
