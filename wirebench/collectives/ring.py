"""The ring: reduce-scatter and all-gather between neighbours, bandwidth-optimal for any number of ranks.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009.
Rounds: 2(P-1). Bytes that a rank sends: 2(P-1)/P of the message.
"""

from wirebench.collectives.parts.groups import even_bounds, ring_all_gather, ring_reduce_scatter
from wirebench.collectives.plan import Plan, mirror, rounds_of
from wirebench.collectives.rounds import ClusterShape, EqualRounds, RoundCounts, both, hops
from wirebench.topology.tree import Topology


class Ring:
    """The ring goes around in leaf order, so it enters and leaves every machine once.

    The rank at place p of that order ends the reduce-scatter with the sum of chunk p. The all-gather goes around in the
    same direction: ranks are not equally far at any time, and a ring that turned around would first have to make good
    each one's lead over the next, while links are idle.
    """

    def plan(self, topology: Topology, items: int) -> Plan:
        """Plan over `items` items, cut into one chunk per rank."""
        bounds = even_bounds(items, topology.size)
        reduce = rounds_of(ring_reduce_scatter(topology.ranks, bounds))
        if items < topology.size:
            # Most chunks are empty. The way back is shorter for one that went from the first rank to the last.
            return Plan("ring", reduce, mirror(reduce))
        return Plan("ring", reduce, rounds_of(ring_all_gather(topology.ranks, bounds)))

    def rounds(self, shape: ClusterShape) -> RoundCounts:
        """P - 1 rounds of P-th parts each way; of an indivisible message a hop from rank to rank."""
        ranks, outside = shape.ranks, shape.neighbours
        sums = both([EqualRounds(ranks - 1, 1 / ranks, outside)])
        return RoundCounts(sums, [EqualRounds(ranks - 1, 1, outside)], both(hops(shape)))
