"""One hop: every rank sends each other rank its share at once, adds what it gets, and sends the sum to all.

The direct form of reduce-scatter and all-gather: Thakur, Rabenseifner and Gropp, IJHPCA 2005, section 4.2 (pairwise
exchange). With a wire format every gradient is rounded once and the sum once, whatever the number of ranks, as in
ZeRO++'s qgZ (arXiv 2306.10209), which goes level by level. Rounds: 2. Bytes that a rank sends: 2(P-1)/P of the message,
in 2(P-1) messages.
"""

from wirebench.collectives.blueconnect import BlueConnect
from wirebench.collectives.parts.groups import Rounds, direct_reduce_scatter, level_rounds
from wirebench.collectives.plan import Plan, mirror, rounds_of
from wirebench.collectives.rounds import ClusterShape, EqualRounds, RoundCounts, both
from wirebench.collectives.star import Star
from wirebench.topology.tree import Topology


class OneHop:
    """The rank at place p of the leaf order sums share p, in the order of the ranks before it, the nearest first.

    levels  a hop for each level of the topology, the lowest first: between machines a rank sends 1 / (ranks of a
            machine) as much. Where branches of a level have different degrees there is one hop, too
    """

    def __init__(self, levels: bool = False) -> None:
        self.levels = levels

    def plan(self, topology: Topology, items: int) -> Plan:
        """Plan over `items` items, cut into one share per rank."""
        factors = (self.levels and topology.degrees) or (topology.size,)
        rounds: Rounds = []
        for level in range(len(factors)):
            rounds += level_rounds(topology.ranks, factors[: level + 1], items, direct_reduce_scatter)
        reduce = rounds_of(rounds)
        return Plan("one_hop", reduce, mirror(reduce))

    def rounds(self, shape: ClusterShape) -> RoundCounts:
        """P - 1 messages of P-th parts each way, those within machines first; by levels the count of rings of them."""
        if self.levels and shape.even:
            return BlueConnect().rounds(shape)
        ranks, each = shape.ranks, shape.each
        # Every rank sends to every rank outside of its group, whatever the order.
        leaving = tuple(size * (ranks - size) / max(ranks - each, 1) for size in shape.groups)
        steps = [EqualRounds(each - 1, 1 / ranks)] + [EqualRounds(ranks - each, 1 / ranks, leaving)] * (ranks > each)
        return RoundCounts(both(steps), [step._replace(share=1) for step in steps], Star().rounds(shape).merges)
