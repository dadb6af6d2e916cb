"""The binomial tree: reduce to rank 0, then broadcast, every message whole.

gs-SGD's reduction (Dai et al., arXiv 2108.06004, Algorithm 1, lines 8-23): survivors pair up in order, and an odd one
passes to the next round. Rounds: 2 ceil(log2 P). Best where messages are small, or cannot be cut.
"""

from wirebench.collectives.plan import Plan, Transfer, mirror, rounds_of
from wirebench.topology import Topology


class Tree:
    """In round s = 1, 2, 4, ... rank q with q mod 2s = s sends everything to q - s."""

    def plan(self, topology: Topology, items: int) -> Plan:
        """Plan over `items` items; every transfer carries all of them."""
        size = topology.size
        strides: list[int] = []
        while (stride := 1 << len(strides)) < size:
            strides.append(stride)
        reduce = rounds_of([Transfer(q, q - s, 0, items) for q in range(s, size, 2 * s)] for s in strides)
        return Plan("tree", reduce, mirror(reduce))
