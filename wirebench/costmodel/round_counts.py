"""Collectives as lists of rounds that are alike: what is left of a plan where its transfers are too many to write down.

round_cost.py prices them; a list holds for any number of ranks and machines.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Rounds(NamedTuple):
    """Rounds that are alike.

    times     how many there are
    share     of the message that each of their messages carries
    crossing  messages that leave a machine at once, over its one link; 0: they stay inside
    adds      whether what arrives is added to what is there
    """

    times: float
    share: float
    crossing: float = 0.0
    adds: bool = False


class ClusterShape(NamedTuple):
    """A cluster in numbers: ranks, machines, and `each`, the ranks of the largest machine."""

    ranks: int
    machines: int
    each: int

    def crossing(self, distance: int) -> int:
        """Messages that leave a machine at once when every rank sends `distance` places further in leaf order."""
        inside = self.machines == 1 or (distance < self.each and self.each % (2 * distance) == 0)
        return 0 if inside else min(distance, self.each)


def _strides(count: int) -> list[int]:
    """1, 2, 4, ... as long as they are below `count`."""
    return [1 << exponent for exponent in range((count - 1).bit_length())]


def _both(reduce: Sequence[Rounds]) -> list[Rounds]:
    """A reduce half and the copy half that mirrors it: as many rounds of the same size, but nothing is added."""
    return [*(each._replace(adds=True) for each in reduce), *reduce]


def _outside(shape: ClusterShape) -> int:
    """Messages that leave a machine where neighbours in leaf order send to each other."""
    return int(shape.machines > 1)


def _power(shape: ClusterShape) -> int:
    """The largest power of two that the ranks hold."""
    return 1 << (shape.ranks.bit_length() - 1)


def _folding(shape: ClusterShape, share: float = 1.0) -> list[Rounds]:
    """The round in which ranks beyond a power of two send everything to a neighbour, or get the result back."""
    needed = shape.ranks > _power(shape)
    return [Rounds(1, share, 0 if shape.each % 2 == 0 else _outside(shape))] if needed else []


def _chain(shape: ClusterShape) -> list[Rounds]:
    """One message from rank to rank in leaf order."""
    return [Rounds(shape.ranks - shape.machines, 1), Rounds(shape.machines - 1, 1, 1)]


def _ring(shape: ClusterShape) -> list[Rounds]:
    return _both([Rounds(shape.ranks - 1, 1 / shape.ranks, _outside(shape))])


def _tree(shape: ClusterShape) -> list[Rounds]:
    return _both([Rounds(1, 1, min(shape.crossing(distance), 1)) for distance in _strides(shape.ranks)])


def _star(shape: ClusterShape) -> list[Rounds]:
    return _both([Rounds(shape.each - 1, 1), Rounds(shape.ranks - shape.each, 1, 1)])


def _swaps(shape: ClusterShape) -> list[tuple[int, int]]:
    """(distance, messages that leave a machine at once) of the rounds in which partners swap."""
    distances = _strides(_power(shape))
    if shape.ranks == _power(shape):
        return [(distance, shape.crossing(distance)) for distance in distances]
    # Where ranks were folded, only each second one goes on, so that partners are twice as far apart in leaf order.
    return [(distance, min(shape.crossing(2 * distance), distance)) for distance in distances]


def _recursive_doubling(shape: ClusterShape) -> list[Rounds]:
    return [*_both(_folding(shape)), *(Rounds(1, 1, crossing, adds=True) for _, crossing in _swaps(shape))]


def _halving_doubling(shape: ClusterShape) -> list[Rounds]:
    return _both(_folding(shape) + [Rounds(1, 0.5 / distance, crossing) for distance, crossing in _swaps(shape)])


def _hierarchical(shape: ClusterShape) -> list[Rounds]:
    if shape.machines == 1:
        return _ring(shape)
    trees = Rounds((shape.each - 1).bit_length(), 1)
    return _both([trees, Rounds(shape.machines - 1, 1 / shape.machines, 1)])


def _hierarchical_merge(shape: ClusterShape) -> list[Rounds]:
    if shape.machines == 1:
        return _both(_chain(shape))
    return _both([Rounds((shape.each - 1).bit_length(), 1), Rounds(shape.machines - 1, 1, 1)])


def _blueconnect(shape: ClusterShape) -> list[Rounds]:
    within = Rounds(shape.each - 1, 1 / shape.each)
    return _both([within, Rounds(shape.machines - 1, 1 / shape.ranks, shape.each)])


def _blueconnect_merge(shape: ClusterShape) -> list[Rounds]:
    return _both([Rounds(shape.each - 1, 1), Rounds(shape.machines - 1, 1, 1)])


def _ring_gather(shape: ClusterShape) -> list[Rounds]:
    return [Rounds(shape.ranks - 1, 1, _outside(shape))]


def _tree_gather(shape: ClusterShape) -> list[Rounds]:
    ranks, rounds = shape.ranks, []
    for distance in _strides(ranks):
        crossing = min(shape.crossing(distance), 1)
        # Towards the root what a rank has gathered, and back all that it lacks.
        held = min(distance, ranks - distance)
        rounds += [Rounds(1, held, crossing), Rounds(1, ranks - held, crossing)]
    return rounds


def _star_gather(shape: ClusterShape) -> list[Rounds]:
    return [
        Rounds(times, share, crossing)
        for share in (1, shape.ranks - 1)
        for times, crossing in ((shape.each - 1, 0), (shape.ranks - shape.each, 1))
    ]


def _recursive_doubling_gather(shape: ClusterShape) -> list[Rounds]:
    each = 1 if shape.ranks == _power(shape) else 2
    swaps = [Rounds(1, each * distance, crossing) for distance, crossing in _swaps(shape)]
    return [*_folding(shape), *swaps, *_folding(shape, shape.ranks - 1)]


def _halving_doubling_gather(shape: ClusterShape) -> list[Rounds]:
    rounds = _folding(shape)
    for distance, crossing in _swaps(shape):
        there = shape.ranks / (2 * distance)
        rounds += [Rounds(1, min(distance, max(there, 1)), crossing / 2), Rounds(1, there, crossing)]
    return [*rounds, *_folding(shape, shape.ranks - 1)]


def _hierarchical_gather(shape: ClusterShape) -> list[Rounds]:
    if shape.machines == 1:
        return _ring_gather(shape)
    up = [Rounds(1, distance) for distance in _strides(shape.each)]
    down = [Rounds(1, shape.ranks - distance) for distance in _strides(shape.each)]
    return [*up, Rounds(shape.machines - 1, shape.each, 1), *down]


def _blueconnect_gather(shape: ClusterShape) -> list[Rounds]:
    if 1 in (shape.machines, shape.each):
        return _ring_gather(shape)
    first = Rounds(shape.each - 1, shape.each / 2)
    between = Rounds(2 * (shape.machines - 1), 1, shape.each / 2)
    return [first, between, Rounds(shape.each - 1, shape.machines)]


def _flexreduce_gather(shape: ClusterShape) -> list[Rounds]:
    if 1 in (shape.machines, shape.each):
        return _ring_gather(shape)
    first, last = Rounds(shape.each - 1, 1), Rounds(shape.each - 1, shape.machines)
    return [first, Rounds(shape.machines - 1, 1, shape.each), last]


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
    "ring": lambda shape: _both(_chain(shape)),
    "tree": _tree,
    "star": _star,
    "recursive_doubling": _recursive_doubling,
    "halving_doubling": _tree,
    "hierarchical": _hierarchical_merge,
    "blueconnect": _blueconnect_merge,
    "flexreduce": _blueconnect_merge,
}
