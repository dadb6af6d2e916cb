"""Recursive doubling: partners swap all they have, at distances 1, 2, 4, ...

Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005, section
4.5; MG-WFBP (arXiv 1811.11141), Table II. Rounds: log2 P, and two more where P is no power of two. A rank sends the
whole message in every round, so it suits small ones.
"""

from wirebench.collectives.parts.groups import Rounds, fold, strides
from wirebench.collectives.plan import Plan, Transfer, mirror, rounds_of
from wirebench.collectives.rounds import ClusterShape, EqualRounds, RoundCounts, both, folding, swaps
from wirebench.topology.tree import Topology


class RecursiveDoubling:
    """Both partners add what they receive to what they hold, so that all ranks have the sum without a copy half.

    They hold the same bits, since x + y is y + x in floating point too and partners' halves of the sum are each made in
    one order. Places follow the leaf order. Ranks beyond a power of two fold into their neighbours first and get the
    result at the end.
    """

    def plan(self, topology: Topology, items: int) -> Plan:
        """Plan over `items` items; every transfer carries all of them."""
        before, members = fold(topology.ranks, items)
        swaps: Rounds = [
            [Transfer(rank, members[place ^ distance], 0, items) for place, rank in enumerate(members)]
            for distance in strides(len(members))
        ]
        return Plan("recursive_doubling", rounds_of(before + swaps), mirror(rounds_of(before)))

    def rounds(self, shape: ClusterShape) -> RoundCounts:
        """One round for each distance between partners, and one before and one after where ranks fold."""
        distances = swaps(shape)
        sums = [*both(folding(shape)), *(EqualRounds(1, 1, crossing, adds=True) for _, crossing in distances)]
        each = 1 if shape.ranks == shape.power else 2
        swapped = [EqualRounds(1, each * distance, crossing) for distance, crossing in distances]
        gathers = [*folding(shape), *swapped, *folding(shape, shape.ranks - 1)]
        return RoundCounts(sums, gathers, sums)
