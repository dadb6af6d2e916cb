"""Rounds in place of plans where there are too many ranks to write every transfer down.

A plan of thousands of ranks has millions of transfers in rounds that are all alike. Here a collective is a list of such
rounds: how many, how much a message carries, and how many messages share a machine's link. On one rank per machine
these are the papers' formulas (closed_forms.py); up to MOST_RANKS ranks the plans themselves are priced (pricing.py).

All machines count as large as the largest, and deeper trees as machines on one network, that of their slowest links.
Segments (collectives/segments.py) count where messages are whole sums, in a tree and a star: one segment goes up while
others come down. How near this comes to the plans' own prices is in tests/test_at_scale.py.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from wirebench import closed_forms
from wirebench.collectives.segments import cut
from wirebench.collectives.serve import Part
from wirebench.errors import UserError
from wirebench.topology import Branch, Topology

MOST_RANKS = 16
WHOLE_MESSAGES = ("tree", "star")
"""Collectives whose every message is a whole sum, so that one half uses the other direction of the links."""


class Rounds(NamedTuple):
    """Rounds that are alike.

    times     how many
    share     of the message that each of their messages carries
    crossing  messages that leave a machine at once, over its one link; 0: they stay inside
    adds      whether what arrives is added to what is there
    """

    times: float
    share: float
    crossing: float = 0.0
    adds: bool = False


class Shape(NamedTuple):
    """A cluster in numbers: ranks, machines, ranks of the largest machine."""

    ranks: int
    machines: int
    each: int

    def crossing(self, distance: int) -> int:
        """Messages that leave a machine at once when every rank sends so many places further in leaf order."""
        inside = self.machines == 1 or (distance < self.each and self.each % (2 * distance) == 0)
        return 0 if inside else min(distance, self.each)


class Large:
    """Prices of a collective on a topology by its rounds; UserError for a collective that has none here.

    segmented  count segments, as our own plans are run; without it sums are those of the papers' formulas
    """

    def __init__(self, plan: str, topology: Topology, segmented: bool = False) -> None:
        if plan not in SUMS:
            raise UserError(f"no price of {plan!r} for {topology.size} ranks: its plan is priced up to {MOST_RANKS}")
        if topology.shared or topology.round_seconds:
            raise UserError(
                f"no price for {topology.size} ranks of a topology with `shared` or `round_seconds`: these are known "
                f"for up to {MOST_RANKS}"
            )
        self.plan, self.topology, self.segmented = plan, topology, segmented
        self.shape = Shape(topology.size, len(topology.machines), max(map(len, topology.machines)))
        branches = topology.branches.values()
        self._local = _kinds(each for each in branches if any(isinstance(child, int) for child in each.children))
        self._network = _kinds(each for each in branches if any(isinstance(child, Branch) for child in each.children))

    def sum_seconds(self, num_bytes: float, part: Part = "whole") -> float:
        """Of an all-reduce of `num_bytes`, or of the half of it that adds up, or of that which hands out."""
        if self.plan == "flexreduce" and self.topology.degrees is None:
            return self._uneven(num_bytes, part)
        rounds = _ring(self.shape) if self._is_ring else SUMS[self.plan](self.shape)
        halves = [self._seconds([each for each in rounds if each.adds == adds], num_bytes) for adds in (True, False)]
        if part != "whole":
            return halves[part == "copy"]
        if not self.segmented or self.plan not in WHOLE_MESSAGES:
            return sum(halves)
        segments = len(cut(max(1, round(num_bytes / 4)), 4, 1, in_turn=True))
        return max(halves) + min(halves) / segments

    def gather_seconds(self, num_bytes: float) -> float:
        """Of an all-gather of `num_bytes` from every rank."""
        return self._seconds((_ring_gather if self._is_ring else GATHERS[self.plan])(self.shape), num_bytes)

    def merge_seconds(self, num_bytes: float) -> float:
        """Of a merge of one indivisible message from every rank."""
        return self._seconds(MERGES["ring" if self._is_ring else self.plan](self.shape), num_bytes)

    def route_seconds(self, num_bytes: float) -> float:
        """In which every rank sends parts of `num_bytes` together to all others."""
        ranks, _, each = self.shape
        inside, outside = Rounds(each - 1, 1 / ranks), Rounds(ranks - each, 1 / ranks, each)
        return self._seconds([inside, outside] if ranks > each else [inside], num_bytes)

    @functools.cached_property
    def _is_ring(self) -> bool:
        """BlueConnect has nothing to factor on an asymmetric tree."""
        return self.plan == "blueconnect" and self.topology.degrees is None

    def _uneven(self, num_bytes: float, part: Part) -> float:
        """FlexReduce on an asymmetric tree, as its paper has it, and the adding that its formula leaves out."""
        latency = max(branch.link(num_bytes / self.shape.ranks).latency_seconds for branch in self._network)
        half = closed_forms.flexreduce_seconds(num_bytes, self.topology, latency) / 2
        adding = (1 - 1 / self.shape.ranks) * num_bytes * self.topology.reduce_seconds_per_byte
        return {"reduce": half + adding, "copy": half, "whole": 2 * half + adding}[part]

    def _seconds(self, rounds: Sequence[Rounds], num_bytes: float) -> float:
        return sum(each.times * self._round(each, each.share * num_bytes) for each in rounds if each.times)

    def _round(self, each: Rounds, message_bytes: float) -> float:
        links = [branch.link(message_bytes) for branch in self._local]
        wire = max(message_bytes / link.bytes_per_second for link in links)
        if each.crossing:
            links = [branch.link(message_bytes) for branch in self._network]
            wire = max(wire, *(each.crossing * message_bytes / link.bytes_per_second for link in links))
        adding = message_bytes * self.topology.reduce_seconds_per_byte if each.adds else 0.0
        return max(link.latency_seconds for link in links) + wire + adding


def _kinds(branches: Iterable[Branch]) -> tuple[Branch, ...]:
    """One branch for each speed of links: of thousands of machines most are alike."""
    return tuple({branch.links: branch for branch in branches}.values())


def _strides(count: int) -> list[int]:
    """1, 2, 4, ... as long as they are below `count`."""
    return [1 << exponent for exponent in range((count - 1).bit_length())]


def _both(reduce: Sequence[Rounds]) -> list[Rounds]:
    """A reduce half, and the copy half that mirrors it."""
    return [*(each._replace(adds=True) for each in reduce), *reduce]


def _outside(shape: Shape) -> int:
    """Messages that leave a machine where neighbours in leaf order send to each other."""
    return int(shape.machines > 1)


def _power(shape: Shape) -> int:
    """The largest power of two that the ranks hold."""
    return 1 << (shape.ranks.bit_length() - 1)


def _folding(shape: Shape, share: float = 1.0) -> list[Rounds]:
    """The round in which ranks beyond a power of two hand everything to a neighbour, or get it back."""
    needed = shape.ranks > _power(shape)
    return [Rounds(1, share, 0 if shape.each % 2 == 0 else _outside(shape))] if needed else []


def _chain(shape: Shape) -> list[Rounds]:
    """One message from rank to rank in leaf order."""
    return [Rounds(shape.ranks - shape.machines, 1), Rounds(shape.machines - 1, 1, 1)]


def _ring(shape: Shape) -> list[Rounds]:
    return _both([Rounds(shape.ranks - 1, 1 / shape.ranks, _outside(shape))])


def _tree(shape: Shape) -> list[Rounds]:
    return _both([Rounds(1, 1, min(shape.crossing(distance), 1)) for distance in _strides(shape.ranks)])


def _star(shape: Shape) -> list[Rounds]:
    return _both([Rounds(shape.each - 1, 1), Rounds(shape.ranks - shape.each, 1, 1)])


def _swaps(shape: Shape) -> list[tuple[int, int]]:
    """(distance, messages that leave a machine at once) of the rounds in which partners swap."""
    distances = _strides(_power(shape))
    if shape.ranks == _power(shape):
        return [(distance, shape.crossing(distance)) for distance in distances]
    # Of machines in which ranks were folded only each second one goes on, so that partners are twice as far.
    return [(distance, min(shape.crossing(2 * distance), distance)) for distance in distances]


def _recursive_doubling(shape: Shape) -> list[Rounds]:
    return [*_both(_folding(shape)), *(Rounds(1, 1, crossing, adds=True) for _, crossing in _swaps(shape))]


def _halving_doubling(shape: Shape) -> list[Rounds]:
    return _both(_folding(shape) + [Rounds(1, 0.5 / distance, crossing) for distance, crossing in _swaps(shape)])


def _hierarchical(shape: Shape) -> list[Rounds]:
    if shape.machines == 1:
        return _ring(shape)
    trees = Rounds((shape.each - 1).bit_length(), 1)
    return _both([trees, Rounds(shape.machines - 1, 1 / shape.machines, 1)])


def _hierarchical_merge(shape: Shape) -> list[Rounds]:
    if shape.machines == 1:
        return _both(_chain(shape))
    return _both([Rounds((shape.each - 1).bit_length(), 1), Rounds(shape.machines - 1, 1, 1)])


def _blueconnect(shape: Shape) -> list[Rounds]:
    within = Rounds(shape.each - 1, 1 / shape.each)
    return _both([within, Rounds(shape.machines - 1, 1 / shape.ranks, shape.each)])


def _blueconnect_merge(shape: Shape) -> list[Rounds]:
    return _both([Rounds(shape.each - 1, 1), Rounds(shape.machines - 1, 1, 1)])


def _ring_gather(shape: Shape) -> list[Rounds]:
    return [Rounds(shape.ranks - 1, 1, _outside(shape))]


def _tree_gather(shape: Shape) -> list[Rounds]:
    ranks, found = shape.ranks, []
    for distance in _strides(ranks):
        crossing = min(shape.crossing(distance), 1)
        # Towards the root what a rank has gathered, and back all that it lacks.
        held = min(distance, ranks - distance)
        found += [Rounds(1, held, crossing), Rounds(1, ranks - held, crossing)]
    return found


def _star_gather(shape: Shape) -> list[Rounds]:
    return [
        Rounds(times, share, crossing)
        for share in (1, shape.ranks - 1)
        for times, crossing in ((shape.each - 1, 0), (shape.ranks - shape.each, 1))
    ]


def _recursive_doubling_gather(shape: Shape) -> list[Rounds]:
    each = 1 if shape.ranks == _power(shape) else 2
    swaps = [Rounds(1, each * distance, crossing) for distance, crossing in _swaps(shape)]
    return [*_folding(shape), *swaps, *_folding(shape, shape.ranks - 1)]


def _halving_doubling_gather(shape: Shape) -> list[Rounds]:
    found = _folding(shape)
    for distance, crossing in _swaps(shape):
        there = shape.ranks / (2 * distance)
        found += [Rounds(1, min(distance, max(there, 1)), crossing / 2), Rounds(1, there, crossing)]
    return [*found, *_folding(shape, shape.ranks - 1)]


def _hierarchical_gather(shape: Shape) -> list[Rounds]:
    if shape.machines == 1:
        return _ring_gather(shape)
    up = [Rounds(1, distance) for distance in _strides(shape.each)]
    down = [Rounds(1, shape.ranks - distance) for distance in _strides(shape.each)]
    return [*up, Rounds(shape.machines - 1, shape.each, 1), *down]


def _blueconnect_gather(shape: Shape) -> list[Rounds]:
    if 1 in (shape.machines, shape.each):
        return _ring_gather(shape)
    first = Rounds(shape.each - 1, shape.each / 2)
    between = Rounds(2 * (shape.machines - 1), 1, shape.each / 2)
    return [first, between, Rounds(shape.each - 1, shape.machines)]


def _flexreduce_gather(shape: Shape) -> list[Rounds]:
    if 1 in (shape.machines, shape.each):
        return _ring_gather(shape)
    first, last = Rounds(shape.each - 1, 1), Rounds(shape.each - 1, shape.machines)
    return [first, Rounds(shape.machines - 1, 1, shape.each), last]


Writer = Callable[[Shape], list[Rounds]]
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
