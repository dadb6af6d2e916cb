"""The result of `wirebench bench overhead`: one JSON object of both sides' turns, and what follows from them."""

import statistics
from collections.abc import Mapping, Sequence

KIND = "wirebench overhead"


def summary(turns: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Medians of both sides' seconds a step, and the spread of the ratio of neighbouring turns.

    turns  mean seconds a step of every turn, of `ours` and of `peer`; two at least
    """
    ratios = [ours / peer for ours, peer in zip(turns["ours"], turns["peer"], strict=True)]
    deciles = statistics.quantiles(ratios, n=10, method="inclusive")
    return {
        **{name: {"median": statistics.median(values)} for name, values in turns.items()},
        "ratio": {"median": statistics.median(ratios), "p10": deciles[0], "p90": deciles[-1]},
    }
