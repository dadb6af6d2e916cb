"""Rabenseifner's all-reduce: partners swap halves of ever shorter ranges, then the same backwards.

Rabenseifner, "Optimization of collective reduction operations", ICCS 2004; Thakur et al., IJHPCA 2005, section 4.5;
MG-WFBP (arXiv 1811.11141), Table II. Rounds: 2 log2 P, and two more where P is no power of two. Bytes that a rank
sends: 2(P-1)/P of the message.
"""

from typing import Literal

from wirebench.collectives.parts.groups import Rounds, fold, strides
from wirebench.collectives.plan import Plan, Transfer, mirror, rounds_of
from wirebench.collectives.rounds import ClusterShape, EqualRounds, RoundCounts, both, folding, swaps
from wirebench.collectives.tree import whole_trees
from wirebench.topology.tree import Topology


class HalvingDoubling:
    """Reduce-scatter by recursive halving of the vector, all-gather by recursive doubling.

    distance  of the partners in the reduce-scatter, in places of the leaf order: "doubling" (1, 2, 4, ...) sends the
              longest messages to near neighbours, "halving" (P/2, ..., 2, 1) to far ones

    Ranks beyond a power of two fold into their neighbours first and get the result at the end.
    """

    def __init__(self, distance: Literal["doubling", "halving"] = "doubling") -> None:
        self.distance = distance

    def plan(self, topology: Topology, items: int) -> Plan:
        """Plan over `items` items; a range of an odd number of items is cut below its middle."""
        before, members = fold(topology.ranks, items)
        distances = strides(len(members))
        if self.distance == "halving":
            distances.reverse()
        reduce = rounds_of(before + _halvings(members, distances, items))
        return Plan("halving_doubling", reduce, mirror(reduce))

    def rounds(self, shape: ClusterShape) -> RoundCounts:
        """One round for each distance, each way; whichever comes first. A message that cannot be cut goes as in a tree.

        In a gather few of the halves that travel first are of ranks that the receiver has nothing of.
        """
        sums = both(folding(shape) + [EqualRounds(1, 0.5 / distance, crossing) for distance, crossing in swaps(shape)])
        gathers = folding(shape)
        for distance, crossing in swaps(shape):
            there = shape.ranks / (2 * distance)
            halves = tuple(each / 2 for each in crossing)
            gathers += [EqualRounds(1, min(distance, max(there, 1)), halves), EqualRounds(1, there, crossing)]
        return RoundCounts(sums, [*gathers, *folding(shape, shape.ranks - 1)], whole_trees(shape))


def _halvings(members: list[int], distances: list[int], items: int) -> Rounds:
    """The reduce-scatter: of two partners the one at the lower place keeps the lower half of their common range."""
    held = [(0, items)] * len(members)
    rounds: Rounds = []
    for distance in distances:
        transfers = []
        for place, rank in enumerate(members):
            partner, (start, stop) = place ^ distance, held[place]
            middle = (start + stop) // 2
            lower, upper = (start, middle), (middle, stop)
            keeps, gives = (lower, upper) if place < partner else (upper, lower)
            transfers.append(Transfer(rank, members[partner], *gives))
            held[place] = keeps
        rounds.append(transfers)
    return rounds
