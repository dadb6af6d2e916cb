"""FlexReduce: a reduce-scatter per level of any tree, in which ranks of small machines take larger parts.

Lee, Hwang, Shah and Cho, "FlexReduce: Flexible All-reduce for Distributed Deep Learning on Asymmetric Network
Topology", DAC 2020, Fig. 3 (a). The planner is parts/flexreduce_calls.py. On a symmetric tree it assigns BlueConnect's
ranges.
Rounds: 2 times the number of levels whose branches have more than one child.
"""

from wirebench.collectives.blueconnect import by_levels
from wirebench.collectives.parts.flexreduce_calls import Call, calls
from wirebench.collectives.plan import Plan, Transfer, mirror, rounds_of
from wirebench.collectives.ring import Ring
from wirebench.collectives.rounds import ClusterShape, EqualRounds, RoundCounts
from wirebench.topology.tree import Topology


class FlexReduce:
    """One reduce round per level, the lowest first: all holders send to the destinations at once.

    The copy half mirrors it: every destination sends to all holders.
    """

    def plan(self, topology: Topology, items: int) -> Plan:
        """Plan over `items` items."""
        reduce = rounds_of([t for call in level for t in _transfers(call)] for level in calls(topology, items))
        return Plan("flexreduce", reduce, mirror(reduce))

    def rounds(self, shape: ClusterShape) -> RoundCounts:
        """BlueConnect's, whose d - 1 rounds of a level send what goes to d - 1 ranks at once here.

        On an uneven tree a rank's part straddles the parts of two ranks below most branches: above the machines it
        sends twice as many messages of half the length.
        """
        sums, merges = by_levels(shape)
        if not shape.even:
            sums = [r._replace(times=2 * r.times, share=r.share / 2) if r.crossing else r for r in sums]
        if 1 in (shape.machines, shape.each):
            return RoundCounts(sums, Ring().rounds(shape).gathers, merges)
        between = EqualRounds(shape.machines - 1, 1, (shape.each,) * len(shape.groups))
        gathers = [EqualRounds(shape.each - 1, 1), between, EqualRounds(shape.each - 1, shape.machines)]
        return RoundCounts(sums, gathers, merges)


def _transfers(call: Call) -> list[Transfer]:
    """The holders' transfers. A destination that is no holder has a stale part: the first transfer replaces it."""
    senders = [rank for rank in call.holders if rank != call.dst]
    stale = call.dst not in call.holders
    return [
        Transfer(rank, call.dst, call.start, call.stop, fresh=stale and number == 0)
        for number, rank in enumerate(senders)
    ]
