"""Numbers of a campaign's trials: percentiles, the undisturbed job's rate, what a fault costs, goodput."""

import math
import statistics
from collections.abc import Sequence

from wirebench.chaos.trials_file import Line
from wirebench.errors import UserError

UNDISTURBED = "none"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least this share of them do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def calm_rate(lines: Sequence[Line]) -> float:
    """Images per second of the undisturbed job: in trials without a fault, else before each fault. UserError."""
    undisturbed = [line for line in lines if line["kind"] == UNDISTURBED and not line["hang"]]
    if undisturbed:
        rate = sum(line["images"] for line in undisturbed) / sum(line["seconds"] for line in undisturbed)
    else:
        known = [rate for line in lines if (rate := line["calm_images_per_second"]) is not None]
        rate = statistics.median(known) if known else 0.0
    if rate <= 0:
        raise UserError("no trial tells how fast the undisturbed job is; make more trials, of the kind `none` too")
    return float(rate)


def goodput(lines: Sequence[Line], rate: float) -> float:
    """The time that the images trained on take at this rate, over all that passed, waits for faults included."""
    return float(sum(line["images"] for line in lines) / rate / sum(line["seconds"] for line in lines))


def cost(line: Line, rate: float) -> float:
    """Seconds of the undisturbed job's work that the fault of a trial has cost."""
    return float(line["seconds"] - line["images"] / rate)
