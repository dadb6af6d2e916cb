"""The merging that ends first, by dynamic programming; nothing is assumed of the cost function.

The only state is when the network becomes free, and earlier is never worse. With F(j) the end of the messages of the
first j layers in backward order, R(j) the ready time of the j-th and P(j) the number of elements of the first j:

    F(j) = min over i < j of  max(F(i), R(j)) + cost(P(j) - P(i))
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar

from wirebench.gradient.schedule import Cost, LayerCost, Mode, ready_times


class Optimal:
    """Never later than any other cut into messages that go one after the other."""

    needs_profile: ClassVar[bool] = True
    mode: ClassVar[Mode] = "overlapped"

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """The groups, in O(L^2); of those that end equally early, the fewest messages."""
        ready, sizes = ready_times(layers), [0, *accumulate(layer.numel for layer in layers)]
        ends: list[tuple[float, int]] = [(0.0, 0)]
        begins: list[int] = []
        for j, (now, size) in enumerate(zip(ready, sizes[1:], strict=True)):
            best, begin = (float("inf"), 0), 0
            for i in range(j, -1, -1):
                free, messages = ends[i]
                end = ((free if free > now else now) + cost(size - sizes[i]), messages + 1)
                if end < best:
                    best, begin = end, i
            ends.append(best)
            begins.append(begin)
        return _walk_back(begins)


def _walk_back(begins: Sequence[int]) -> list[range]:
    """All groups, from the begin of the last group of every prefix of the layers."""
    groups, stop = [], len(begins)
    while stop:
        groups.append(range(begins[stop - 1], stop))
        stop = begins[stop - 1]
    return groups[::-1]
