"""A collective as data: who sends which items to whom, round by round; and a proof that the result is right.

An all-reduce plan has two halves. In the rounds of `reduce` a receiver adds what arrives to what it holds; in the
rounds of `copy` it overwrites. In a ring these are the reduce-scatter and the all-gather, in a tree the reduce and the
broadcast. All transfers of a round read what their senders held before the round.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import lcm
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from wirebench.topology.tree import Topology


class Transfer(NamedTuple):
    """Items [start, stop) go from rank `src` to rank `dst`.

    fresh  in a reduce round: the receiver holds nothing valid there, so it overwrites instead of adding
    """

    src: int
    dst: int
    start: int
    stop: int
    fresh: bool = False


Round = tuple[Transfer, ...]


class Message(NamedTuple):
    """Items [start, stop) that travel from `src` to `dst` in one piece, made of the transfers `parts`.

    The parts are in ascending order of `start`.
    """

    src: int
    dst: int
    start: int
    stop: int
    parts: tuple[Transfer, ...]


class Code(Protocol):
    """A wire format: how fp32 numbers are coded in a message. Hashable, since plans are.

    name  as users write it
    unit  the length of a message, in elements, is a multiple of it
    """

    @property
    def name(self) -> str:
        """The name that users write."""
        ...

    @property
    def unit(self) -> int:
        """The length of a message, in elements, is a multiple of it."""
        ...

    def prepare(self, device: torch.device) -> None:
        """Make ready what a step should not wait for, such as what is compiled."""
        ...

    def num_bytes(self, numel: int) -> int:
        """Bytes of a message of `numel` elements, a multiple of `unit`, its scales included; of 0: of its head."""
        ...

    def encode(self, values: Tensor, numel: int, parts: int = 1) -> Tensor:
        """The message of fp32 `values`, (n,), as uint8, which may overwrite them; zeros follow, up to `numel`.

        parts  messages of one length that lie one after another
        """
        ...

    def decode(self, messages: Sequence[Tensor], out: Tensor) -> Tensor:
        """Write what arrives of the messages, one after another, to fp32 `out`, (n,), as far as it goes; returns it."""
        ...


@dataclass(frozen=True)
class Wire:
    """The wire formats of a plan. Each of its items then stands for `unit` fp32 elements.

    between   code of what is added and comes from another machine, and of all that is copied
    within    code of what is added and comes from the receiver's own machine
    machines  for each rank the number of its machine
    """

    between: Code
    within: Code
    machines: tuple[int, ...]

    @property
    def unit(self) -> int:
        """Elements of an item."""
        return lcm(self.between.unit, self.within.unit)

    @property
    def name(self) -> str:
        """The formats, in words."""
        alike = self.within == self.between
        return self.between.name if alike else f"{self.between.name}, {self.within.name} within machines"

    def code(self, src: int, dst: int) -> Code:
        """The code of a message of the reduce half."""
        return self.within if self.machines[src] == self.machines[dst] else self.between


@dataclass(frozen=True)
class Plan:
    """An all-reduce: afterwards every rank holds the sum of all ranks' items.

    wire  formats of its messages; None: items travel uncoded
    """

    name: str
    reduce: tuple[Round, ...]
    copy: tuple[Round, ...]
    wire: Wire | None = None

    @property
    def rounds(self) -> int:
        """Communication rounds in all."""
        return len(self.reduce) + len(self.copy)

    def sent_items(self, rank: int) -> int:
        """Items that `rank` sends in all rounds together."""
        return sum(t.stop - t.start for r in (*self.reduce, *self.copy) for t in r if t.src == rank)


class Collective(Protocol):
    """An all-reduce algorithm."""

    def plan(self, topology: Topology, items: int) -> Plan | None:
        """The plan for `items` items on `topology`; None leaves the call to the engine's own implementation."""
        ...


def root(plan: Plan) -> int | None:
    """The rank that has the whole sum after the reduce half, as in a tree or a star; None where it is scattered."""
    transfers = [transfer for transfers in plan.reduce for transfer in transfers]
    whole = {(transfer.start, transfer.stop) for transfer in transfers}
    never_sends = {transfer.dst for transfer in transfers} - {transfer.src for transfer in transfers}
    return never_sends.pop() if len(whole) == 1 and len(never_sends) == 1 else None


