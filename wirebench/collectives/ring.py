"""The ring: reduce-scatter and all-gather between neighbours, bandwidth-optimal for any number of ranks.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009.
Rounds: 2(P-1). Bytes that a rank sends: 2(P-1)/P of the message.
"""

from wirebench.collectives.parts.groups import even_bounds, ring_reduce_scatter
from wirebench.collectives.plan import Plan, mirror, rounds_of
from wirebench.collectives.rounds import ClusterShape, EqualRounds, RoundCounts, both, hops
from wirebench.topology.tree import Topology


class Ring:
    """The ring goes around in leaf order, so it enters and leaves every machine once.

    The rank at place p of that order ends the reduce-scatter with the sum of chunk p; the all-gather runs the ring
    backwards.
    """

    def plan(self, topology: Topology, items: int) -> Plan:
        """Plan over `items` items, cut into one chunk per rank."""
        reduce = rounds_of(ring_reduce_scatter(topology.ranks, even_bounds(items, topology.size)))
        return Plan("ring", reduce, mirror(reduce))

    def rounds(self, shape: ClusterShape) -> RoundCounts:
        """P - 1 rounds of P-th parts each way; of an indivisible message a hop from rank to rank."""
        ranks, outside = shape.ranks, shape.neighbours
        sums = both([EqualRounds(ranks - 1, 1 / ranks, outside)])
        return RoundCounts(sums, [EqualRounds(ranks - 1, 1, outside)], both(hops(shape)))
