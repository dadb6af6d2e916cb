"""Merging in one pass from the last layer to the first, as the MG-WFBP family does it.

The paper numbers layers forwards and walks from L down to 2; here position 0 is the paper's layer L.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from wirebench.gradient.schedule import Cost, LayerCost, ready_times


class Pending(NamedTuple):
    """A group that could be sent, and the layer that could join it.

    start       when its message would start: tau_c(l)
    next_ready  when the next layer's gradient is there: R(l-1)
    numel       elements of the group
    """

    start: float
    next_ready: float
    numel: int


def merge(layers: Sequence[LayerCost], cost: Cost, joins: Callable[[Pending], bool]) -> list[range]:
    """Groups in order, in one pass over the layers: the next layer joins the pending group if `joins` returns True."""
    ready, groups = ready_times(layers), []
    begin = numel = 0
    free = 0.0
    for i, layer in enumerate(layers):
        numel += layer.numel
        start = max(free, ready[i])
        if i + 1 < len(layers) and joins(Pending(start, ready[i + 1], numel)):
            continue
        groups.append(range(begin, i + 1))
        free, begin, numel = start + cost(numel), i + 1, 0
    return groups
