"""The steps before those that count: in some of them every message waits until the backward pass is done.

So computation is timed without messages beside it, and messages without computation. A scheduler that weighs times
gets them here and cuts the model anew. A simulation then puts both together again, and the run's record says what it
predicted beside what was measured.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from wirebench.backward_profile import LayerTimer, Profile, median
from wirebench.comm.engine import Engine
from wirebench.comm.peers import gather_bytes
from wirebench.files import keeping
from wirebench.piecewise import Piecewise, Points
from wirebench.schedule import LayerCost, Mode, Partitioner
from wirebench.simulate_step import Duration, Passes, simulate_step
from wirebench.steps import StepTimes

SETTLE, LEARN, TRY = 2, 4, 3
"""Steps that nothing is learned from; from which a scheduler learns; and, at least, of the cut that then stands."""
MOST_TRIES = 10
"""Of that cut, where the warm-up has room for more: messages scatter."""
DISTURBED = 1.5
"""Times the tries' median total: what took longer was held up by more than a late message."""


class Holding(Protocol):
    """A driver that can hold messages back and tell how long they took."""

    holding: bool

    def take_durations(self) -> list[Duration]:
        """Of every bucket's exchange in the last step that was held back."""
        ...


@dataclass
class Rehearsal:
    """What is tried before the counted steps of one process.

    driver   of the exchanges; None where the engine synchronises: its messages are timed by `costs` instead
    layers   names and elements of the model's layers, in backward order
    groups   how they are cut now; cut(groups) cuts them anew
    costs    measures what an exchange costs, on all ranks together
    learns   the scheduler has still to learn its cut
    identity what a cut that was learned belongs to: scheduler, world
    save     writes what was found out into the run's folder, on rank 0: what a cut was made of, where it was learned
    """

    engine: Engine
    scheduler: Partitioner
    driver: Holding | None
    timer: LayerTimer
    layers: Sequence[LayerCost]
    groups: Sequence[range]
    cut: Callable[[Sequence[range]], None]
    costs: Callable[[], Points]
    warmup_steps: int
    accumulation: int
    learns: bool
    identity: dict[str, Any]
    save: Callable[[Path, Profile, Points], None]
    profile: Profile | None = None
    points: Points = field(default_factory=list)
    learned: bool = False
    _tries: range = field(default_factory=lambda: range(0))
    _lessons: range = field(default_factory=lambda: range(0))
    _seen: list[list[Duration]] = field(default_factory=list)
    _durations: list[Duration] = field(default_factory=list)

    def plan(self, first_step: int) -> None:
        """The run begins, or goes on, with this step."""
        begin, end = first_step + SETTLE, first_step + self.warmup_steps
        if self.learns:
            self._lessons = range(begin, begin + LEARN)
            begin += LEARN
            end = max(end, begin + TRY)
        if self.learns or self.warmup_steps > TRY:
            self._tries = range(end - min(MOST_TRIES, max(TRY, end - begin)), end)
        self.counted_from = max(first_step + self.warmup_steps, self._tries.stop)

    counted_from: int = 0
    """The first step that counts."""

    def state_dict(self) -> dict[str, Any]:
        """A cut that was learned, and whose it is; empty where there is none."""
        bounds = [[group.start, group.stop] for group in self.groups]
        return {**self.identity, "bounds": bounds} if self.learned else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the cut of the run that is resumed, where it is of this scheduler and world; before `plan`."""
        if not self.learns or not state or {**self.identity, "bounds": state["bounds"]} != state:
            return
        self.learns, self.learned = False, True
        self.groups = [range(start, stop) for start, stop in state["bounds"]]
        self.cut(self.groups)

    def begin_step(self, step: int) -> None:
        """Before the first forward pass of a step."""
        held = step in self._lessons or step in self._tries
        if self.driver is not None:
            self.driver.holding = held
        if held:
            self.timer.arm()

    def end_step(self, step: int) -> bool:
        """After the exchange of a step; whether `conclude` is due, with nothing else under way."""
        if step not in self._lessons and step not in self._tries:
            return False
        self.timer.keep()
        last = step in (self._tries.stop - 1, self._lessons.stop - 1)
        if last:
            self.timer.disarm()
        if self.driver is not None:
            durations = self.driver.take_durations()
            if step in self._tries:
                self._seen.append(durations)
        return last

    def conclude(self, directory: Path) -> str:
        """All ranks agree on what they saw; a scheduler that learns cuts anew. Returns what there is to say."""
        known = self.learned
        said = self._conclude()
        if self.engine.is_first and not known:
            assert self.profile is not None
            with keeping(directory):
                self.save(directory, self.profile, self.points)
        return said

    def _conclude(self) -> str:
        mine = median(self.timer.take())
        texts = gather_bytes(self.engine.communicators[0], json.dumps(mine).encode())
        self.profile = median([Profile(*json.loads(text)) for text in texts])
        if not self.learns:
            self._durations = self._of_all() if self.driver is not None else self._native_durations()
            return ""
        self.learns, self.learned = False, True
        self.points = self.costs()
        ready = self.profile.ready
        seconds = [now - before for before, now in zip((0.0, *ready), ready, strict=False)]
        layers = [each._replace(backward_seconds=s) for each, s in zip(self.layers, seconds, strict=True)]
        self.groups = self.scheduler.partition(layers, Piecewise(self.points))
        self.cut(self.groups)
        return f"cut into {len(self.groups)} messages by times measured in this run"

    def prediction(self, steps: Sequence[StepTimes]) -> dict[str, Any] | None:
        """The simulated step beside the measured ones; None where nothing was tried or nothing counted.

        steps  all of this run so far, rank 0's
        """
        counted = [times.seconds for times in steps if times.counted]
        tried = [times for times in steps if times.step in self._tries]
        if not counted or not tried or not self._durations or self.profile is None:
            return None
        simulated = simulate_step(self._passes(self.profile, tried), self.groups, self.mode, self._durations)
        measured = float(np.median(counted))
        return {
            "step_seconds": simulated.seconds,
            "measured_seconds": measured,
            "error": simulated.seconds / measured - 1,
            "exposed_seconds": simulated.exposed,
            "messages": len(self.groups),
        }

    @property
    def mode(self) -> Mode:
        """When messages go."""
        return self.scheduler.mode

    def _passes(self, profile: Profile, tried: Sequence[StepTimes]) -> Passes:
        """Computation as it is without messages beside it."""
        base = float(np.median([t.seconds - t.phases["exchange_exposed"] for t in tried]))
        backward = profile.ready[-1]
        if self.driver is not None and self.accumulation == 1:
            backward = max(backward, float(np.median([t.phases["backward"] for t in tried])))
        elif self.driver is None:
            # The engine's messages go beside this backward pass, and DDP waits for them at its end.
            base += backward - float(np.median([t.phases["backward"] for t in tried]))
        return Passes(profile.forward, profile.ready, backward, base - sum(profile.forward) - backward)

    def _of_all(self) -> list[Duration]:
        """Of each bucket, the mean of all ranks' typical times."""
        texts = gather_bytes(self.engine.communicators[0], json.dumps(typical(self._seen)).encode())
        return [Duration(*each) for each in np.mean([json.loads(text) for text in texts], axis=0).tolist()]

    def _native_durations(self) -> list[Duration]:
        """The engine's own buckets, as its rule cuts them, by what its all-reduce costs at their sizes."""
        self.points = self.points or self.costs()
        cost = Piecewise(self.points)
        return [Duration(cost(sum(self.layers[i].numel for i in group))) for group in self.groups]


def typical(tries: Sequence[Sequence[Duration]]) -> list[list[float]]:
    """The tries' mean by bucket, scaled so that all together take what the tries' totals have as median.

    Messages are late now and then. Of three hundred some are in every try, and a sum of medians would leave that out. A
    try that took much longer than the others was disturbed by something else, and is left out.
    """
    seen = np.asarray(tries)
    totals = seen.sum(axis=(1, 2))
    usual = float(np.median(totals))
    mean = seen[totals <= DISTURBED * usual].mean(axis=0)
    scaled: list[list[float]] = (mean * (usual / mean.sum() if mean.sum() else 1.0)).tolist()
    return scaled
