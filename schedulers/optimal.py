"""The merging that ends first, by dynamic programming; nothing is assumed of the cost function.

The only state is when the network becomes free, and earlier is never worse. With F(j) the end of the messages of the
first j layers in backward order, R(j) the ready time of the j-th and P(j) the number of elements of the first j:

    F(j) = min over i < j of  max(F(i), R(j)) + cost(P(j) - P(i))
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from wirebench.costmodel.piecewise import Piecewise
from wirebench.gradient.schedule import Cost, LayerCost, Mode, ready_times

AT_ONCE = 32
"""Layers whose messages' costs are worked out at once: many calls for each layer are slow, and all at once are many."""


class Optimal:
    """Never later than any other cut into messages that go one after the other."""

    needs_profile: ClassVar[bool] = True
    mode: ClassVar[Mode] = "overlapped"

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """The groups, in O(L^2); of those that end equally early, the fewest messages."""
        ready, sizes = ready_times(layers), np.array([0, *accumulate(layer.numel for layer in layers)])
        ends, messages = np.zeros(len(sizes)), [0]
        begins: list[int] = []
        for j, (now, costs) in enumerate(zip(ready, _costs(cost, sizes), strict=True)):
            tried = np.maximum(ends[: j + 1], now)
            tried += costs
            begin = int(tried.argmin())
            least = tried[begin]
            if begin < j and least in tried[begin + 1 :]:
                # Of equally early ones the fewest messages, and of those the latest begin.
                begin = min(np.flatnonzero(tried == least).tolist(), key=lambda i: (messages[i], -i))
            ends[j + 1] = least
            messages.append(messages[begin] + 1)
            begins.append(begin)
        return _walk_back(begins)


def _costs(cost: Cost | Piecewise, sizes: NDArray[np.int64]) -> Iterator[NDArray[np.float64]]:
    """For every layer the costs of the messages that end with it, by the layer that they begin with.

    sizes  elements before each layer, and of all
    Lines are asked for many sizes at once: a cut of 160 layers needs 13,000.
    """
    count = len(sizes) - 1
    if not isinstance(cost, Piecewise):
        yield from (np.array([cost(size) for size in (sizes[j] - sizes[:j]).tolist()]) for j in range(1, count + 1))
        return
    for first in range(1, count + 1, AT_ONCE):
        ends = np.arange(first, min(first + AT_ONCE, count + 1))
        known = cost.of_all(np.maximum(sizes[ends, None] - sizes[None, : ends[-1]], 0))
        yield from (row[:j] for j, row in zip(ends.tolist(), known, strict=True))


def _walk_back(begins: Sequence[int]) -> list[range]:
    """All groups, from the begin of the last group of every prefix of the layers."""
    groups, stop = [], len(begins)
    while stop:
        groups.append(range(begins[stop - 1], stop))
        stop = begins[stop - 1]
    return groups[::-1]
