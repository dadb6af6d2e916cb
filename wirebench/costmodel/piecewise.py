"""Straight lines through measured points: what an exchange of any size costs, from the costs of some sizes."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Points = list[tuple[int, float]]
"""(elements, seconds) of exchanges that were measured."""

SMALLEST, FACTOR = 256, 4
"""Sizes that are measured: about SMALLEST elements, then each time FACTOR times as many, up to the whole model."""


class Piecewise:
    """Seconds of an exchange by its number of elements; never falls as the number rises.

    points  (elements, seconds), of different sizes, at least one; neighbours whose seconds fall are averaged

    Between two points it is a straight line, and beyond the largest the last line is extended. The value at 0 elements
    is the start-up time: the line through the two smallest points gives it, limited to between half of the smallest
    point's seconds and all of them.
    """

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        assert points, "a cost needs at least one point"
        self.points = _rising(sorted(points))
        sizes = [size for size, _ in self.points]
        assert sizes == sorted(set(sizes)), f"one point for each size, got {sizes}"
        size, seconds = self.points[0]
        if size > 0:
            line = seconds - size * _slope(*self.points[:2]) if len(self.points) > 1 else seconds
            self.points.insert(0, (0, min(max(line, seconds / 2), seconds)))
        self._sizes = [float(size) for size, _ in self.points]
        pairs = zip(self.points, self.points[1:], strict=False)
        self._slopes = [_slope(one, other) for one, other in pairs] or [0.0]
        self._slopes.append(self._slopes[-1])
        self._lines = np.array([seconds for _, seconds in self.points]), np.array(self._slopes)

    def __call__(self, numel: float) -> float:
        """Seconds of one exchange of `numel` elements."""
        place = bisect_right(self._sizes, numel) - 1
        size, seconds = self.points[place]
        return seconds + (numel - size) * self._slopes[place]

    @property
    def sizes(self) -> tuple[float, ...]:
        """Elements at which lines begin, from 0 on."""
        return tuple(self._sizes)

    def on_lines(self, place: NDArray[np.intp], beyond: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds of exchanges `beyond` the begins of these lines, as `lines` of `sizes` finds them."""
        seconds, slopes = self._lines
        found: NDArray[np.float64] = seconds.take(place) + beyond * slopes.take(place)
        return found


def lines(sizes: tuple[float, ...], numels: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """For each number of elements, the line that it lies on and how far; alike for all costs of the same `sizes`."""
    place = np.searchsorted(sizes, numels, side="right") - 1
    return place, numels - np.array(sizes)[place]


def _rising(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The points with seconds that never fall: where noise makes them fall, neighbours get their mean.

    This is isotonic regression, by pooling adjacent violators.
    """
    pools: list[tuple[float, int]] = []  # mean, and how many points it stands for
    for _, seconds in points:
        mean, count = seconds, 1
        while pools and pools[-1][0] > mean:
            before, others = pools.pop()
            mean, count = (mean * count + before * others) / (count + others), count + others
        pools.append((mean, count))
    means = [mean for mean, count in pools for _ in range(count)]
    return [(size, mean) for (size, _), mean in zip(points, means, strict=True)]


def _slope(one: tuple[int, float], other: tuple[int, float]) -> float:
    return (other[1] - one[1]) / (other[0] - one[0])


@lru_cache(maxsize=64)
def spans(sizes: tuple[int, ...]) -> list[range]:
    """Runs of neighbouring layers of about SMALLEST elements, FACTOR times as many and so on; the last is all.

    sizes  elements of every layer
    """
    ends = [0, *accumulate(sizes)]
    run_of: dict[int, range] = {}
    target = SMALLEST
    while target < ends[-1]:
        tries = (range(i, _nearest(ends, i, target)) for i in range(len(sizes)))
        best = min(tries, key=lambda r: abs(math.log((ends[r.stop] - ends[r.start]) / target)))
        run_of.setdefault(ends[best.stop] - ends[best.start], best)
        target *= FACTOR
    run_of[ends[-1]] = range(len(sizes))
    return [run_of[size] for size in sorted(run_of)]


def _nearest(ends: Sequence[int], start: int, target: int) -> int:
    """The end of the run from layer `start` on whose elements come nearest to `target`; at least one layer."""
    stop = bisect_left(ends, ends[start] + target)
    stop = min(max(stop, start + 1), len(ends) - 1)
    shorter = stop - 1
    if shorter > start and ends[start] + target - ends[shorter] < ends[stop] - ends[start] - target:
        return shorter
    return stop
