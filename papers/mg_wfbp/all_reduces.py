"""Seconds of all-reduces by their size, as runs measured them, and the line through them (Eq. 9: a + bM)."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wirebench.costmodel.formulas import Line
from wirebench.record.notes import NotedRun

RING = "ring"


class Times(NamedTuple):
    """Times of all-reduces of one size: the median of their seconds, and the shortest and the longest."""

    middle: float
    between: tuple[float, float]


class Measured(NamedTuple):
    """All-reduces on one network: where, a note, and their times by nodes and bytes."""

    title: str
    note: str
    by_nodes: Mapping[int, Mapping[int, Times]]


def times(runs: Mapping[int, Sequence[NotedRun]]) -> dict[int, dict[int, Times]]:
    """Times of the rings in the last step of each run, by nodes and bytes; numbers of nodes without any are left out.

    runs  by their number of nodes
    """
    found: dict[int, dict[int, Times]] = {}
    for nodes, those in runs.items():
        seconds: defaultdict[int, list[float]] = defaultdict(list)
        for run in those:
            for request in run.has("requests") or ():
                if request["kind"] == "Sum" and request["plan"] == RING and request["seconds"]:
                    seconds[request["payload_bytes"]].append(request["seconds"])
        if seconds:
            found[nodes] = {
                size: Times(statistics.median(all_of), (min(all_of), max(all_of)))
                for size, all_of in sorted(seconds.items())
            }
    return found


def fitted(seconds: Mapping[int, float]) -> Line:
    """The line with the least sum of squared relative errors, no part of it below 0; seconds by bytes, of two sizes."""
    assert len(seconds) > 1, "a line through one point is any"
    weights = {size: 1 / each**2 for size, each in seconds.items()}
    total = sum(weights.values())
    middle_size = sum(weight * size for size, weight in weights.items()) / total
    middle = sum(weight * seconds[size] for size, weight in weights.items()) / total
    across = sum(weight * (size - middle_size) ** 2 for size, weight in weights.items())
    both = sum(weight * (size - middle_size) * (seconds[size] - middle) for size, weight in weights.items())
    slope = max(both / across, 0.0)
    start_up = middle - slope * middle_size
    if start_up >= 0:
        return Line(start_up, slope)
    return Line(0.0, sum(w * s * seconds[s] for s, w in weights.items()) / sum(w * s**2 for s, w in weights.items()))
