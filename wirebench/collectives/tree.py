"""The binomial tree: reduce to the first rank, then broadcast, every message whole.

gs-SGD's reduction (Dai et al., arXiv 2108.06004, Algorithm 1, lines 8-23): survivors pair up in order, and an odd one
passes to the next round. Rounds: 2 ceil(log2 P). Best where messages are small, or cannot be cut.
"""

from wirebench.collectives.parts.groups import binomial_reduce
from wirebench.collectives.plan import Plan, mirror, rounds_of
from wirebench.topology.tree import Topology


class Tree:
    """In round s = 1, 2, 4, ... the rank at place q with q mod 2s = s sends everything to the one at place q - s.

    Places follow the leaf order, so that the first rounds stay within machines.
    """

    def plan(self, topology: Topology, items: int) -> Plan:
        """Plan over `items` items; every transfer carries all of them."""
        reduce = rounds_of(binomial_reduce(topology.ranks, items))
        return Plan("tree", reduce, mirror(reduce))
