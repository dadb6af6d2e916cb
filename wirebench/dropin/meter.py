"""Times and bytes of the steps of a training loop of the user's own, as a record has them."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from wirebench.collectives.execution.executor import RequestLog
from wirebench.comm.engine import Engine
from wirebench.telemetry.clock import Clock
from wirebench.telemetry.nic import InterfaceCounter, find_interface
from wirebench.telemetry.step_stats import StepTimes, summary
from wirebench.telemetry.timeline import Timeline
from wirebench.telemetry.wire_stats import Traffic

TOGETHER = 50
"""Counted steps that are added up at a time: code that runs once a step runs from memory, and slowly."""
KEPT_STEPS = 10_000
"""Steps whose times a report covers, at most: the last ones."""


class Meter:
    """Times steps and counts their bytes.

    numel         elements of the gradient
    warmup_steps  first steps, which do not count
    """

    def __init__(self, engine: Engine, numel: int, warmup_steps: int) -> None:
        self.timeline = Timeline(engine.ranks[0])
        self.clock = Clock(engine.device, self.timeline)
        interface = InterfaceCounter(find_interface(engine.ranks_on_this_host == engine.size))
        self.traffic = Traffic(numel, engine.size, interface, engine.ranks_on_this_host)
        self.warmup_steps = warmup_steps
        self._steps: deque[StepTimes] = deque(maxlen=KEPT_STEPS)
        self._size = engine.size
        self._runs = False
        self._ended: list[tuple[Sequence[Sequence[RequestLog]], bool]] = []

    def run(self) -> None:
        """A step begins, at first or after a pause; while one runs nothing happens."""
        if not self._runs:
            self.traffic.resume()
            self.clock.resume()
        self._runs = True

    def pause(self) -> None:
        """Stop counting until `run`: the time in between belongs to no step."""
        if self._runs:
            self._add_up()
            self.clock.pause()
            self.traffic.pause()
        self._runs = False

    def end_step(self, step: int, logs: Sequence[Sequence[RequestLog]]) -> None:
        """The step that runs has ended, with these requests; the next one runs.

        A step that was paused does not count.
        """
        if not self._runs:
            return
        counted = step >= self.warmup_steps
        self.clock.end_step(step, 0, counted)
        self._ended.append((logs, counted))
        if not counted or len(self._ended) >= TOGETHER:
            self._add_up()

    def report(self) -> dict[str, Any]:
        """Steps, their seconds, phases, bytes, ratios, and the last one's requests; waits for the device.

        The keys are a record's (docs/record.md); values are None before a step has counted.
        """
        self._add_up()
        self._steps.extend(self.clock.drain())
        measured = summary(list(self._steps), self._size)
        steps = measured.pop("images_per_second")["steps"]
        return {"steps": steps, **measured, **self.traffic.summary()}

    def _add_up(self) -> None:
        """Count the steps that have ended since the last time."""
        for number, (logs, counted) in enumerate(self._ended, 1):
            self.traffic.step(logs, counted, reads=number == len(self._ended))
        self._ended.clear()
        self._steps.extend(self.clock.completed())
