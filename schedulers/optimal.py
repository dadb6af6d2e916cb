"""The merging that ends first, by dynamic programming; nothing is assumed of the cost function.

The only state is when the network becomes free, and earlier is never worse. With F(j) the end of the messages of the
first j layers in backward order, R(j) the ready time of the j-th and P(j) the number of elements of the first j:

    F(j) = min over i < j of  max(F(i), R(j)) + cost(P(j) - P(i))
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from wirebench.costmodel.piecewise import Piecewise, lines
from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient.schedule import Cost, LayerCost, ready_times

AT_ONCE, KEPT = 32, 16
"""AT_ONCE: layers whose messages are priced in one call; a call per layer is slow, one for all needs large arrays.
KEPT: blocks of AT_ONCE layers whose lines are cached, since the same layers are priced at many costs."""
FEW = 10
"""Messages that are compared one by one; more are faster compared at once."""


class Optimal(Scheduler):
    """Never later than any other cut into messages that go one after the other."""

    needs_profile = True

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """The groups, in O(L^2); of those that end equally early, the fewest messages."""
        ready, sizes = ready_times(layers), (0, *accumulate(layer.numel for layer in layers))
        ends, messages, sent, tried = [0.0], [0], np.zeros(len(sizes)), np.empty(len(sizes))
        begins: list[int] = []
        # Lines never fall, so ends never do either, and a message that waits for its gradient alone is as short as it
        # can be where it begins last.
        ordered = isinstance(cost, Piecewise)
        for j, (now, costs) in enumerate(zip(ready, _costs(cost, sizes), strict=True)):
            first = bisect_right(ends, now) - 1 if ordered else 0
            those = slice(first, j + 1)
            if j - first < FEW:
                few = [max(end, now) + more for end, more in zip(ends[those], costs[those].tolist(), strict=True)]
                least = min(few)
                same = [i for i, end in enumerate(few, first) if end == least]
            else:
                many = tried[: j + 1 - first]
                np.add(sent[those] if ordered else np.maximum(sent[those], now), costs[those], out=many)
                many[0] = max(ends[first], now) + costs[first]
                begin = int(many.argmin())
                least, later = many.item(begin), many[begin + 1 :]
                same = [first + begin]
                if later.size and later[later.argmin()] == least:
                    same = [first + i for i in (many == least).nonzero()[0].tolist()]
            while first > 0 and same[0] == first and now + float(costs[first - 1]) == least:
                first -= 1
                same.insert(0, first)
            # Of equally early ones the fewest messages, and of those the latest begin.
            begin = same[0] if len(same) == 1 else min(same, key=lambda i: (messages[i], -i))
            ends.append(least)
            sent[j + 1] = least
            messages.append(messages[begin] + 1)
            begins.append(begin)
        return _walk_back(begins)


def _costs(cost: Cost | Piecewise, sizes: tuple[int, ...]) -> Iterator[NDArray[np.float64]]:
    """For every layer the costs of the messages that end with it, by the layer that they begin with; any beyond that.

    sizes  elements before each layer, and of all
    Lines are asked for many sizes at once: a cut of 160 layers needs 13,000.
    """
    count = len(sizes) - 1
    if not isinstance(cost, Piecewise):
        yield from (np.array([cost(sizes[j] - size) for size in sizes[:j]]) for j in range(1, count + 1))
        return
    for first in range(1, count + 1, AT_ONCE):
        yield from cost.on_lines(*_block(sizes, cost.sizes, first))


@lru_cache(maxsize=KEPT)
def _block(
    sizes: tuple[int, ...], begins: tuple[float, ...], first: int
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """The lines of the messages that end with AT_ONCE layers from `first` on, by the layer that they begin with.

    begins  elements at which the cost's lines begin
    """
    before, last = np.array(sizes), min(first + AT_ONCE, len(sizes)) - 1
    return lines(begins, np.maximum(before[first : last + 1, None] - before[None, :last], 0))


def _walk_back(begins: Sequence[int]) -> list[range]:
    """All groups, from the begin of the last group of every prefix of the layers."""
    groups, stop = [], len(begins)
    while stop:
        groups.append(range(begins[stop - 1], stop))
        stop = begins[stop - 1]
    return groups[::-1]
