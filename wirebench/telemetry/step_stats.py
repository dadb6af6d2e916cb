"""What a step took, and what many steps took: plain numbers, no torch, so that reading a record starts fast."""

import random
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

PHASES = ("data", "forward", "backward", "compress", "exchange_exposed", "update")
"""The phases of a step. `compress` runs beside `backward`, so the phases may add up to more than the step;
`exchange_exposed` is the part of the exchange that the backward pass did not hide."""


MOST_STEPS = 2**17
"""Counted steps of which nothing is left out; it is the size of the sample of a longer run."""
MOST_WARM_UP = 64


class StepTimes(NamedTuple):
    """One finished step of one rank.

    step     its index, from 0
    seconds  from the end of the step before (or from the end of a pause) to its own end
    phases   seconds of every phase of PHASES
    images   images of this worker
    counted  false: warm-up, left out of every summary
    """

    step: int
    seconds: float
    phases: dict[str, float]
    images: int
    counted: bool


class StepSeries:
    """The counted steps of a run, in memory that does not grow with its length.

    Up to MOST_STEPS all are kept, 64 bytes each. Of more, a random sample of MOST_STEPS stands for all (algorithm R of
    Vitter, "Random Sampling with a Reservoir", 1985).

    count    how many there were; images, seconds: their sums over all of them
    columns  "seconds", "images" and each of PHASES: a number for each step that is kept
    warm_up  the last uncounted steps before the first that counts
    """

    def __init__(self, steps: Iterable[StepTimes] = ()) -> None:
        self.count = 0
        self.columns = {name: array("d") for name in ("seconds", "images", *PHASES)}
        self.warm_up: deque[StepTimes] = deque(maxlen=MOST_WARM_UP)
        self._images = self._seconds = 0.0
        self._draw = random.Random(0)
        for times in steps:
            self.append(times)

    def append(self, times: StepTimes) -> None:
        """Add the next step."""
        if not times.counted:
            if not self.count:
                self.warm_up.append(times)
            return
        self.count += 1
        self._images, self._seconds = self._images + times.images, self._seconds + times.seconds
        row = (times.seconds, times.images, *(times.phases[name] for name in PHASES))
        if self.count <= MOST_STEPS:
            for column, value in zip(self.columns.values(), row, strict=True):
                column.append(value)
        elif (place := self._draw.randrange(self.count)) < MOST_STEPS:
            for column, value in zip(self.columns.values(), row, strict=True):
                column[place] = value

    @property
    def images(self) -> float:
        """Images of this worker in all counted steps."""
        return sum(self.columns["images"]) if self.count <= MOST_STEPS else self._images

    @property
    def seconds(self) -> float:
        """Sum of the seconds of all counted steps."""
        return sum(self.columns["seconds"]) if self.count <= MOST_STEPS else self._seconds


def summary(steps: StepSeries | Iterable[StepTimes], world_size: int) -> dict[str, Any]:
    """The record's `images_per_second` (of the whole world), `step_seconds` and `phases` over the counted steps.

    The mean of images per second is all images over all seconds; median, p10 and p90 are of single steps, so p10 is
    the slow end. Every value is None where no step counts.
    """
    steps = steps if isinstance(steps, StepSeries) else StepSeries(steps)
    columns = steps.columns
    rates = _spread([world_size * i / s for i, s in zip(columns["images"], columns["seconds"], strict=True)])
    mean_rate = world_size * steps.images / steps.seconds if steps.count else None
    phases = {name: sum(columns[name]) / len(columns[name]) if steps.count else None for name in PHASES}
    return {
        "images_per_second": {**rates, "mean": mean_rate, "steps": steps.count},
        "step_seconds": _spread(columns["seconds"]),
        "phases": phases,
    }


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {"median": None, "p10": None, "p90": None}
    p10, median, p90 = np.percentile(values, [10, 50, 90]).tolist()
    return {"median": median, "p10": p10, "p90": p90}
