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
    """Items [start, stop) that lie `offset` items into what a round receives: to be added, or copied where `fresh`."""

    start: int
    stop: int
    offset: int
    fresh: bool


class RankRound(NamedTuple):
    """One rank's part of a round.

    sends, receives  messages, in the order in which they are posted
    incoming         what is done with the received items, in the order of the plan's transfers
    into             where what it receives begins in the scratch buffer; None in a copy round, which receives in place
    early            whether its receives may be posted while the round before is under way
    """

    sends: tuple[Span, ...]
    receives: tuple[Span, ...]
    incoming: tuple[Incoming, ...]
    into: int | None
    early: bool


class RankProgram(NamedTuple):
    """One rank's part of a plan; `scratch_items`: the most that it receives in two reduce rounds in a row."""

    name: str
    rounds: tuple[RankRound, ...]
    scratch_items: int


def program_of(plan: Plan, rank: int) -> RankProgram:
    """Rank `rank`'s part of `plan`."""
    reduce = [_rank_round(transfers, rank) for transfers in plan.reduce]
    # Reduce rounds use two parts of the scratch buffer in turn, so that one round's messages may arrive in one part
    # while the messages of the round before are added from the other.
    sizes = [sum(span.stop - span.start for span in each.receives) for each in reduce]
    parts = (0, max(sizes[0::2], default=0))
    rounds = [each._replace(into=parts[number % 2]) for number, each in enumerate(reduce)]
    rounds += [_rank_round(transfers, rank) for transfers in plan.copy]
    rounds[1:] = [each._replace(early=_early(each, before)) for before, each in pairwise(rounds)]
    return RankProgram(plan.name, tuple(rounds), parts[1] + max(sizes[1::2], default=0))


def _early(this: RankRound, before: RankRound) -> bool:
    """Whether the receives of `this` round may be posted while the round `before` is under way.

    Only if all its senders also send in the round before: then their messages queue behind that round's messages. The
    message of another rank would share a link with them, and delay them.
    And only if no receive goes into memory that the round before still uses: memory that it adds to, receives into or,
    as a copy round, sends from. A copy round may overwrite the memory that a reduce round sends from: a rank that sends
    a sum has already received this rank's contribution to it.
    """
    if not {span.peer for span in this.receives} <= {span.peer for span in before.receives}:
        return False
    if this.into is not None:
        return True
    in_use = before.incoming if before.into is not None else (*before.sends, *before.receives)
    return not any(mine.start < used.stop and used.start < mine.stop for mine in this.receives for used in in_use)


def _rank_round(transfers: Round, rank: int) -> RankRound:
    """A round as `rank` sees it; `into` and `early` depend on other rounds, and are filled in by the caller."""
    travelling = messages(tuple(t for t in transfers if rank in (t.src, t.dst)))
    received = [m for m in travelling if m.dst == rank]
    begins: dict[Transfer, int] = {}
    offset = 0
    for message in received:
        begins |= {part: offset + part.start - message.start for part in message.parts}
        offset += message.stop - message.start
    return RankRound(
        tuple(Span(m.dst, m.start, m.stop) for m in travelling if m.src == rank),
        tuple(Span(m.src, m.start, m.stop) for m in received),
        # In the order of the plan, not of the messages: floats are added in this order, and a fresh part, whichever
        # message brings it, must be copied before others are added to it.
        tuple(Incoming(t.start, t.stop, begins[t], t.fresh) for t in transfers if t.dst == rank),
        into=None,
        early=False,
    )


def run_program(
    program: RankProgram, flat: Tensor, scratch: Tensor, communicator: Metered, alone: bool = False
) -> Generator[Handle, Any, None]:
    """Sum `flat`, shape (items,), over ranks in place; yields a handle per round.

    scratch  at least `program.scratch_items` elements of the same dtype and device, free until the last round is done
    alone    no other call of this rank comes between the rounds: then the receives of a round are posted a round ahead
             where they may be. Gloo sends a message when its receiver has asked for it; asked for only in its own
             round, it would wait until the request has passed the link, behind what others of the same host send
    """
    receives = [_receives(each, flat, scratch) for each in program.rounds]
    for number, this in enumerate(program.rounds):
        ahead = alone and number + 1 < len(receives) and program.rounds[number + 1].early
        outgoing = [(span.peer, flat[span.start : span.stop]) for span in this.sends]
        yield communicator.exchange(
            outgoing, receives[number], flat.dtype, device=flat.device, ahead=receives[number + 1] if ahead else ()
        )
        if this.into is not None:
            _add(this, flat, scratch[this.into :])


def _receives(this: RankRound, flat: Tensor, scratch: Tensor) -> list[Receive]:
    """The target of each message of a round: the scratch buffer in a reduce round, its own place in a copy round."""
    if this.into is None:
        return [(span.peer, flat[span.start : span.stop]) for span in this.receives]
    receives: list[Receive] = []
    offset = this.into
    for span in this.receives:
        receives.append((span.peer, scratch[offset : offset + span.stop - span.start]))
        offset += span.stop - span.start
    return receives


def _add(this: RankRound, flat: Tensor, received: Tensor) -> None:
    for part in this.incoming:
        content = received[part.offset : part.offset + part.stop - part.start]
        place = flat[part.start : part.stop]
        place.copy_(content) if part.fresh else place.add_(content)


class Scratch:
    """Buffers to receive into, kept from one sum to the next: fresh memory costs as much as the adding."""

    def __init__(self) -> None:
        self._free: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}

    def take(self, numel: int, like: Tensor) -> Tensor:
        """A buffer of at least `numel` elements of `like`'s dtype, on its device; `give_back` returns it."""
        shelf = self._free.setdefault((like.dtype, like.device), [])
        buffer = shelf.pop() if shelf else like.new_empty(0)
        return buffer if buffer.numel() >= numel else like.new_empty(numel)

    def give_back(self, buffer: Tensor) -> None:
        """Let the buffer be taken again."""
        self._free[buffer.dtype, buffer.device].append(buffer)
