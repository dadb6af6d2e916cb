"""Collectives as lists of rounds that are alike: what is left of a plan where its transfers are too many to write down.

A collective's `rounds` gives its lists for any number of ranks and machines. Of a collective that has none, `counts_of`
reads them off its plan. costmodel/round_cost.py prices them.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple, Protocol, runtime_checkable

from wirebench.collectives.parts.groups import strides
from wirebench.collectives.plan import Collective, Plan, Round, gather_moves, messages
from wirebench.collectives.wire import Formatted, wire_of
from wirebench.errors import UserError
from wirebench.topology.tree import Topology

MOST_READ = 1024
"""Ranks of the largest plan that is read: a ring's has two million transfers."""
ITEMS_PER_RANK = 840
"""Of a plan that is read: they divide evenly among most numbers of ranks."""
MANY = 4096
"""Units of a message whose head does not count."""


class EqualRounds(NamedTuple):
    """Rounds that are alike.

    times     how many there are
    share     of the message that each of their messages carries
    crossing  messages that leave a group of ranks at once, over its one link: of a machine, of a rack of machines and
              so on, as ClusterShape.groups has them; (): they stay inside
    adds      whether what arrives is added to what is there
    coded     bytes on the wire over the message's, where it has a wire format
    form      the wire format's name; "" without one
    """

    times: float
    share: float
    crossing: tuple[float, ...] = ()
    adds: bool = False
    coded: float = 1.0
    form: str = ""


class RoundCounts(NamedTuple):
    """The rounds in which a collective serves each kind of request.

    sums     of a Sum, the reduce half first
    gathers  of a Gather; shares are of one rank's contribution
    merges   of a Merge, whose message is never cut
    """

    sums: list[EqualRounds]
    gathers: list[EqualRounds]
    merges: list[EqualRounds]

    @property
    def one_way(self) -> bool:
        """Whether each message is a whole sum and the copy half mirrors the reduce half, as in a tree and a star.

        Then a half uses one direction of the links, and the other half of another segment the other.
        """
        reduce = sorted(each for each in self.sums if each.adds)
        copies = sorted(each._replace(adds=True) for each in self.sums if not each.adds)
        return reduce == copies and all(each.share == 1 for each in reduce)


class ClusterShape(NamedTuple):
    """A cluster in numbers: ranks, machines, and `each`, the ranks of the largest machine.

    racks  ranks below the largest switch of each level between the machines and the root, the lowest level first
    even   whether all machines, and all switches of a level, have equally many below them
    """

    ranks: int
    machines: int
    each: int
    racks: tuple[int, ...] = ()
    even: bool = True

    @classmethod
    def of(cls, topology: Topology) -> "ClusterShape":
        """The shape of a topology: all its machines count as large as the largest, and so do its racks."""
        racks = tuple(max(len(branch.ranks) for branch in level) for level in topology.levels[1:-1])
        machines = topology.machines
        return cls(topology.size, len(machines), max(map(len, machines)), racks, topology.degrees is not None)

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

    @property
    def power(self) -> int:
        """The largest power of two that the ranks hold."""
        return 1 << (self.ranks.bit_length() - 1)

    def crossing(self, distance: int) -> tuple[float, ...]:
        """Messages that leave a group at once when every rank sends `distance` places further in leaf order."""
        return tuple(self._leaving(size, distance) for size in self.groups)

    def _leaving(self, size: int, distance: int) -> float:
        inside = self.ranks <= size or (distance < size and size % (2 * distance) == 0)
        return 0 if inside else min(distance, size)


@runtime_checkable
class Counted(Protocol):
    """A collective that lists its rounds."""

    def rounds(self, shape: ClusterShape) -> RoundCounts | None:
        """The rounds on a cluster of this shape; None, as of `plan`, where the engine has its own."""
        ...


def counts_of(collective: Collective, topology: Topology) -> RoundCounts | None:
    """The rounds of a collective: its own list, or else its plan's; None for the engine's own.

    Raises UserError for a collective without a list and more than MOST_READ ranks.
    """
    if (wire := wire_of(collective)) is not None:
        inner = counts_of(wire.inner, topology)
        return inner and inner._replace(sums=[_coded(each, wire) for each in inner.sums])
    if isinstance(collective, Counted):
        return collective.rounds(ClusterShape.of(topology))
    if topology.size > MOST_READ:
        raise UserError(
            f"no price of {type(collective).__name__} for {topology.size} ranks: its plan is read up to {MOST_READ}; "
            "a collective with `rounds` is priced for any number"
        )
    return read_off(collective, topology)


def _coded(each: EqualRounds, wire: Formatted) -> EqualRounds:
    """Rounds of a sum with their formats. Where ranks talk to their own machine and to others, others count."""
    code = wire.within if each.adds and not any(each.crossing) else wire.between
    return each._replace(coded=code.num_bytes(MANY * code.unit) / (4 * MANY * code.unit), form=code.name)


def both(reduce: Sequence[EqualRounds]) -> list[EqualRounds]:
    """A reduce half and the copy half that mirrors it: as many rounds of the same size, but nothing is added."""
    return [*(each._replace(adds=True) for each in reduce), *reduce]


