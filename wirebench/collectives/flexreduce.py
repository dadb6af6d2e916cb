"""FlexReduce: a reduce-scatter per level of any tree, in which ranks of small machines take larger parts.

Lee, Hwang, Shah and Cho, "FlexReduce: Flexible All-reduce for Distributed Deep Learning on Asymmetric Network
Topology", DAC 2020, Fig. 3 (a). The planner is `calls.py`. On a symmetric tree it assigns BlueConnect's ranges.
Rounds: 2 for the machines' own level, 2(d-1) for a level of switches of degree d.
"""

from collections.abc import Iterator, Sequence

from wirebench.collectives.calls import Call, calls
from wirebench.collectives.plan import Plan, Transfer, mirror, rounds_of
from wirebench.topology import Topology


class FlexReduce:
    """The calls of a level run at once, the lowest level first: holders send to destinations.

    Above the machines they are spread over d - 1 rounds: in round s, what goes from a child to the s-th after it. So no
    link is sent to from two sides at once, and each carries the same in every round. The copy half mirrors it all:
    destinations send to holders.
    """

    def plan(self, topology: Topology, items: int) -> Plan:
        """Plan over `items` items."""
        reduce = rounds_of(r for level in calls(topology, items) for r in _rounds(topology, level))
        return Plan("flexreduce", reduce, mirror(reduce))


def _rounds(topology: Topology, level: Sequence[Call]) -> Iterator[list[Transfer]]:
    """The transfers of a level's calls, by round."""
    branches = [topology.branches[path] for path in {call.branch for call in level}]
    machines = any(isinstance(child, int) for branch in branches for child in branch.children)
    degrees = {branch.degree for branch in branches}
    if machines or len(degrees) != 1:
        # Rounds of branches of different degrees would wait for each other.
        yield [transfer for call in level for _, transfer in _transfers(topology, call)]
        return
    parts = [part for call in level for part in _transfers(topology, call)]
    for distance in range(1, min(degrees)):
        # Distance 0, from a rank below the same child, replaces what is stale: it goes first, with the nearest.
        yield [transfer for apart, transfer in parts if max(apart, 1) == distance]


def _transfers(topology: Topology, call: Call) -> Iterator[tuple[int, Transfer]]:
    """What the holders send, with how many children further it goes; each child of the branch has one holder.

    A destination that is no holder has a stale part: the holder below its own child, which comes first, replaces it.
    """
    degree, own = len(call.holders), _child(topology, call)
    stale = call.holders[own] != call.dst
    for apart in range(degree):
        source = call.holders[own - apart]
        if source != call.dst:
            yield apart, Transfer(source, call.dst, call.start, call.stop, fresh=stale and apart == 0)


def _child(topology: Topology, call: Call) -> int:
    """Below which child of the call's branch the destination is."""
    depth, chain = len(call.branch), topology.chains[call.dst]
    if len(chain) > depth + 1:
        return chain[depth + 1][-1]
    return topology.branches[call.branch].children.index(call.dst)
