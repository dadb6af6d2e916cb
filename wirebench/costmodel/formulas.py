"""The papers' cost formulas, in their symbols: they stand in for priced plans (plan_cost.py) where there are none.

- alpha: start-up time of a message, in seconds
- beta: seconds per byte on the wire, 1 / w, w being a link's bytes per second
- gamma: seconds per byte added
- n: bytes that are summed
- N: number of ranks (P in two of the papers), the argument `size`

Sources: MG-WFBP (Shi and Chu, INFOCOM 2019), Table II, and Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", IJHPCA 2005; FlexReduce (Lee et al., DAC 2020), Eq. 1 to 11, with the slips of their
printed indices put right: Eq. 3's minimum runs over 0 <= k <= l, which is what Eq. 8 to 10 give.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from wirebench.topology.tree import Branch, Topology


class Line(NamedTuple):
    """T(n) = a + b n: `a` in seconds, `b` in seconds per byte (MG-WFBP, Eq. 9)."""

    a: float
    b: float

    def seconds(self, n: float) -> float:
        """The cost of `n` bytes."""
        return self.a + self.b * n


def ring(size: int, alpha: float, beta: float, gamma: float = 0.0) -> Line:
    """Ring, any N: a = 2(N-1) alpha, b = (N-1)/N (2 beta + gamma). MG-WFBP, Table II."""
    return Line(2 * (size - 1) * alpha, (size - 1) / size * (2 * beta + gamma))


def reduce_scatter_seconds(n: float, d: int, w: float, alpha: float) -> float:
    """T_r(n, d, w) = (d-1)(alpha + n/(d w)): the reduce-scatter of n bytes among d ranks. FlexReduce, Eq. 2."""
    return (d - 1) * (alpha + n / (d * w))


def flexreduce_levels(n: float, topology: Topology, alpha: float) -> tuple[float, ...]:
    """Seconds of each level's reduce-scatter, from the lowest to the root: half of what `flexreduce_seconds` sums."""
    slowest = [0.0] * _depth(topology)
    for level, seconds in _level_costs(n, topology, alpha):
        slowest[level] = max(slowest[level], seconds)
    return tuple(slowest)


def flexreduce_seconds(n: float, topology: Topology, alpha: float) -> float:
    """FlexReduce on any tree, whose branches have the rates w_x of `topology`'s links. FlexReduce, Eq. 4 to 6.

    T_FR = 2 sum_l max_{k<=l} max_{x in V_k} T_r(n / prod_{i=k}^{l-1} d_{p_x^i}, d_{p_x^l}, w_x),
    p_x^i being x's ancestor at level i. Of `topology`'s links only the rates (for the largest messages) are read:
    `alpha` holds for every message. Raises ValueError where a link has no speed.

    The formula leaves out the messages beyond d - 1 that asymmetric trees need, and it is too small below the level in
    question where a destination holds nothing of what it is to sum.
    """
    return 2 * sum(flexreduce_levels(n, topology, alpha))


def flexreduce_ideal_saving(size: int, machines: int) -> float:
    """The share of a ring's time that FlexReduce saves at best: 1 - ((M-1)/M) / ((N-1)/N).

    For N ranks on M machines with alpha = 0 and local links that cost nothing: the ring carries (N-1)/N of the bytes
    across every machine's link, FlexReduce (M-1)/M.
    """
    assert 1 <= machines <= size and size > 1, f"no ring to compare with: {size} ranks on {machines} machines"
    return 1 - ((machines - 1) / machines) / ((size - 1) / size)


def _level_costs(n: float, topology: Topology, alpha: float) -> Iterator[tuple[int, float]]:
    """(l, T_r) for every kind of branch x and every level l from its own to the root's."""
    for lineage in topology.lineages:
        held, rate = n, _rate(lineage[0])
        for level, ancestor in enumerate(lineage, _depth(topology) - len(lineage)):
            yield level, reduce_scatter_seconds(held, ancestor.degree, rate, alpha)
            held /= ancestor.degree


def _depth(topology: Topology) -> int:
    return max(map(len, topology.lineages))


def _rate(branch: Branch) -> float:
    return branch.link(math.inf).bytes_per_second
