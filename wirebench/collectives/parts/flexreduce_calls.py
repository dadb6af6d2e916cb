"""Which learner sums what: FlexReduce's planner, on exact fractions.

Lee, Hwang, Shah and Cho, "FlexReduce: Flexible All-reduce for Distributed Deep Learning on Asymmetric Network
Topology", DAC 2020, Fig. 3 (b). The paper's learner is a rank here, its leaf order the topology's. It does not say how
fractions of items are rounded: here item index floor(n q) stands for the fraction q, once, at the end.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from wirebench.topology.tree import Branch, BranchPath, Topology

Ranges = dict[int, tuple[int, int]]


class Call(NamedTuple):
    """One reduce call: `dst` gets the sum over `holders` of items [start, stop).

    branch   below which the call takes place
    holders  the ranks that hold partial sums of these items, in leaf order; `dst` need not be one of them
    """

    branch: BranchPath
    dst: int
    start: int
    stop: int
    holders: tuple[int, ...]


class _Level(NamedTuple):
    ranges: Ranges
    calls: tuple[Call, ...]


def calls(topology: Topology, items: int) -> tuple[tuple[Call, ...], ...]:
    """The reduce calls of every level, the lowest first, without calls of no items. A level's calls run at once."""
    parts, levels = _assign(topology)
    rounded = (
        (c._replace(start=items * c.start // parts, stop=items * c.stop // parts) for c in level.calls)
        for level in levels
    )
    return tuple(tuple(call for call in level if call.start < call.stop) for level in rounded)


def ranges(topology: Topology, items: int) -> tuple[Ranges, ...]:
    """Each rank's items [start, stop) after each level, by rank."""
    parts, levels = _assign(topology)
    return tuple(
        {rank: (items * start // parts, items * stop // parts) for rank, (start, stop) in level.ranges.items()}
        for level in levels
    )


def calls_per_learner(topology: Topology, items: int) -> tuple[float, ...]:
    """Reduce calls of each level, divided by the number of ranks; the paper's Fig. 4 (c) has the mean over levels."""
    return tuple(len(level) / topology.size for level in calls(topology, items))


def calls_bound(topology: Topology, rank: int, level: int) -> int:
    """The most calls into `rank` at `level`, 0 being the lowest (Eq. 12); 0 where no branch of that level is above it.

    1 + the sum over the children m of the branch of ceil(S / q_m), where S is the rank's part after the level and q_m
    the smallest part that a rank below m has before it. The published line lost the brackets: this is the reading that
    gives the 3 and 4 of the text.
    """
    parts, levels = _assign(topology)
    depth = len(levels) - 1 - level
    if depth >= len(topology.chains[rank]):
        return 0
    before = levels[level - 1].ranges if level else dict.fromkeys(topology.ranks, (0, parts))
    length = {r: stop - start for r, (start, stop) in before.items()}
    start, stop = levels[level].ranges[rank]
    branch = topology.branches[topology.chains[rank][depth]]
    return 1 + sum(-((start - stop) // min(length[r] for r in _below(child))) for child in branch.children)


@lru_cache(maxsize=16)
def _assign(topology: Topology) -> tuple[int, tuple[_Level, ...]]:
    """The number of equal parts into which the vector is cut, and each level's ranges and calls, counted in them.

    With as many parts as the least common multiple of every rank's product of degrees, all ranges are whole numbers.
    """
    products = {math.prod(topology.branches[path].degree for path in chain) for chain in topology.chains.values()}
    parts = math.lcm(*products)
    held: Ranges = dict.fromkeys(topology.ranks, (0, parts))
    levels = []
    for depth in reversed(range(1 + max(map(len, topology.branches)))):
        made: list[Call] = []
        for path, branch in topology.branches.items():
            if len(path) == depth:
                following = _following(branch, held)
                made += _calls_below(path, branch, held, following)
                held |= following
        levels.append(_Level(dict(held), tuple(made)))
    return parts, tuple(levels)


def _following(branch: Branch, held: Ranges) -> Ranges:
    """The ranges after the level: 1 / degree of what each rank held, laid end to end in the order of the range ends."""
    following: Ranges = {}
    begin = 0
    # Equal ranges stay in leaf order, since sorting is stable.
    for rank in sorted(branch.ranks, key=lambda r: (held[r][1], held[r][0])):
        start, stop = held[rank]
        end = begin + (stop - start) // branch.degree
        following[rank] = (begin, end)
        begin = end
    return following


def _calls_below(path: BranchPath, branch: Branch, held: Ranges, following: Ranges) -> Iterator[Call]:
    """The calls that fill each rank's new range, which is cut wherever the holders change.

    The ranks below each child hold the whole vector between them, each item once, so every child has one holder.
    """
    tilings = [sorted((*held[rank], rank) for rank in _below(child)) for child in branch.children]
    starts = [[start for start, _, _ in tiling] for tiling in tilings]
    cuts = sorted({start for child in starts for start in child})
    for dst, (begin, end) in following.items():
        inside = cuts[bisect_right(cuts, begin) : bisect_left(cuts, end)]
        for start, stop in pairwise([begin, *inside, end]):
            places = (bisect_right(child, start) - 1 for child in starts)
            holders = tuple(tiling[place][2] for tiling, place in zip(tilings, places, strict=True))
            if holders != (dst,):
                yield Call(path, dst, start, stop, holders)


def _below(child: Branch | int) -> tuple[int, ...]:
    return (child,) if isinstance(child, int) else child.ranks
