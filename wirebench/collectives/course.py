"""A plan as one rank sees it: what it sends, receives and adds in each round, worked out once."""

from collections.abc import Generator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wirebench.collectives.plan import Plan, Round, Transfer, messages
from wirebench.comm.base import Handle, Receive
from wirebench.comm.metered import Metered


class Span(NamedTuple):
    """Items [start, stop) that travel to or from rank `peer` in one message."""

    peer: int
    start: int
    stop: int


class Arrival(NamedTuple):
    """Items [start, stop) that arrive `offset` items into what a round receives, to be added or, fresh, copied."""

    start: int
    stop: int
    offset: int
    fresh: bool


class Leg(NamedTuple):
    """One rank's part of a round."""

    sends: tuple[Span, ...]
    receives: tuple[Span, ...]
    arrivals: tuple[Arrival, ...]


class Course(NamedTuple):
    """One rank's part of a plan; `scratch_items`: the most that it receives in a reduce round."""

    name: str
    reduce: tuple[Leg, ...]
    copy: tuple[Leg, ...]
    scratch_items: int


def course_of(plan: Plan, rank: int) -> Course:
    """Rank `rank`'s part of `plan`."""
    reduce = tuple(_leg(transfers, rank) for transfers in plan.reduce)
    copy = tuple(_leg(transfers, rank) for transfers in plan.copy)
    scratch = max((sum(s.stop - s.start for s in leg.receives) for leg in reduce), default=0)
    return Course(plan.name, reduce, copy, scratch)


def _leg(transfers: Round, rank: int) -> Leg:
    travelling = messages(tuple(t for t in transfers if rank in (t.src, t.dst)))
    incoming = [m for m in travelling if m.dst == rank]
    begins: dict[Transfer, int] = {}
    offset = 0
    for message in incoming:
        # By its place in the round, since a plan may list parts of several messages in any order, and it matters.
        begins |= {part: offset + part.start - message.start for part in message.parts}
        offset += message.stop - message.start
    return Leg(
        tuple(Span(m.dst, m.start, m.stop) for m in travelling if m.src == rank),
        tuple(Span(m.src, m.start, m.stop) for m in incoming),
        tuple(Arrival(t.start, t.stop, begins[t], t.fresh) for t in transfers if t.dst == rank),
    )


def run_course(course: Course, flat: Tensor, scratch: Tensor, communicator: Metered) -> Generator[Handle, Any, None]:
    """Sum `flat` over ranks in place; yields a handle per round.

    scratch  at least `course.scratch_items` elements of the same kind, free until the last round is done
    """
    for leg in course.reduce:
        receives: list[Receive] = []
        offset = 0
        for span in leg.receives:
            receives.append((span.peer, scratch[offset : offset + span.stop - span.start]))
            offset += span.stop - span.start
        yield communicator.exchange(_outgoing(leg, flat), receives, flat.dtype, device=flat.device)
        for arrival in leg.arrivals:
            content = scratch[arrival.offset : arrival.offset + arrival.stop - arrival.start]
            place = flat[arrival.start : arrival.stop]
            place.copy_(content) if arrival.fresh else place.add_(content)
    for leg in course.copy:
        into: list[Receive] = [(span.peer, flat[span.start : span.stop]) for span in leg.receives]
        yield communicator.exchange(_outgoing(leg, flat), into, flat.dtype, device=flat.device)


def _outgoing(leg: Leg, flat: Tensor) -> list[tuple[int, Tensor]]:
    return [(span.peer, flat[span.start : span.stop]) for span in leg.sends]


class Scratch:
    """Buffers to receive into, kept from one sum to the next: fresh memory costs as much as the adding."""

    def __init__(self) -> None:
        self._free: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}

    def take(self, numel: int, like: Tensor) -> Tensor:
        """A buffer of at least `numel` elements of `like`'s type, on its device."""
        shelf = self._free.setdefault((like.dtype, like.device), [])
        buffer = shelf.pop() if shelf else like.new_empty(0)
        return buffer if buffer.numel() >= numel else like.new_empty(numel)

    def give_back(self, buffer: Tensor) -> None:
        """The buffer may be taken again."""
        self._free[buffer.dtype, buffer.device].append(buffer)
