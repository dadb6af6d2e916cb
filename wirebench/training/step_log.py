"""Join what is known of each step (times, loss, rate, bytes), and pass it on to the record and the progress line.

On a GPU times and losses become known some steps later; nothing here waits for them until the end.
"""

from collections.abc import Mapping
from typing import NamedTuple

from wirebench.record.writer import NullRecord, RunRecord
from wirebench.telemetry.clock import Clock
from wirebench.telemetry.step_stats import StepSeries, StepTimes
from wirebench.training.divergence import Guard
from wirebench.training.progress import Progress


class _Facts(NamedTuple):
    """Facts of a step that are known when it is closed."""

    epoch: int
    learning_rate: float
    wire_bytes: int
    extra: Mapping[str, float]


class StepLog:
    """The steps of one run, in order; `steps` has the times of those that are complete.

    A loss or gradient that is not finite is raised here, a fixed number of steps after its own (the guard's lag), so
    that all ranks raise it at the same step.
    """

    def __init__(
        self,
        clock: Clock,
        guard: Guard,
        record: RunRecord | NullRecord,
        progress: Progress,
        world_size: int,
    ) -> None:
        self.world_size = world_size
        self.clock, self.guard, self.record, self.progress = clock, guard, record, progress
        self.steps = StepSeries()
        self._facts: dict[int, _Facts] = {}
        self._losses: dict[int, float] = {}
        self._times: list[StepTimes] = []
        self._sent, self._seconds = 0, 0.0

    def step(self, step: int, epoch: int, learning_rate: float, wire_bytes: int, extra: Mapping[str, float]) -> None:
        """Note the step that has just been closed, and pass on the steps that are complete; raises Diverged.

        extra  further numbers of the step, by name
        """
        self._facts[step] = _Facts(epoch, learning_rate, wire_bytes, extra)
        self._losses.update(self.guard.losses(step - self.guard.lag))
        self._times += self.clock.completed()
        self._pass_on()

    def flush(self) -> None:
        """Wait for the device and pass on every step; raises Diverged."""
        self._times += self.clock.drain()
        if self._facts:
            self._losses.update(self.guard.losses(max(self._facts)))
        self._pass_on()

    def _pass_on(self) -> None:
        """Write the steps whose times and losses are both known, in order."""
        while self._times and self._times[0].step in self._losses:
            times = self._times.pop(0)
            facts, loss = self._facts.pop(times.step), self._losses.pop(times.step)
            self.steps.append(times)
            self.record.step(
                times,
                epoch=facts.epoch,
                loss=loss,
                learning_rate=facts.learning_rate,
                wire_bytes=facts.wire_bytes,
                extra=facts.extra,
            )
            rate = self.world_size * times.images / times.seconds
            # On average so far: of local steps one in many sends anything.
            self._sent, self._seconds = self._sent + facts.wire_bytes, self._seconds + times.seconds
            self.progress.step(times.step, facts.epoch, rate, loss, self._sent / self._seconds / 1e6)
