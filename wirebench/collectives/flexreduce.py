"""FlexReduce: a reduce-scatter per level of any tree, in which ranks of small machines take larger parts.

Lee, Hwang, Shah and Cho, "FlexReduce: Flexible All-reduce for Distributed Deep Learning on Asymmetric Network
Topology", DAC 2020, Fig. 3 (a). The planner is parts/flexreduce_calls.py. On a symmetric tree it assigns BlueConnect's
ranges.
Rounds: 2 times the number of levels whose branches have more than one child.
"""

from wirebench.collectives.parts.flexreduce_calls import Call, calls
from wirebench.collectives.plan import Plan, Transfer, mirror, rounds_of
from wirebench.topology.tree import Topology


class FlexReduce:
    """One reduce round per level, the lowest first: all holders send to the destinations at once.

    The copy half mirrors it: every destination sends to all holders.
    """

    def plan(self, topology: Topology, items: int) -> Plan:
        """Plan over `items` items."""
        reduce = rounds_of([t for call in level for t in _transfers(call)] for level in calls(topology, items))
        return Plan("flexreduce", reduce, mirror(reduce))


def _transfers(call: Call) -> list[Transfer]:
    """The holders' transfers. A destination that is no holder has a stale part: the first transfer replaces it."""
    senders = [rank for rank in call.holders if rank != call.dst]
    stale = call.dst not in call.holders
    return [
        Transfer(rank, call.dst, call.start, call.stop, fresh=stale and number == 0)
        for number, rank in enumerate(senders)
    ]