def has_root(collective: Collective) -> bool:
    """Whether a Reduce runs the reduce half of a plan alone, as one rank has the whole sum after it.

    Otherwise the executor runs the whole sum and returns it on one rank alone (RequestExecutor._reduce).
    """
    few = collective.plan(Topology.flat(4), 64)
    return few is not None and root(few) is not None


def rounds_of(transfers: Iterable[Sequence[Transfer]]) -> tuple[Round, ...]:
    """The rounds of these transfers, without transfers of no items and without rounds of no transfers."""
    kept = (tuple(t for t in transfers_of_round if t.stop > t.start) for transfers_of_round in transfers)
    return tuple(r for r in kept if r)


def messages(transfers: Round) -> tuple[Message, ...]:
    """The messages of a round: a pair's transfers whose ranges touch (or overlap) travel as one.

    Pairs come in the order of their first transfers. A receiver adds in the order of the round, not of the messages:
    a fresh part must come before what is added to it, whichever message brings it.
    """
    pairs: dict[tuple[int, int], list[Transfer]] = {}
    for transfer in transfers:
        pairs.setdefault((transfer.src, transfer.dst), []).append(transfer)
    merged: list[Message] = []
    for pair, parts in pairs.items():
        for part in sorted(parts, key=lambda t: t.start):
            last = merged[-1] if merged else None
            if last and (last.src, last.dst) == pair and part.start <= last.stop:
                merged[-1] = last._replace(stop=max(last.stop, part.stop), parts=(*last.parts, part))
            else:
                merged.append(Message(*pair, part.start, part.stop, (part,)))
    return tuple(merged)


def all_messages(plan: Plan) -> Iterator[tuple[Message, bool]]:
    """Every message of the plan, and whether what arrives is added."""
    for rounds, adds in ((plan.reduce, True), (plan.copy, False)):
        for transfers in rounds:
            yield from ((message, adds) for message in messages(transfers))


def copy_bounds(plan: Plan) -> tuple[int, ...]:
    """Where the pieces of the copy half begin and end: every message of it is made of whole pieces.

    A sum is coded piece by piece, each by the rank that has it, so that all ranks decode the same message.
    """
    return tuple(sorted({bound for transfers in plan.copy for t in transfers for bound in (t.start, t.stop)}))


def copied_pieces(plan: Plan) -> list[tuple[int, int, set[int]]]:
    """The pieces of the copy half: where each begins and ends, and the ranks to which it comes; the others have it.

    A rank that has sent a piece has had it, also where it comes back: FlexReduce's on uneven machines do.
    """
    bounds = copy_bounds(plan)
    senders: list[set[int]] = [set() for _ in bounds[1:]]
    receivers: list[set[int]] = [set() for _ in bounds[1:]]
    for transfers in plan.copy:
        spans = [(t, range(bisect_left(bounds, t.start), bisect_left(bounds, t.stop))) for t in transfers]
        for t, numbers in spans:
            for number in numbers:
                senders[number].add(t.src)
        for t, numbers in spans:
            for number in numbers:
                if t.dst not in senders[number]:
                    receivers[number].add(t.dst)
    return [(*span, ranks) for span, ranks in zip(pairwise(bounds), receivers, strict=True)]


def swapped(transfers: Round) -> list[Message]:
    """The messages of a reduce round whose sender adds to what it sends: partners swap, and both get the sum."""
    added: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)
    for part in transfers:
        if not part.fresh:
            added[part.dst].add((part.start, part.stop))
    return [
        each
        for each in messages(transfers)
        if any(start < each.stop and each.start < stop for start, stop in added[each.src])
    ]


def sizes(plan: Plan, item_bytes: float) -> Callable[[Message, bool], float]:
    """What gives the bytes of a message of the plan; its second argument: whether what arrives is added.

    item_bytes  of an item without a wire format
    """
    wire, bounds = plan.wire, copy_bounds(plan)
    if wire is None:
        return lambda message, adds: (message.stop - message.start) * item_bytes

    def coded(message: Message, adds: bool) -> float:
        numel = (message.stop - message.start) * wire.unit
        if adds:
            return wire.code(message.src, message.dst).num_bytes(numel)
        pieces = bisect_left(bounds, message.stop) - bisect_left(bounds, message.start)
        return wire.between.num_bytes(numel) + (pieces - 1) * wire.between.num_bytes(0)

    return coded


