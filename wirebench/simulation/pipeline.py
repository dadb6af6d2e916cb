"""One simulated training step: its computation, the messages of a schedule, and how much of these is not hidden.

Messages go one after the other, in bucket order, as the communication thread sends them. How long each takes is given:
measured (profiling/calibration.py), or priced by the cost model (simulator.py).
"""

from collections.abc import Sequence
from typing import NamedTuple

from wirebench.gradient.schedule import Duration, Mode, OuterRule


class Passes(NamedTuple):
    """Computation of a step, in seconds; layers in backward order.

    forward   of each layer's part of the forward pass
    ready     from the start of the backward pass until each layer's gradient is there
    backward  of the whole backward pass, at least as long as the last of `ready`
    other     of everything else in a step: loading of data, update, bookkeeping
    """

    forward: tuple[float, ...]
    ready: tuple[float, ...]
    backward: float
    other: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of a step that exchanges nothing."""
        return sum(self.forward) + self.backward + self.other

    def times(self, factor: float) -> "Passes":
        """The step of a worker whose computing takes `factor` times as long."""
        if factor == 1:
            return self
        forward, ready = (tuple(factor * seconds for seconds in each) for each in (self.forward, self.ready))
        return Passes(forward, ready, factor * self.backward, factor * self.other)


class Span(NamedTuple):
    """A bucket's exchange, in seconds from the step's start.

    half   "all" of it; under a `split` schedule "reduce" or "copy": the plan's reduce-scatter or its all-gather
    ready  when it could have started, had nothing else been on the wire
    """

    bucket: int
    half: str
    ready: float
    start: float
    end: float


class Step(NamedTuple):
    """One simulated step, in seconds.

    seconds   of the whole step
    exposed   what the exchange adds to the step's computation, and handling gradients, on cores that all hosts share
    backward  from the step's start until its backward pass begins; waits during the forward pass are in it
    spans     in the order in which they start; all-gathers of a `split` schedule end after the step, under the next one
    """

    seconds: float
    exposed: float
    backward: float
    spans: tuple[Span, ...]


def simulate_step(passes: Passes, groups: Sequence[range], mode: Mode, durations: Sequence[Duration]) -> Step:
    """Simulate a step of a schedule.

    groups     the buckets: ranges of layers, in backward order
    mode       when messages go; `native` counts as `overlapped`, since the engines' synchronisers overlap as ours do
    durations  of each bucket's exchange, in the order of `groups`
    """
    assert len(groups) == len(durations), f"{len(groups)} buckets, {len(durations)} durations"
    if mode == "split":
        return _split(passes, groups, durations)
    forward = sum(passes.forward)
    free, spans = 0.0, []
    for number, (group, duration) in enumerate(zip(groups, durations, strict=True)):
        # A bucket's last layer in backward order completes it. Elastic averaging sends weights, which are there at
        # the start of the step.
        ready = forward + (passes.backward if mode == "after_backward" else passes.ready[group.stop - 1])
        start = 0.0 if mode == "elastic" else max(free, ready)
        free = start + duration.seconds
        spans.append(Span(number, "all", 0.0 if mode == "elastic" else ready, start, free))
    exposed = max(0.0, free - forward - passes.backward)
    return Step(passes.seconds + exposed, exposed, forward, tuple(spans))


def outer_step(passes: Passes, rule: OuterRule, durations: Sequence[Duration]) -> Step:
    """The mean of a period's steps in which each fragment is exchanged once, `durations` long.

    An exchange adds what the `delay` steps beside which it runs do not hide. It is drawn whole, after its step's
    backward pass.
    """
    forward = sum(passes.forward)
    free = ready = forward + passes.backward
    spans = []
    for number, duration in enumerate(durations):
        spans.append(Span(number, "all", ready, free, free + duration.seconds))
        free += duration.seconds
    hidden = rule.delay * passes.seconds
    exposed = sum(max(0.0, duration.seconds - hidden) for duration in durations) / rule.every
    return Step(passes.seconds + exposed, exposed, forward, tuple(spans))


def _split(passes: Passes, groups: Sequence[range], durations: Sequence[Duration]) -> Step:
    """A step of which the reduce-scatters go in the backward pass, the all-gathers under the next forward pass.

    Two steps are simulated, and the second is returned: its forward pass waits for the all-gathers of the first. All
    later steps are like it: a forward pass waits for every all-gather, so the network is idle when it ends.
    """
    needed = [(number, passes.forward[layer]) for number, group in enumerate(groups) for layer in group][::-1]
    gathered, free, begin = [0.0] * len(groups), 0.0, 0.0  # free: when the network has sent all so far
    spans: list[Span] = []
    for _ in range(2):
        spans, now = [], begin
        # The forward pass: a layer waits for the all-gather of its bucket.
        for number, seconds in needed:
            if gathered[number] > now:
                now = gathered[number]
            now += seconds
        # The backward pass begins now; each bucket's reduce-scatter starts when its gradients and the wire are there.
        for number, (group, duration) in enumerate(zip(groups, durations, strict=True)):
            ready = now + passes.ready[group.stop - 1]
            start = max(free, ready)
            free = start + duration.seconds
            spans.append(Span(number, "reduce", ready - begin, start - begin, free - begin))
        # The driver waits for all reduce-scatters. Then all-gathers go in the order in which the forward pass needs
        # them: the first layers' bucket, which is the last in backward order, first.
        end = max(now + passes.backward, free)
        for number in reversed(range(len(groups))):
            start = max(free, end)
            free = gathered[number] = start + durations[number].copy_seconds
            spans.append(Span(number, "copy", end - begin, start - begin, free - begin))
        period, backward, begin = end + passes.other - begin, now - begin, end + passes.other
    return Step(period, max(0.0, period - passes.seconds), backward, tuple(spans))
