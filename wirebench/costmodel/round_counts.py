"""Collectives as lists of rounds that are alike: what is left of a plan where its transfers are too many to write down.

round_cost.py prices them; a list holds for any number of ranks and machines.
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple


class Rounds(NamedTuple):
    """Rounds that are alike.

    times     how many there are
    share     of the message that each of their messages carries
    crossing  messages that leave a group of ranks at once, over its one link: of a machine, of a rack of machines and
              so on, as ClusterShape.groups has them; (): they stay inside
    adds      whether what arrives is added to what is there
    """

    times: float
    share: float
    crossing: tuple[float, ...] = ()
    adds: bool = False


class ClusterShape(NamedTuple):
    """A cluster in numbers: ranks, machines, and `each`, the ranks of the largest machine.

    racks  ranks below the largest switch of each level between the machines and the root, the lowest level first
    """

    ranks: int
    machines: int
    each: int
    racks: tuple[int, ...] = ()

    @property
    def groups(self) -> tuple[int, ...]:
        """Ranks of a machine, of a rack of machines, and so on: what has a link to the rest of the cluster."""
        return (self.each, *self.racks)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many ranks there are, how many machines, how many racks, and so on."""
        return (self.ranks, self.machines, *(math.ceil(self.ranks / size) for size in self.racks))

    @property
    def degrees(self) -> tuple[int, ...]:
        """Ranks of a machine, machines of a rack, and so on; last, how many of the largest groups there are."""
        within = (1, *self.groups)
        return (*(b // a for a, b in pairwise(within)), self.counts[-1])

    @property
    def neighbours(self) -> tuple[float, ...]:
        """Messages that leave a group where neighbours in leaf order send to each other."""
        return tuple(float(self.ranks > size) for size in self.groups)

    def crossing(self, distance: int) -> tuple[float, ...]:
        """Messages that leave a group at once when every rank sends `distance` places further in leaf order."""
        return tuple(self._leaving(size, distance) for size in self.groups)

    def _leaving(self, size: int, distance: int) -> float:
        inside = self.ranks <= size or (distance < size and size % (2 * distance) == 0)
        return 0 if inside else min(distance, size)


def _strides(count: int) -> list[int]:
    """The powers of two 1, 2, 4, ... below `count`."""
    return [1 << exponent for exponent in range((count - 1).bit_length())]


def _both(reduce: Sequence[Rounds]) -> list[Rounds]:
    """A reduce half and the copy half that mirrors it: as many rounds of the same size, but nothing is added."""
    return [*(each._replace(adds=True) for each in reduce), *reduce]


def _capped(crossing: tuple[float, ...], most: float = 1) -> tuple[float, ...]:
    return tuple(min(each, most) for each in crossing)


def _power(shape: ClusterShape) -> int:
    """The largest power of two that the ranks hold."""
    return 1 << (shape.ranks.bit_length() - 1)


def _folding(shape: ClusterShape, share: float = 1.0) -> list[Rounds]:
    """The round in which ranks beyond a power of two send everything to a neighbour, or get the result back."""
    pairs = zip(shape.groups, shape.neighbours, strict=True)
    crossing = tuple(0 if size % 2 == 0 else outside for size, outside in pairs)
    return [Rounds(1, share, crossing)] if shape.ranks > _power(shape) else []


def _hops(shape: ClusterShape) -> list[Rounds]:
    """One message from rank to rank in leaf order."""
    counts = (*shape.counts, 1)
    return [Rounds(a - b, 1, (1,) * level) for level, (a, b) in enumerate(pairwise(counts))]


def _ring(shape: ClusterShape) -> list[Rounds]:
    return _both([Rounds(shape.ranks - 1, 1 / shape.ranks, shape.neighbours)])


def _tree(shape: ClusterShape) -> list[Rounds]:
    return _both([Rounds(1, 1, _capped(shape.crossing(distance))) for distance in _strides(shape.ranks)])


def _star(shape: ClusterShape) -> list[Rounds]:
    return _both([Rounds(times, 1, crossing) for times, crossing in _from_one(shape)])


def _from_one(shape: ClusterShape) -> list[tuple[int, tuple[float, ...]]]:
    """(how many, messages that leave a group) of the messages between one rank and all others, the nearest first."""
    sizes = (1, *shape.groups, shape.ranks)
    return [(b - a, (1,) * level) for level, (a, b) in enumerate(pairwise(sizes))]


def _swaps(shape: ClusterShape) -> list[tuple[int, tuple[float, ...]]]:
    """(distance, messages that leave a group at once) of the rounds in which partners swap."""
    distances = _strides(_power(shape))
    if shape.ranks == _power(shape):
        return [(distance, shape.crossing(distance)) for distance in distances]
    # If ranks were folded, only every second one takes part, so that partners are twice as far apart in leaf order.
    return [(distance, _capped(shape.crossing(2 * distance), distance)) for distance in distances]


def _recursive_doubling(shape: ClusterShape) -> list[Rounds]:
    return [*_both(_folding(shape)), *(Rounds(1, 1, crossing, adds=True) for _, crossing in _swaps(shape))]


def _halving_doubling(shape: ClusterShape) -> list[Rounds]:
    return _both(_folding(shape) + [Rounds(1, 0.5 / distance, crossing) for distance, crossing in _swaps(shape)])


def _hierarchical(shape: ClusterShape) -> list[Rounds]:
    if shape.machines == 1:
        return _ring(shape)
    masters = shape.degrees[-1]
    return _both([*_trees(shape), Rounds(masters - 1, 1 / masters, (1,) * len(shape.groups))])


def _hierarchical_merge(shape: ClusterShape) -> list[Rounds]:
    if shape.machines == 1:
        return _both(_hops(shape))
    return _both([*_trees(shape), Rounds(shape.degrees[-1] - 1, 1, (1,) * len(shape.groups))])


def _trees(shape: ClusterShape) -> list[Rounds]:
    """Binomial trees among the ranks of a machine, then among the masters of a rack's machines, and so on."""
    below_root = enumerate(shape.degrees[:-1])
    return [Rounds((degree - 1).bit_length(), 1, (1,) * level) for level, degree in below_root]


def _blueconnect(shape: ClusterShape) -> list[Rounds]:
    """Rings among the ranks of a machine, then among machines of a rack, and so on: every rank sends in each."""
    shares = accumulate(shape.degrees, lambda share, degree: share / degree, initial=1.0)
    stages = enumerate(zip(shape.degrees, list(shares)[1:], strict=True))
    return _both([Rounds(degree - 1, share, shape.groups[:level]) for level, (degree, share) in stages])


def _blueconnect_merge(shape: ClusterShape) -> list[Rounds]:
    return _both([Rounds(degree - 1, 1, (1,) * level) for level, degree in enumerate(shape.degrees)])


def _ring_gather(shape: ClusterShape) -> list[Rounds]:
    return [Rounds(shape.ranks - 1, 1, shape.neighbours)]


def _tree_gather(shape: ClusterShape) -> list[Rounds]:
    ranks, rounds = shape.ranks, []
    for distance in _strides(ranks):
        crossing = _capped(shape.crossing(distance))
        # Towards the root what a rank has gathered, and back all that it lacks.
        held = min(distance, ranks - distance)
        rounds += [Rounds(1, held, crossing), Rounds(1, ranks - held, crossing)]
    return rounds


def _star_gather(shape: ClusterShape) -> list[Rounds]:
    return [Rounds(times, share, crossing) for share in (1, shape.ranks - 1) for times, crossing in _from_one(shape)]


def _recursive_doubling_gather(shape: ClusterShape) -> list[Rounds]:
    each = 1 if shape.ranks == _power(shape) else 2
    swaps = [Rounds(1, each * distance, crossing) for distance, crossing in _swaps(shape)]
    return [*_folding(shape), *swaps, *_folding(shape, shape.ranks - 1)]


def _halving_doubling_gather(shape: ClusterShape) -> list[Rounds]:
    rounds = _folding(shape)
    for distance, crossing in _swaps(shape):
        there = shape.ranks / (2 * distance)
        halves = tuple(each / 2 for each in crossing)
        rounds += [Rounds(1, min(distance, max(there, 1)), halves), Rounds(1, there, crossing)]
    return [*rounds, *_folding(shape, shape.ranks - 1)]


def _hierarchical_gather(shape: ClusterShape) -> list[Rounds]:
    if shape.machines == 1:
        return _ring_gather(shape)
    sizes = (1, *shape.groups)
    # A master sends what it has gathered from below it, and gets all the rest.
    held = [
        (distance * size, (1,) * level)
        for level, (size, degree) in enumerate(zip(sizes, shape.degrees[:-1], strict=False))
        for distance in _strides(degree)
    ]
    up = [Rounds(1, share, crossing) for share, crossing in held]
    down = [Rounds(1, shape.ranks - share, crossing) for share, crossing in held]
    return [*up, Rounds(shape.degrees[-1] - 1, sizes[-1], (1,) * len(shape.groups)), *down]


def _blueconnect_gather(shape: ClusterShape) -> list[Rounds]:
    if 1 in (shape.machines, shape.each):
        return _ring_gather(shape)
    first = Rounds(shape.each - 1, shape.each / 2)
    between = Rounds(2 * (shape.machines - 1), 1, (shape.each / 2,) * len(shape.groups))
    return [first, between, Rounds(shape.each - 1, shape.machines)]


def _flexreduce_gather(shape: ClusterShape) -> list[Rounds]:
    if 1 in (shape.machines, shape.each):
        return _ring_gather(shape)
    first, last = Rounds(shape.each - 1, 1), Rounds(shape.each - 1, shape.machines)
    return [first, Rounds(shape.machines - 1, 1, (shape.each,) * len(shape.groups)), last]


Writer = Callable[[ClusterShape], list[Rounds]]
SUMS: dict[str, Writer] = {
    "ring": _ring,
    "tree": _tree,
    "star": _star,
    "recursive_doubling": _recursive_doubling,
    "halving_doubling": _halving_doubling,
    "hierarchical": _hierarchical,
    "blueconnect": _blueconnect,
    "flexreduce": _blueconnect,
}
GATHERS: dict[str, Writer] = {
    "ring": _ring_gather,
    "tree": _tree_gather,
    "star": _star_gather,
    "recursive_doubling": _recursive_doubling_gather,
    "halving_doubling": _halving_doubling_gather,
    "hierarchical": _hierarchical_gather,
    "blueconnect": _blueconnect_gather,
    "flexreduce": _flexreduce_gather,
}
MERGES: dict[str, Writer] = {
    "ring": lambda shape: _both(_hops(shape)),
    "tree": _tree,
    "star": _star,
    "recursive_doubling": _recursive_doubling,
    "halving_doubling": _tree,
    "hierarchical": _hierarchical_merge,
    "blueconnect": _blueconnect_merge,
    "flexreduce": _blueconnect_merge,
}
