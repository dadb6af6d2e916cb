"""One simulated training step: its computation, the messages of a schedule, and how much of these is not hidden.

Messages go one after the other, in bucket order, as the communication thread sends them. How long each takes is given:
measured (profiling/calibration.py), or priced by the cost model (simulation/simulator.py). Each driver simulates its
own steps (driver.py); what most of them share is here.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from wirebench.gradient.schedule import Duration

Starts = Literal["step", "gradient", "backward"]
"""When a bucket's message may start: with its step, with its last gradient, after the backward pass."""


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


class TimedSpan(NamedTuple):
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
    spans: tuple[TimedSpan, ...]


def in_turn(passes: Passes, groups: Sequence[range], durations: Sequence[Duration], starts: Starts) -> Step:
    """A step whose messages go one after the other, each as soon as it may.

    groups     the buckets: ranges of layers, in backward order
    durations  of each bucket's exchange, in the order of `groups`
    """
    assert len(groups) == len(durations), f"{len(groups)} buckets, {len(durations)} durations"
    forward = sum(passes.forward)
    free, spans = 0.0, []
    for number, (group, duration) in enumerate(zip(groups, durations, strict=True)):
        # A bucket's last layer in backward order completes it.
        ready = {
            "step": 0.0, "gradient": forward + passes.ready[group.stop - 1], "backward": forward + passes.backward,
        }[starts]  # fmt: skip
        start = max(free, ready)
        free = start + duration.seconds
        spans.append(TimedSpan(number, "all", ready, start, free))
    exposed = max(0.0, free - forward - passes.backward)
    return Step(passes.seconds + exposed, exposed, forward, tuple(spans))
