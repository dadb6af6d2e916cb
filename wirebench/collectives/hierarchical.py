"""The hierarchical all-reduce: sum within machines, all-reduce among one master per machine, spread within machines.

Jia et al., "Highly scalable deep learning training system with mixed-precision", arXiv 1807.11205 (2018), as the
FlexReduce paper (DAC 2020, section II-A) describes it. The papers leave the parts open. Chosen here: a binomial tree
within a machine, and a ring among the masters.
"""

from wirebench.collectives.parts.groups import Rounds, binomial_reduce, even_bounds, ring_reduce_scatter, side_by_side
from wirebench.collectives.plan import Plan, mirror, rounds_of
from wirebench.topology.tree import Branch, Topology


class Hierarchical:
    """The first rank below a branch, in leaf order, is its master.

    Level by level, the lowest first, the masters of a branch's children send to the branch's own master in a binomial
    tree. The masters of the root's children form a ring. The copy half mirrors it all. In a single machine every rank
    is a child of the root, so the plan is the ring of all ranks.
    """

    def plan(self, topology: Topology, items: int) -> Plan:
        """Plan over `items` items: whole in the trees, cut into one chunk per master in the ring."""
        *levels, (root,) = topology.levels
        rounds: Rounds = []
        for branches in levels:
            rounds += side_by_side(binomial_reduce(_masters(branch), items) for branch in branches)
        masters = _masters(root)
        reduce = rounds_of(rounds + ring_reduce_scatter(masters, even_bounds(items, len(masters))))
        return Plan("hierarchical", reduce, mirror(reduce))


def _masters(branch: Branch) -> list[int]:
    return [child if isinstance(child, int) else child.ranks[0] for child in branch.children]
