"""The star, or parameter server: all send to one rank, which adds and sends the sum back.

The collective of Sketched-SGD (Ivkin et al., "Communication-efficient distributed SGD with sketching", NeurIPS 2019).
Rounds: 2, but P-1 messages share the server's link in each.
"""

from wirebench.collectives.plan import Plan, Transfer, mirror, rounds_of
from wirebench.topology.tree import Topology


class Star:
    """The first rank in leaf order is the server; it adds in leaf order."""

    def plan(self, topology: Topology, items: int) -> Plan:
        """Plan over `items` items; every transfer carries all of them."""
        server, *others = topology.ranks
        reduce = rounds_of([[Transfer(rank, server, 0, items) for rank in others]])
        return Plan("star", reduce, mirror(reduce))
