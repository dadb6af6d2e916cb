"""The hierarchical all-reduce: sum within machines, all-reduce among one master per machine, spread within machines.

Jia et al., "Highly scalable deep learning training system with mixed-precision", arXiv 1807.11205 (2018), as the
FlexReduce paper (DAC 2020, section II-A) describes it. The papers leave the parts open. Chosen here: a binomial tree
within a machine, and a ring among the masters.
"""

from dataclasses import replace

from wirebench.collectives.parts.groups import (
    Rounds,
    binomial_reduce,
    even_bounds,
    ring_all_gather,
    ring_reduce_scatter,
    side_by_side,
    strides,
)
from wirebench.collectives.plan import Plan, mirror, rounds_of
from wirebench.collectives.ring import Ring
from wirebench.collectives.rounds import ClusterShape, EqualRounds, RoundCounts, both
from wirebench.topology.tree import Branch, Topology


class Hierarchical:
    """The first rank below a branch, in leaf order, is its master.

    Level by level, the lowest first, the masters of a branch's children send to the branch's own master in a binomial
    tree. The masters of the root's children form a ring, which goes around in one direction in both halves. The copy
    half mirrors the trees. In a single machine every rank is a child of the root, so the plan is the ring of all ranks.
    """

    def plan(self, topology: Topology, items: int) -> Plan:
        """Plan over `items` items: whole in the trees, cut into one chunk per master in the ring."""
        *levels, (root,) = topology.levels
        if not levels:
            return replace(Ring().plan(topology, items), name="hierarchical")
        rounds: Rounds = []
        for branches in levels:
            rounds += side_by_side(binomial_reduce(_masters(branch), items) for branch in branches)
        masters = _masters(root)
        bounds = even_bounds(items, len(masters))
        trees, scatter = rounds_of(rounds), rounds_of(ring_reduce_scatter(masters, bounds))
        # As in the ring: forward, unless most chunks are empty.
        gather = mirror(scatter) if items < len(masters) else rounds_of(ring_all_gather(masters, bounds))
        return Plan("hierarchical", trees + scatter, gather + mirror(trees))

    def rounds(self, shape: ClusterShape) -> RoundCounts:
        """Binomial trees among the ranks of a machine, then among a rack's masters, and so on; a ring of the last."""
        if shape.machines == 1:
            return Ring().rounds(shape)
        *below_root, masters = shape.degrees
        outside = (1,) * len(shape.groups)
        trees = [EqualRounds((degree - 1).bit_length(), 1, (1,) * level) for level, degree in enumerate(below_root)]
        sums = both([*trees, EqualRounds(masters - 1, 1 / masters, outside)])
        merges = both([*trees, EqualRounds(masters - 1, 1, outside)])
        sizes = (1, *shape.groups)
        # A master sends what it has gathered from below it, and gets all the rest.
        held = [
            (distance * size, (1,) * level)
            for level, (size, degree) in enumerate(zip(sizes, below_root, strict=False))
            for distance in strides(degree)
        ]
        up = [EqualRounds(1, share, crossing) for share, crossing in held]
        down = [EqualRounds(1, shape.ranks - share, crossing) for share, crossing in held]
        return RoundCounts(sums, [*up, EqualRounds(masters - 1, sizes[-1], outside), *down], merges)


def _masters(branch: Branch) -> list[int]:
    return [child if isinstance(child, int) else child.ranks[0] for child in branch.children]
