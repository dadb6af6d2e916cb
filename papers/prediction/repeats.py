"""How well a run's measured step repeats itself: where the median of another run of as many steps would lie.

A record keeps the 10th percentile, the median and the 90th percentile of its counted steps, not each step. Were the
steps drawn independently, the median of n of them would scatter by sqrt(pi / 2n) of the steps' standard deviation, and
two such medians would differ by sqrt(2) times as much. That is the least by which runs differ: what a machine does
otherwise an hour later is in no single run. The seconds of whole epochs, which a record has as well, say less: they
include what an epoch's end takes, which is a tenth of a step and more where an epoch has one step.
"""

import math
from collections.abc import Mapping
from typing import Any

STEADY = 0.03
"""A step that repeats itself to this share of its time was measured well enough to judge a prediction by."""
LEAST_STEPS = 5
"""With fewer steps percentiles depend on one or two of them."""
SURE = 1.96
"""Standard deviations within which 19 of 20 values of a normal distribution lie."""
DECILES = 2.563
"""Standard deviations from the 10th to the 90th percentile of a normal distribution."""


def repeats_to(record: Mapping[str, Any]) -> float | None:
    """Share of the median step within which 19 of 20 medians of other such runs would lie; None where none can tell."""
    steps, count = record["step_seconds"], record["images_per_second"]["steps"]
    low, middle, high = (steps[key] for key in ("p10", "median", "p90"))
    if None in (low, middle, high) or count < LEAST_STEPS or not middle:
        return None
    deviation = (high - low) / DECILES
    return float(SURE * math.sqrt(2) * math.sqrt(math.pi / (2 * count)) * deviation / middle)
