"""BlueConnect: one reduce-scatter per level of a symmetric tree, then the all-gathers in opposite order.

Cho, Finkler and Kung, "BlueConnect: Decomposing all-reduce for deep learning on heterogeneous network hierarchy", MLSys
2019, as the FlexReduce paper (DAC 2020, section II-A and Eq. 3) describes it. Rounds: 2 times the sum of (factor - 1).
"""

import math
from dataclasses import replace
from itertools import chain

from wirebench.collectives.parts.groups import level_rounds, ring_all_gather, ring_reduce_scatter
from wirebench.collectives.plan import Plan, mirror, rounds_of
from wirebench.collectives.ring import Ring
from wirebench.collectives.rounds import ClusterShape, EqualRounds, RoundCounts, both
from wirebench.errors import UserError
from wirebench.topology.tree import Topology


class BlueConnect:
    """A rank is a number in mixed radix: its place in leaf order is i_0 + i_1 f_0 + i_2 f_0 f_1 + ...

    factors  f_0, f_1, ..., the innermost first; their product is the number of ranks. Empty: the degrees of the
             topology's levels

    In level l the ranks that differ in i_l alone form a ring and share out the range that they hold. The all-gathers go
    around in the same direction, as the ring's of all ranks does (collectives/ring.py).

    Where a topology has no common degrees and no factors are given there is nothing to factor, and the plan is the ring
    of all ranks under the name "blueconnect=ring".
    """

    def __init__(self, factors: tuple[int, ...] = ()) -> None:
        if any(factor < 1 for factor in factors):
            raise ValueError(f"factors are at least 1, got {list(factors)}")
        self.factors = tuple(factors)

    def plan(self, topology: Topology, items: int) -> Plan:
        """Plan over `items` items; UserError where the factors do not multiply to the number of ranks."""
        factors = self.factors or topology.degrees
        if factors is None:
            return replace(Ring().plan(topology, items), name="blueconnect=ring")
        if math.prod(factors) != topology.size:
            raise UserError(
                f"collective.factors: {list(factors)} multiply to {math.prod(factors)}, "
                f"but there are {topology.size} ranks"
            )
        levels = [factors[: level + 1] for level in range(len(factors))]
        scatters = [level_rounds(topology.ranks, level, items, ring_reduce_scatter) for level in levels]
        reduce = rounds_of(chain.from_iterable(scatters))
        if items < topology.size:
            # Some rings have empty parts. As in the ring of all ranks, the way back is then shorter.
            return Plan("blueconnect", reduce, mirror(reduce))
        gathers = [level_rounds(topology.ranks, level, items, ring_all_gather) for level in reversed(levels)]
        return Plan("blueconnect", reduce, rounds_of(chain.from_iterable(gathers)))

    def rounds(self, shape: ClusterShape) -> RoundCounts:
        """A ring for each of the shape's degrees, whatever the factors; every rank sends in each."""
        if not shape.even:
            return Ring().rounds(shape)
        sums, merges = by_levels(shape)
        if 1 in (shape.machines, shape.each):
            return RoundCounts(sums, Ring().rounds(shape).gathers, merges)
        between = EqualRounds(2 * (shape.machines - 1), 1, (shape.each / 2,) * len(shape.groups))
        inside = shape.each - 1
        gathers = [EqualRounds(inside, shape.each / 2), between, EqualRounds(inside, shape.machines)]
        return RoundCounts(sums, gathers, merges)


def by_levels(shape: ClusterShape) -> tuple[list[EqualRounds], list[EqualRounds]]:
    """The rounds of sums, and of merges, in which ranks share out what they hold level by level."""
    sums, merges, share = [], [], 1.0
    for level, degree in enumerate(shape.degrees):
        share /= degree
        sums.append(EqualRounds(degree - 1, share, shape.groups[:level]))
        merges.append(EqualRounds(degree - 1, 1, (1,) * level))
    return both(sums), both(merges)
