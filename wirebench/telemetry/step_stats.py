"""What a step took, and what many steps took: plain numbers, no torch, so that reading a record starts fast."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

PHASES = ("data", "forward", "backward", "compress", "exchange_exposed", "update")
"""The phases of a step. `compress` runs beside `backward`, so the phases may add up to more than the step;
`exchange_exposed` is the part of the exchange that the backward pass did not hide."""


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


def summary(steps: Sequence[StepTimes], world_size: int) -> dict[str, Any]:
    """The record's `images_per_second` (of the whole world), `step_seconds` and `phases` over the counted steps.

    The mean of images per second is all images over all seconds; median, p10 and p90 are of single steps, so p10 is
    the slow end. Every value is None where no step counts.
    """
    counted = [times for times in steps if times.counted]
    images, seconds = sum(t.images for t in counted), sum(t.seconds for t in counted)
    rates = _spread([world_size * t.images / t.seconds for t in counted])
    mean_rate = world_size * images / seconds if counted else None
    phases = {name: sum(t.phases[name] for t in counted) / len(counted) if counted else None for name in PHASES}
    return {
        "images_per_second": {**rates, "mean": mean_rate, "steps": len(counted)},
        "step_seconds": _spread([t.seconds for t in counted]),
        "phases": phases,
    }


def _spread(values: list[float]) -> dict[str, float | None]:
    if not values:
        return {"median": None, "p10": None, "p90": None}
    p10, median, p90 = np.percentile(values, [10, 50, 90]).tolist()
    return {"median": median, "p10": p10, "p90": p90}