def capped(crossing: Iterable[float], most: float = 1) -> tuple[float, ...]:
    """The messages that leave each group, `most` at once."""
    return tuple(min(each, most) for each in crossing)


def hops(shape: ClusterShape) -> list[EqualRounds]:
    """One message from rank to rank in leaf order."""
    counts = (*shape.counts, 1)
    return [EqualRounds(a - b, 1, (1,) * level) for level, (a, b) in enumerate(pairwise(counts))]


def folding(shape: ClusterShape, share: float = 1.0) -> list[EqualRounds]:
    """The round in which ranks beyond a power of two send everything to a neighbour, or get the result back."""
    pairs = zip(shape.groups, shape.neighbours, strict=True)
    crossing = tuple(0 if size % 2 == 0 else outside for size, outside in pairs)
    return [EqualRounds(1, share, crossing)] if shape.ranks > shape.power else []


def swaps(shape: ClusterShape) -> list[tuple[int, tuple[float, ...]]]:
    """(distance, messages that leave a group at once) of the rounds in which partners swap."""
    distances = strides(shape.power)
    if shape.ranks == shape.power:
        return [(distance, shape.crossing(distance)) for distance in distances]
    # If ranks were folded, only every second one takes part, so that partners are twice as far apart in leaf order.
    return [(distance, capped(shape.crossing(2 * distance), distance)) for distance in distances]


def read_off(collective: Collective, topology: Topology) -> RoundCounts | None:
    """The rounds of a collective's plans on a topology; None for the engine's own."""
    size = topology.size
    whole, of_ranks, uncut = (collective.plan(topology, items) for items in (ITEMS_PER_RANK * size, size, 1))
    if whole is None or of_ranks is None or uncut is None:
        return None
    groups = [
        {rank: number for number, branch in enumerate(level) for rank in branch.ranks} for level in topology.levels[:-1]
    ]
    # Of large plans most rounds are alike: each kind is looked at once.
    count: Count = functools.cache(lambda sent, items, adds: _rounds(sent, groups, items, adds))
    moves = (
        tuple((m.src, m.dst, len(m.origins)) for m in each) for each in gather_moves(of_ranks, size, topology.ranks)
    )
    gathers = _merged(counted for each in moves for counted in count(each, 1, False))
    return RoundCounts(_halves(whole, count, ITEMS_PER_RANK * size), gathers, _halves(uncut, count, 1))


Groups = Sequence[Mapping[int, int]]
"""For each level below the root the group of every rank that is in one."""
Sent = tuple[int, int, int]
"""A message: source, destination, items."""
Count = Callable[[tuple[Sent, ...], int, bool], list[EqualRounds]]
"""`_rounds` on one topology: of a round's messages, the items of a whole message, and whether what arrives is added."""


def _halves(plan: Plan, count: Count, items: int) -> list[EqualRounds]:
    halves = ((plan.reduce, True), (plan.copy, False))
    return _merged(
        each for rounds, adds in halves for transfers in rounds for each in count(_sent(transfers), items, adds)
    )


def _sent(transfers: Round) -> tuple[Sent, ...]:
    pairs = {(t.src, t.dst) for t in transfers}
    parts = transfers if len(pairs) == len(transfers) else messages(transfers)
    return tuple((part.src, part.dst, part.stop - part.start) for part in parts)


def _rounds(sent: Sequence[Sent], groups: Groups, items: int, adds: bool) -> list[EqualRounds]:
    """A round of messages, as several where ranks send or get several: those within a machine first, and so on."""
    ports = Counter((rank, out) for src, dst, _ in sent for rank, out in ((src, True), (dst, False)))
    if max(ports.values()) == 1:
        return [_round(sent, groups, items, adds)]
    met = [sum(group_of.get(src) != group_of.get(dst) for group_of in groups) for src, dst, _ in sent]
    levels = [[each for each, at in zip(sent, met, strict=True) if at == level] for level in sorted(set(met))]
    return [_round(each, groups, items, adds) for each in levels]


def _round(sent: Sequence[Sent], groups: Groups, items: int, adds: bool) -> EqualRounds:
    """Messages as rounds; their number is the messages that the busiest rank sends or gets."""
    count, carried = Counter[tuple[int, bool]](), Counter[tuple[int, bool]]()
    for src, dst, length in sent:
        for port in ((src, True), (dst, False)):
            count[port] += 1
            carried[port] += length
    times, most = max(count.values()), max(carried.values())
    crossing = []
    for group_of in groups:
        leaving = Counter[tuple[int, bool]]()
        for src, dst, length in sent:
            ends = ((group_of.get(src), True), (group_of.get(dst), False))
            if ends[0][0] != ends[1][0]:
                leaving.update({(group, out): length for group, out in ends if group is not None})
        crossing.append(max(leaving.values(), default=0) / most)
    return EqualRounds(times, most / times / items, tuple(crossing), adds)


def _merged(rounds: Iterable[EqualRounds]) -> list[EqualRounds]:
    """Rounds that are alike, and follow one another, as one."""
    alike = ((first, list(rest)) for first, rest in groupby(rounds, lambda each: each._replace(times=0)))
    return [first._replace(times=sum(each.times for each in rest)) for first, rest in alike]
