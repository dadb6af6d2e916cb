"""Straight lines through measured points: what an exchange of any size costs, from some sizes that were tried."""

from bisect import bisect_right
from collections.abc import Sequence

Points = list[tuple[int, float]]
"""(elements, seconds) of exchanges that were measured."""


class Piecewise:
    """Seconds of a number of elements; rises with it.

    points  (elements, seconds), of different sizes, at least one; where they fall they are averaged

    Between two points it is a straight line, beyond the largest the last line goes on. Below the smallest it costs what
    the line through the two smallest says, at most what the smallest does, and at least half of that: the start-up time
    of an exchange.
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

    def __call__(self, numel: float) -> float:
        """Seconds of one exchange of `numel` elements."""
        place = bisect_right(self._sizes, numel) - 1
        size, seconds = self.points[place]
        return seconds + (numel - size) * self._slopes[place]


def _rising(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The same sizes; points that fall, which only noise can make them, share their mean (isotonic regression)."""
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
