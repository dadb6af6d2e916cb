"""Calibration, in the warm-up steps before those that count: times for a scheduler to learn from, and a prediction.

First come settling steps, whose times mean nothing: memory is allocated, kernels are chosen. For a scheduler that uses
profiles there follow profiling steps, after which it cuts the model into new buckets. Validation steps, the last of the
warm-up, time these buckets.

In profiling and validation steps every message is sent after the backward pass. So computation is timed without
messages, and messages without computation. A simulation overlaps both again, and the run's record has the step time
that it predicts and the measured one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from wirebench.comm.engine import Engine
from wirebench.comm.peers import gather
from wirebench.costmodel.piecewise import Piecewise, Points
from wirebench.exchange.pipeline import Passes
from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient.schedule import Duration, LayerCost
from wirebench.profiling.layer_timer import LayerTimer, Profile, median
from wirebench.telemetry.step_stats import StepSeries, StepTimes
from wirebench.utils.files import keeping

SETTLING_STEPS, PROFILING_STEPS, VALIDATION_STEPS = 2, 4, 3
"""Settling, profiling and, at least, validation steps."""
MOST_VALIDATION_STEPS = 10
"""Validation steps where the warm-up has room for more: times of messages scatter."""
DISTURBED = 1.5
"""A validation step whose messages took this many times the median step's was held up by more than a late message."""


class Holding(Protocol):
    """A driver that can send messages after the backward pass and time them.

    holding  whether it does so in this step
    """

    holding: bool

    def take_durations(self) -> list[Duration]:
        """How long every bucket's exchange took in the last step with `holding`, by bucket."""
        ...


