"""The star, or parameter server: all send to one rank, which adds and sends the sum back.

The collective of Sketched-SGD (Ivkin et al., "Communication-efficient distributed SGD with sketching", NeurIPS 2019).
Rounds: 2, but P-1 messages share the server's link in each.
"""

from itertools import pairwise

from wirebench.collectives.plan import Plan, Transfer, mirror, rounds_of
from wirebench.collectives.rounds import ClusterShape, EqualRounds, RoundCounts, both
from wirebench.topology.tree import Topology


class Star:
    """The first rank in leaf order is the server; it adds in leaf order."""

    def plan(self, topology: Topology, items: int) -> Plan:
        """Plan over `items` items; every transfer carries all of them."""
        server, *others = topology.ranks
        reduce = rounds_of([[Transfer(rank, server, 0, items) for rank in others]])
        return Plan("star", reduce, mirror(reduce))

    def rounds(self, shape: ClusterShape) -> RoundCounts:
        """The server takes and sends messages one by one; its own machine's come first."""
        sizes = (1, *shape.groups, shape.ranks)
        steps = [(b - a, (1,) * level) for level, (a, b) in enumerate(pairwise(sizes))]
        sums = both([EqualRounds(times, 1, crossing) for times, crossing in steps])
        gathers = [EqualRounds(times, share, crossing) for share in (1, shape.ranks - 1) for times, crossing in steps]
        return RoundCounts(sums, gathers, sums)
