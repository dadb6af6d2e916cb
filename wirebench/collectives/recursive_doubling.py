"""Recursive doubling: partners swap all they have, at distances 1, 2, 4, ...

Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005, section
4.5; MG-WFBP (arXiv 1811.11141), Table II. Rounds: log2 P, and two more where P is no power of two. A rank sends the
whole message in every round, so it suits small ones.
"""

from wirebench.collectives.parts.groups import Rounds, fold, strides
from wirebench.collectives.plan import Plan, Transfer, mirror, rounds_of
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
