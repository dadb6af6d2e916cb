"""The time of every step and of its named phases, read without stopping the work that is timed.

On a CPU times are perf_counter's, known at once. On a GPU they lie between CUDA events on the stream that does the
work; nothing waits for them, so a step is known only once the device has passed its last event.
"""

import threading
import time
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from wirebench.telemetry.step_stats import PHASES, StepTimes
from wirebench.telemetry.timeline import Timeline
from wirebench.telemetry.timers import timer_for


class _Phase(NamedTuple):
    track: str
    name: str
    label: str
    within: str
    begin: Any
    end: Any
    drawn: bool


@dataclass
class _OpenStep:
    """A step whose times are not known yet: its marks (points in time of the device) and phases.

    begin_at  perf_counter seconds at its begin, if it is the first after a pause
    """

    begin: Any
    begin_at: float | None = None
    phases: list[_Phase] = field(default_factory=list)
    end: Any = None
    step: int = 0
    images: int = 0
    counted: bool = False


class _PhaseBlock:
    """The block of a phase. A class, since a generator takes thrice as long, and a step has a dozen of them."""

    __slots__ = ("begin", "clock", "words")

    def __init__(self, clock: "Clock", track: str, name: str, label: str, within: str) -> None:
        self.clock, self.words = clock, (track, name, label, within)

    def __enter__(self) -> None:
        self.begin = self.clock.mark()

    def __exit__(self, kind: type[BaseException] | None, error: object, at: object) -> None:
        if kind is None:
            self.clock.add(*self.words, self.begin)


class Clock:
    """Times steps and their phases; it starts paused.

    A step reaches from the `end_step` before, or from `resume`, to its own `end_step`. Phases that end while the
    clock is paused (evaluation, checkpoints) belong to no step and are dropped.
    """

    def __init__(self, device: torch.device, timeline: Timeline) -> None:
        self._timer = timer_for(device)
        self._timeline = timeline
        self._lock = threading.Lock()
        self._open: _OpenStep | None = None
        self._closed: deque[_OpenStep] = deque()
        self._now_at = 0.0

    def resume(self) -> None:
        """Begin a step now; waits for the device first, so that work of the pause does not count."""
        assert self._open is None, "resume() without pause()"
        self._timer.synchronize()
        with self._lock:
            self._open = _OpenStep(self._timer.mark(), begin_at=time.perf_counter())

    def pause(self) -> None:
        """Drop what came since the last `end_step`; nothing counts until `resume`."""
        with self._lock:
            self._open = None

    def phase(
        self, name: str, track: str = "compute", *, label: str = "", within: str = ""
    ) -> AbstractContextManager[None]:
        """Add the block's time to phase `name` of the current step, and draw it on `track` of the timeline.

        label   what it is drawn as, if not as `name`
        within  the phase that is open around this one, if there is one: it lasts so much less

        Any thread may use it. On a GPU the time is the device's, on the calling thread's current stream: waiting for
        the host counts only where the device had nothing else to do.
        """
        assert name in PHASES, name
        assert not within or within in PHASES, within
        return _PhaseBlock(self, track, name, label or name, within)

    def mark(self) -> Any:
        """A point in time of the device, for `add`."""
        return self._timer.mark()

    def add(self, track: str, name: str, label: str, within: str, begin: Any) -> None:
        """A phase that began at the mark `begin` ends now."""
        phase = _Phase(track, name, label, within, begin, self._timer.mark(), self._timeline.active)
        with self._lock:
            if self._open is not None:
                self._open.phases.append(phase)

    def end_step(self, step: int, images: int, counted: bool) -> None:
        """Close the current step, which had `images` images on this worker, and begin the next."""
        mark = self._timer.mark()
        with self._lock:
            closed, self._open = self._open, _OpenStep(mark)
        assert closed is not None, "resume() the clock before the first step"
        closed.end, closed.step, closed.images, closed.counted = mark, step, images, counted
        self._closed.append(closed)

    def completed(self) -> list[StepTimes]:
        """The steps whose times became known since the last call, in order; never waits."""
        known = []
        while self._closed and self._reached(self._closed[0]):
            known.append(self._resolve(self._closed.popleft()))
        return known

    def drain(self) -> list[StepTimes]:
        """Wait for the device; returns the remaining closed steps."""
        self._timer.synchronize()
        return self.completed()

    def _reached(self, step: _OpenStep) -> bool:
        # The step's end first: it is nearly always the last of the marks to be reached.
        return self._timer.reached(step.end) and all(self._timer.reached(phase.end) for phase in step.phases)

    def _resolve(self, step: _OpenStep) -> StepTimes:
        """Seconds of a step that the device has finished; draws its phases at their place on the host's time axis."""
        begin_at = self._now_at if step.begin_at is None else step.begin_at
        phases = dict.fromkeys(PHASES, 0.0)
        for phase in step.phases:
            seconds = self._timer.seconds(phase.begin, phase.end)
            phases[phase.name] += seconds
            if phase.within:
                phases[phase.within] -= seconds
            if phase.drawn:
                start = begin_at + self._timer.seconds(step.begin, phase.begin)
                self._timeline.draw(phase.track, phase.label, start, start + seconds, step=step.step)
        seconds = self._timer.seconds(step.begin, step.end)
        self._now_at = begin_at + seconds
        return StepTimes(step.step, seconds, phases, step.images, step.counted)
