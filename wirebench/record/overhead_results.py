"""The result of two sides that take turns (`wirebench bench overhead`, `checkpoint`): one JSON object of both sides'
turns, and what follows from them.
"""

import statistics
from collections.abc import Mapping, Sequence

KIND = "wirebench overhead"
CHECKPOINT = "wirebench checkpoint"


def stalls(seconds: Sequence[float], every: int, step_seconds: float) -> dict[str, float]:
    """Stalls for checkpoints as shares of the time of the steps between two: mean, least and most over the turns.

    seconds  stall of each turn for its checkpoint; every: steps of a turn; step_seconds: a step without checkpoints
    """
    shares = {"stall_share": statistics.fmean(seconds), "stall_least": min(seconds), "stall_most": max(seconds)}
    return {name: value / every / step_seconds for name, value in shares.items()}


def summary(turns: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Medians of both sides' seconds a step, and the spread of the ratio of neighbouring turns.

    turns  mean seconds a step of every turn, two at least, by the side's name; the ratio is the first side's over the
           second's
    """
    ratios = [first / second for first, second in zip(*turns.values(), strict=True)]
    deciles = statistics.quantiles(ratios, n=10, method="inclusive")
    return {
        **{name: {"median": statistics.median(values)} for name, values in turns.items()},
        "ratio": {"median": statistics.median(ratios), "p10": deciles[0], "p90": deciles[-1]},
    }
