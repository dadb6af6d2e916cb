"""The binomial tree: reduce to the first rank, then broadcast, every message whole.

gs-SGD's reduction (Dai et al., arXiv 2108.06004, Algorithm 1, lines 8-23): survivors pair up in order, and an odd one
passes to the next round. Rounds: 2 ceil(log2 P). Best where messages are small, or cannot be cut.
"""

from wirebench.collectives.parts.groups import binomial_reduce, strides
from wirebench.collectives.plan import Plan, mirror, rounds_of
from wirebench.collectives.rounds import ClusterShape, EqualRounds, RoundCounts, both, capped
from wirebench.topology.tree import Topology


class Tree:
    """In round s = 1, 2, 4, ... the rank at place q with q mod 2s = s sends everything to the one at place q - s.

    Places follow the leaf order, so that the first rounds stay within machines.
    """

    def plan(self, topology: Topology, items: int) -> Plan:
        """Plan over `items` items; every transfer carries all of them."""
        reduce = rounds_of(binomial_reduce(topology.ranks, items))
        return Plan("tree", reduce, mirror(reduce))

    def rounds(self, shape: ClusterShape) -> RoundCounts:
        """One round for each distance, up and down. In a gather all that a rank has goes up, and all it lacks down."""
        ranks, distances = shape.ranks, strides(shape.ranks)
        sums = whole_trees(shape)
        gathers = []
        for distance in distances:
            crossing, held = capped(shape.crossing(distance)), min(distance, ranks - distance)
            gathers += [EqualRounds(1, held, crossing), EqualRounds(1, ranks - held, crossing)]
        return RoundCounts(sums, gathers, sums)


def whole_trees(shape: ClusterShape) -> list[EqualRounds]:
    """The rounds of a message that goes up the tree of all ranks and down again, never cut."""
    return both([EqualRounds(1, 1, capped(shape.crossing(distance))) for distance in strides(shape.ranks)])
