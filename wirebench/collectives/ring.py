"""The ring: reduce-scatter and all-gather between neighbours, bandwidth-optimal for any number of ranks.

Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009.
Rounds: 2(P-1). Bytes that a rank sends: 2(P-1)/P of the message.
"""

from wirebench.collectives.plan import Plan, Transfer, mirror, rounds_of
from wirebench.topology import Topology


class Ring:
    """Rank r ends the reduce half with the sum of chunk r; the copy half runs the ring backwards."""

    def plan(self, topology: Topology, items: int) -> Plan:
        """Plan over `items` items, cut into one chunk per rank."""
        size = topology.size
        bound = [items * c // size for c in range(size + 1)]

        def hop(rank: int, chunk: int) -> Transfer:
            return Transfer(rank, (rank + 1) % size, bound[chunk], bound[chunk + 1])

        reduce = rounds_of([hop(r, (r - step - 1) % size) for r in range(size)] for step in range(size - 1))
        return Plan("ring", reduce, mirror(reduce))
