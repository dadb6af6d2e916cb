"""A collective as data: who sends which items to whom, round by round; and a proof that the result is right.

An all-reduce plan has two halves. In the rounds of `reduce` a receiver adds what arrives to what it holds; in the
rounds of `copy` it overwrites. All transfers of a round read what their senders held before the round.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from wirebench.topology import Topology


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


@dataclass(frozen=True)
class Plan:
    """An all-reduce: afterwards every rank holds the sum of all ranks' items."""

    name: str
    reduce: tuple[Round, ...]
    copy: tuple[Round, ...]

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


def rounds_of(transfers: Iterable[Sequence[Transfer]]) -> tuple[Round, ...]:
    """Rounds without transfers of nothing, and without rounds of nothing."""
    kept = (tuple(t for t in transfers_of_round if t.stop > t.start) for transfers_of_round in transfers)
    return tuple(r for r in kept if r)


def mirror(reduce: Sequence[Round]) -> tuple[Round, ...]:
    """The copy half that undoes a reduce half: the same rounds from last to first, every arrow reversed."""
    return tuple(tuple(Transfer(t.dst, t.src, t.start, t.stop) for t in r) for r in reversed(reduce))


def check(plan: Plan, size: int, items: int) -> None:
    """Prove that every rank ends with every rank's contribution to every item exactly once.

    Runs the plan on symbols: held[rank, item, contributor] counts how often the contribution is in what the rank holds.
    Raises ValueError, naming the first wrong rank and item, or a transfer that lies outside the plan's world.
    """
    held = np.zeros((size, items, size), dtype=np.int32)
    for rank in range(size):
        held[rank, :, rank] = 1
    for phase, rounds in (("reduce", plan.reduce), ("copy", plan.copy)):
        for number, transfers in enumerate(rounds):
            _check_round(f"{plan.name}, {phase} round {number}", transfers, size, items)
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


class Move(NamedTuple):
    """Whole contributions that go from rank `src` to rank `dst`, named by the ranks they came from."""

    src: int
    dst: int
    origins: tuple[int, ...]


def gather_moves(plan: Plan, size: int) -> tuple[tuple[Move, ...], ...]:
    """The all-gather inside an all-reduce plan over `size` items, item i standing for rank i's contribution.

    A transfer carries the items that its sender has and its receiver lacks, so a ring plan becomes the ring all-gather
    (its reduce half moves nothing) and a tree plan a gather to the root and a broadcast.
    """
    has = [{rank} for rank in range(size)]
    rounds = []
    for transfers in (*plan.reduce, *plan.copy):
        before = [frozenset(h) for h in has]
        moves = []
        for t in transfers:
            origins = tuple(i for i in range(t.start, t.stop) if i in before[t.src] and i not in has[t.dst])
            if origins:
                moves.append(Move(t.src, t.dst, origins))
                has[t.dst].update(origins)
        if moves:
            rounds.append(tuple(moves))
    assert all(len(h) == size for h in has), f"{plan.name}: not every contribution reaches every rank"
    return tuple(rounds)
