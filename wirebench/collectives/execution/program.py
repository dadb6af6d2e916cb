"""A plan as one rank sees it: what it sends, receives and adds in each round, worked out once."""

from collections.abc import Generator
from itertools import pairwise
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


class Incoming(NamedTuple):
    """Items [start, stop) that arrive `offset` items into what a round receives, to be added or, fresh, copied."""

    start: int
    stop: int
    offset: int
    fresh: bool


class RankRound(NamedTuple):
    """One rank's part of a round.

    into   where what it receives begins in the scratch buffer; None in a copy round, which receives in place
    early  whether its messages should be asked for while the round before it is under way
    """

    sends: tuple[Span, ...]
    receives: tuple[Span, ...]
    arrivals: tuple[Incoming, ...]
    into: int | None
    early: bool


class RankProgram(NamedTuple):
    """One rank's part of a plan; `scratch_items`: the most that it receives in two reduce rounds in a row."""

    name: str
    legs: tuple[RankRound, ...]
    scratch_items: int


def program_of(plan: Plan, rank: int) -> RankProgram:
    """Rank `rank`'s part of `plan`."""
    reduce = [_leg(transfers, rank) for transfers in plan.reduce]
    # Two places by turns, so that one round's messages may come while the other's are added up.
    sizes = [sum(span.stop - span.start for span in leg.receives) for leg in reduce]
    places = (0, max(sizes[0::2], default=0))
    legs = [leg._replace(into=places[number % 2]) for number, leg in enumerate(reduce)]
    legs += [_leg(transfers, rank) for transfers in plan.copy]
    legs[1:] = [leg._replace(early=_early(leg, before)) for before, leg in pairwise(legs)]
    return RankProgram(plan.name, tuple(legs), places[1] + max(sizes[1::2], default=0))


def _early(leg: RankRound, before: RankRound) -> bool:
    """Whether a round's messages should be asked for during the round before it.

    Only those of ranks that send in that round too: they queue up behind what is still to come. Another rank's would
    take a share of a link from this round's. And not into what the round before adds, receives or passes on. What a
    reduce round sends cannot be hit: whoever knows the sum has already received what this rank adds to it.
    """
    if not {span.peer for span in leg.receives} <= {span.peer for span in before.receives}:
        return False
    if leg.into is not None:
        return True
    in_use = before.arrivals if before.into is not None else (*before.sends, *before.receives)
    return not any(mine.start < used.stop and used.start < mine.stop for mine in leg.receives for used in in_use)


def _leg(transfers: Round, rank: int) -> RankRound:
    travelling = messages(tuple(t for t in transfers if rank in (t.src, t.dst)))
    incoming = [m for m in travelling if m.dst == rank]
    begins: dict[Transfer, int] = {}
    offset = 0
    for message in incoming:
        # By its place in the round, since a plan may list parts of several messages in any order, and it matters.
        begins |= {part: offset + part.start - message.start for part in message.parts}
        offset += message.stop - message.start
    return RankRound(
        tuple(Span(m.dst, m.start, m.stop) for m in travelling if m.src == rank),
        tuple(Span(m.src, m.start, m.stop) for m in incoming),
        tuple(Incoming(t.start, t.stop, begins[t], t.fresh) for t in transfers if t.dst == rank),
        None,
        False,
    )


def run_program(
    course: RankProgram, flat: Tensor, scratch: Tensor, communicator: Metered, alone: bool = False
) -> Generator[Handle, Any, None]:
    """Sum `flat` over ranks in place; yields a handle per round.

    scratch  at least `course.scratch_items` elements of the same kind, free until the last round is done
    alone    no other rounds are under way between this sum's: then its messages are asked for a round ahead, so that
             they need not wait until the request has passed the link, behind what others of the same host send
    """
    incoming = [_incoming(leg, flat, scratch) for leg in course.legs]
    for number, leg in enumerate(course.legs):
        follows = alone and number + 1 < len(incoming) and course.legs[number + 1].early
        outgoing = [(span.peer, flat[span.start : span.stop]) for span in leg.sends]
        yield communicator.exchange(
            outgoing, incoming[number], flat.dtype, device=flat.device, ahead=incoming[number + 1] if follows else ()
        )
        if leg.into is not None:
            _add(leg, flat, scratch[leg.into :])


def _incoming(leg: RankRound, flat: Tensor, scratch: Tensor) -> list[Receive]:
    if leg.into is None:
        return [(span.peer, flat[span.start : span.stop]) for span in leg.receives]
    receives: list[Receive] = []
    offset = leg.into
    for span in leg.receives:
        receives.append((span.peer, scratch[offset : offset + span.stop - span.start]))
        offset += span.stop - span.start
    return receives


def _add(leg: RankRound, flat: Tensor, received: Tensor) -> None:
    for arrival in leg.arrivals:
        content = received[arrival.offset : arrival.offset + arrival.stop - arrival.start]
        place = flat[arrival.start : arrival.stop]
        place.copy_(content) if arrival.fresh else place.add_(content)


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