def mirror(reduce: Sequence[Round]) -> tuple[Round, ...]:
    """The copy half that undoes a reduce half: the same rounds from last to first, every arrow reversed."""
    return tuple(tuple(Transfer(t.dst, t.src, t.start, t.stop) for t in r) for r in reversed(reduce))


def check(plan: Plan, size: int, items: int) -> None:
    """Prove that every rank ends with every rank's contribution to every item exactly once.

    Runs the plan on symbols: held[rank, item, contributor] counts how often the contribution is in what the rank holds.
    Raises ValueError, naming the first wrong rank and item, or a transfer whose ranks or items do not exist.
    """
    held = np.zeros((size, items, size), dtype=np.int32)
    for rank in range(size):
        held[rank, :, rank] = 1
    for phase, rounds in (("reduce", plan.reduce), ("copy", plan.copy)):
        for number, transfers in enumerate(rounds):
            where = f"{plan.name}, {phase} round {number}"
            _check_round(where, transfers, size, items)
            if phase == "copy":
                _check_overwriting(where, transfers)
            sent = [held[t.src, t.start : t.stop].copy() for t in transfers]
            for transfer, content in zip(transfers, sent, strict=True):
                place = held[transfer.dst, transfer.start : transfer.stop]
                place[:] = content if transfer.fresh or phase == "copy" else place + content
    wrong = np.argwhere((held != 1).any(axis=2))
    if len(wrong):
        rank, item = (int(x) for x in wrong[0])
        counts = held[rank, item].tolist()
        raise ValueError(
            f"{plan.name}: rank {rank} ends with item {item} holding contributions {counts}, not one of each"
        )


def _check_round(where: str, transfers: Round, size: int, items: int) -> None:
    for t in transfers:
        if not (0 <= t.src < size and 0 <= t.dst < size and t.src != t.dst):
            raise ValueError(f"{where}: {t} is not between two of {size} ranks")
        if not 0 <= t.start < t.stop <= items:
            raise ValueError(f"{where}: {t} is not a part of {items} items")
    pairs = Counter((m.src, m.dst) for m in messages(transfers))
    for (src, dst), count in pairs.items():
        if count > 1:
            raise ValueError(f"{where}: {count} messages from rank {src} to {dst}; their ranges need to touch")


def _check_overwriting(where: str, transfers: Round) -> None:
    """Copies are received in place, so nothing that a rank sends may be overwritten in the same round."""
    sent: dict[int, list[Transfer]] = {}
    for t in transfers:
        sent.setdefault(t.src, []).append(t)
    for t in transfers:
        for other in sent.get(t.dst, ()):
            if t.start < other.stop and other.start < t.stop:
                raise ValueError(f"{where}: {t} overwrites what {other} sends")


class Move(NamedTuple):
    """A message of an all-gather: contributions from rank `src` to rank `dst`, named by the ranks they came from."""

    src: int
    dst: int
    origins: tuple[int, ...]


def gather_moves(plan: Plan, size: int, owners: Sequence[int] = ()) -> tuple[tuple[Move, ...], ...]:
    """The all-gather inside an all-reduce plan over `size` items, item i standing for the contribution of owners[i].

    A transfer carries the items that its sender has and its receiver lacks, so a ring plan becomes the ring all-gather
    (its reduce half moves nothing) and a tree plan a gather to the root and a broadcast. At most one move per pair and
    round.

    owners  a permutation of the ranks: the topology's leaf order suits its plans best; by default rank i owns item i
    """
    owner = owners or range(size)
    has = [{rank} for rank in range(size)]
    rounds = []
    for transfers in (*plan.reduce, *plan.copy):
        arriving: dict[int, set[int]] = {t.dst: set() for t in transfers}
        moves: dict[tuple[int, int], list[int]] = {}
        for t in transfers:
            known = has[t.dst], arriving[t.dst]
            origins = [o for o in owner[t.start : t.stop] if o in has[t.src] and not any(o in each for each in known)]
            if origins:
                moves.setdefault((t.src, t.dst), []).extend(origins)
                arriving[t.dst].update(origins)
        for rank, received in arriving.items():
            has[rank] |= received
        if moves:
            rounds.append(tuple(Move(src, dst, tuple(origins)) for (src, dst), origins in moves.items()))
    assert all(len(h) == size for h in has), f"{plan.name}: not every contribution reaches every rank"
    return tuple(rounds)