@dataclass
class Calibration:
    """The calibration of one process. Its buckets are called a cut of the model.

    driver   drives the exchanges; None where the engine synchronises: its messages are timed by `costs` instead
    timer    times the layers of the first model of this process
    layers   names and elements of the model's layers, in backward order
    groups   the present cut: ranges of layers; set_buckets(groups) makes another
    costs    measures what an exchange costs by its size, on all ranks together
    learns   the scheduler has still to learn its cut
    identity what a learned cut belongs to: scheduler, world
    save     writes the profile, and the costs where they were measured, into the run's folder; called on rank 0
    profile  the layers' times, median of steps and ranks; None before `conclude`
    points   (elements, seconds) of exchanges, as `costs` measured them
    learned  the cut was learned in this run or in the one that it resumes
    """

    engine: Engine
    scheduler: Scheduler
    driver: Holding | None
    timer: LayerTimer
    layers: Sequence[LayerCost]
    groups: Sequence[range]
    set_buckets: Callable[[Sequence[range]], None]
    costs: Callable[[], Points]
    warmup_steps: int
    accumulation: int
    learns: bool
    identity: dict[str, Any]
    save: Callable[[Path, Profile, Points], None]
    profile: Profile | None = None
    points: Points = field(default_factory=list)
    learned: bool = False
    _profiling: range = field(default_factory=lambda: range(0))
    _validation: range = field(default_factory=lambda: range(0))
    _validated: list[list[Duration]] = field(default_factory=list)
    _durations: list[Duration] = field(default_factory=list)

    def plan(self, first_step: int) -> None:
        """Choose the profiling and validation steps of a run that begins, or resumes, at `first_step`."""
        begin, end = first_step + SETTLING_STEPS, first_step + self.warmup_steps
        if self.learns:
            self._profiling = range(begin, begin + PROFILING_STEPS)
            begin += PROFILING_STEPS
            # A new cut is validated, even where the warm-up has no room for it.
            end = max(end, begin + VALIDATION_STEPS)
        if self.learns or self.warmup_steps > VALIDATION_STEPS:
            # The last steps of the warm-up: they are most like the steps that count.
            self._validation = range(end - min(MOST_VALIDATION_STEPS, max(VALIDATION_STEPS, end - begin)), end)
        self.counted_from = max(first_step + self.warmup_steps, self._validation.stop)

    counted_from: int = 0
    """The first step that counts."""

    def state_dict(self) -> dict[str, Any]:
        """The learned buckets and what identifies them; empty if none were learned."""
        bounds = [[group.start, group.stop] for group in self.groups]
        return {**self.identity, "bounds": bounds} if self.learned else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the buckets of the run that is resumed, if this scheduler made them in this world; before `plan`."""
        if not self.learns or not state or {**self.identity, "bounds": state["bounds"]} != state:
            return
        self.learns, self.learned = False, True
        self.groups = [range(start, stop) for start, stop in state["bounds"]]
        self.set_buckets(self.groups)

    def begin_step(self, step: int) -> None:
        """Before the first forward pass of a step: hold its messages back and time its layers, where it is timed."""
        timed = step in self._profiling or step in self._validation
        if self.driver is not None:
            self.driver.holding = timed
        if timed:
            self.timer.attach()

    def end_step(self, step: int) -> bool:
        """After the exchange of a step; whether `conclude` is due, which needs that nothing else is under way."""
        if step not in self._profiling and step not in self._validation:
            return False
        self.timer.keep()
        last = step in (self._validation.stop - 1, self._profiling.stop - 1)
        if last:
            self.timer.detach()
        if self.driver is not None:
            # Taken after profiling steps too, so that the driver does not keep them; they are of another cut.
            durations = self.driver.take_durations()
            if step in self._validation:
                self._validated.append(durations)
        return last

    def conclude(self, directory: Path) -> str:
        """Combine the ranks' times, and let a scheduler that uses profiles make new buckets; every rank calls it.

        Returns a line for the user, or "". The profile and the costs of new buckets are saved into `directory`.
        """
        known = self.learned
        line = self._conclude()
        # The validation of a cut that was learned must not replace the profile that it was made of.
        if self.engine.is_first and not known:
            assert self.profile is not None
            with keeping(directory):
                self.save(directory, self.profile, self.points)
        return line

    def _conclude(self) -> str:
        mine = median(self.timer.take())
        # Schedulers are pure rules: with the same times on every rank all ranks cut alike, which they must.
        self.profile = median([Profile(*each) for each in gather(self.engine.communicators[0], mine)])
        if not self.learns:
            self._durations = self._rank_means() if self.driver is not None else self._native_durations()
            return ""
        self.learns, self.learned = False, True
        self.points = self.costs()
        ready = self.profile.ready
        # A layer's own time is what passes between the gradient before it and its own.
        seconds = [now - before for before, now in zip((0.0, *ready), ready, strict=False)]
        layers = [each._replace(backward_seconds=s) for each, s in zip(self.layers, seconds, strict=True)]
        self.groups = self.scheduler.partition(layers, Piecewise(self.points))
        self.set_buckets(self.groups)
        return f"cut into {len(self.groups)} messages by times measured in this run"

    def prediction(self, steps: StepSeries) -> dict[str, Any] | None:
        """The simulated step and the measured ones; None without validation steps or without counted ones.

        steps  this run's steps so far, on rank 0
        """
        validated = [times for times in steps.warm_up if times.step in self._validation]
        if not steps.count or not validated or not self._durations or self.profile is None:
            return None
        passes = self._passes(self.profile, validated)
        simulated = self.scheduler.driver.simulate(self.scheduler, passes, self.groups, self._durations)
        measured = float(np.median(steps.columns["seconds"]))
        return {
            "step_seconds": simulated.seconds,
            "measured_seconds": measured,
            "error": simulated.seconds / measured - 1,
            "exposed_seconds": simulated.exposed,
            "messages": len(self.groups),
        }

    def _passes(self, profile: Profile, validated: Sequence[StepTimes]) -> Passes:
        """A step's computation without messages beside it."""
        # Messages were sent after the backward pass, so a validation step without its exchange is computation alone.
        base = float(np.median([t.seconds - t.phases["exchange_exposed"] for t in validated]))
        backward = profile.ready[-1]
        if self.driver is not None and self.accumulation == 1:
            # Layers without parameters at the model's begin come after the last gradient. With several micro-batches
            # the phase has all of their backward passes, and only the last one's matters here.
            backward = max(backward, float(np.median([t.phases["backward"] for t in validated])))
        elif self.driver is None:
            # The engine's own messages cannot be delayed: they overlap with this backward pass, and DDP waits for them
            # at its end, within the phase. So that phase is replaced by the time until the last gradient.
            base += backward - float(np.median([t.phases["backward"] for t in validated]))
        return Passes(profile.forward, profile.ready, backward, base - sum(profile.forward) - backward)

    def _rank_means(self) -> list[Duration]:
        """How long each bucket's exchange takes: the mean over ranks of their typical times."""
        means = np.mean(gather(self.engine.communicators[0], typical(self._validated)), axis=0)
        return [Duration(*each) for each in means.tolist()]

    def _native_durations(self) -> list[Duration]:
        """How long the engine's own buckets take: what its all-reduce costs at the sizes that its rule makes."""
        self.points = self.points or self.costs()
        cost = Piecewise(self.points)
        return [Duration(cost(sum(self.layers[i].numel for i in group))) for group in self.groups]


def typical(steps: Sequence[Sequence[Duration]]) -> list[list[float]]:
    """Typical seconds of each bucket's two halves, from several steps' durations by bucket; shape (buckets, 2).

    It is the mean over steps, scaled so that all buckets together take the median of the steps' totals. Messages are
    late now and then: of three hundred some are in every step, which a sum of medians by bucket would leave out. A step
    that took much longer than the others was disturbed by something else, and is left out.
    """
    durations = np.asarray(steps)
    totals = durations.sum(axis=(1, 2))
    usual = float(np.median(totals))
    mean = durations[totals <= DISTURBED * usual].mean(axis=0)
    scaled: list[list[float]] = (mean * (usual / mean.sum() if mean.sum() else 1.0)).tolist()
    return scaled
