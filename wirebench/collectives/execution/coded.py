"""A plan with a wire format as one rank runs it: what it sends is coded, what it receives decoded, sums are fp32.

The reduce half codes every message anew. In the copy half a rank codes the pieces of the sum that it has, once, and
messages are whole pieces, passed on as they came; then it decodes all pieces, its own too. Bytes of pieces lie in a
buffer in their order, so that the copy half equals a plan's whose items are bytes.
"""

from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wirebench.collectives.execution.program import RankProgram, RankRound, Span, program_of, run_program
from wirebench.collectives.plan import Code, Plan, Transfer, Wire, copied_pieces, copy_bounds, swapped
from wirebench.comm.base import Handle
from wirebench.comm.metered import Metered


class CodedPiece(NamedTuple):
    """Items [start, stop), coded in the bytes [begin, end) of the copy half's buffer."""

    start: int
    stop: int
    begin: int
    end: int


class Sent(NamedTuple):
    """A message of the reduce half. `kept`: the sender adds to what it sent, and so has to round it as its partner."""

    span: Span
    kept: bool


class CodedProgram(NamedTuple):
    """One rank's part of a plan with a wire format.

    reduce  its rounds; sends: for each of them the messages, in the order of `RankRound.sends`
    pieces  of the copy half, all of them; own: those that this rank codes, as it has them first
    copy    the rounds of the copy half, whose items are bytes of the pieces' buffer
    """

    name: str
    rank: int
    wire: Wire
    reduce: tuple[RankRound, ...]
    sends: tuple[tuple[Sent, ...], ...]
    pieces: tuple[CodedPiece, ...]
    own: tuple[CodedPiece, ...]
    copy: RankProgram


def coded_program_of(plan: Plan, rank: int) -> CodedProgram:
    """Rank `rank`'s part of `plan`, which has a wire format."""
    assert plan.wire is not None, "a plan with a wire format"
    whole = program_of(plan, rank)
    reduce = whole.rounds[: len(plan.reduce)]
    bounds = copy_bounds(plan)
    lengths = [plan.wire.between.num_bytes((stop - start) * plan.wire.unit) for start, stop in pairwise(bounds)]
    places = [0, *accumulate(lengths)]
    pieces = tuple(CodedPiece(*span, *place) for span, place in zip(pairwise(bounds), pairwise(places), strict=True))
    at = dict(zip(bounds, places, strict=False))
    copy = tuple(tuple(Transfer(t.src, t.dst, at[t.start], at[t.stop]) for t in transfers) for transfers in plan.copy)
    own = tuple(each for each, (*_, comes_to) in zip(pieces, copied_pieces(plan), strict=True) if rank not in comes_to)
    swaps = [{Span(m.dst, m.start, m.stop) for m in swapped(each) if m.src == rank} for each in plan.reduce]
    sends = tuple(
        tuple(Sent(span, span in kept) for span in each.sends) for each, kept in zip(reduce, swaps, strict=True)
    )
    bytewise = program_of(replace(plan, reduce=(), copy=copy, wire=None), rank)
    return CodedProgram(plan.name, rank, plan.wire, reduce, sends, pieces, own, bytewise)


def run_coded(
    program: CodedProgram, flat: Tensor, communicator: Metered, alone: bool = False
) -> Generator[Handle, Any, None]:
    """Sum fp32 `flat`, (n,), over ranks in place, n being a few elements less than the plan's items have at most.

    alone  as of `run_program`
    """
    wire = program.wire
    coming = _buffers(program, 0, flat)
    for number, this in enumerate(program.reduce):
        outgoing = [(sent.span.peer, _coded(program, sent, flat)) for sent in program.sends[number]]
        following = _buffers(program, number + 1, flat)
        ahead = following if alone and following and program.reduce[number + 1].early else []
        yield communicator.exchange(outgoing, coming, torch.uint8, device=flat.device, ahead=ahead)
        _add(program, this, [message for _, message in coming], flat)
        coming = following
    if not program.pieces:
        return
    buffer = flat.new_empty(program.pieces[-1].end, dtype=torch.uint8)
    for piece in program.own:
        mine = _elements(flat, piece.start, piece.stop, wire)
        buffer[piece.begin : piece.end] = wire.between.encode(mine, (piece.stop - piece.start) * wire.unit)
    yield from run_program(program.copy, buffer, buffer[:0], communicator, alone)
    for piece in program.pieces:
        message = buffer[piece.begin : piece.end]
        # Codes read scales of four bytes, which kernels want at such places.
        message = message.clone() if piece.begin % 4 else message
        wire.between.decode([message], _elements(flat, piece.start, piece.stop, wire))


def _buffers(program: CodedProgram, number: int, flat: Tensor) -> list[tuple[int, Tensor]]:
    """What a round's messages are received into; nothing behind the last round."""
    if number >= len(program.reduce):
        return []
    return [
        (span.peer, flat.new_empty(_num_bytes(program.wire, span.peer, program.rank, span), dtype=torch.uint8))
        for span in program.reduce[number].receives
    ]


def _num_bytes(wire: Wire, src: int, dst: int, span: Span) -> int:
    return wire.code(src, dst).num_bytes((span.stop - span.start) * wire.unit)


def _elements(flat: Tensor, start: int, stop: int, wire: Wire) -> Tensor:
    """The elements of items; the last item may have fewer."""
    return flat[start * wire.unit : stop * wire.unit]


def _coded(program: CodedProgram, sent: Sent, flat: Tensor) -> Tensor:
    """The message; what its sender uses once more is as its receiver has it."""
    wire, (peer, start, stop) = program.wire, sent.span
    code, values = wire.code(program.rank, peer), _elements(flat, start, stop, wire)
    message = code.encode(values, (stop - start) * wire.unit)
    if sent.kept:
        code.decode([message], values)
    return message


def _add(program: CodedProgram, this: RankRound, messages: Sequence[Tensor], flat: Tensor) -> None:
    """Add what came to `flat`, or overwrite, in the order of the plan's transfers."""
    wire = program.wire
    places = [0, *accumulate(span.stop - span.start for span in this.receives)]
    arrived = flat.new_empty(places[-1] * wire.unit)
    for span, place, message in zip(this.receives, places, messages, strict=False):
        code: Code = wire.code(span.peer, program.rank)
        code.decode([message], _elements(arrived, place, place + span.stop - span.start, wire))
    for part in this.incoming:
        mine = _elements(flat, part.start, part.stop, wire)
        content = arrived[part.offset * wire.unit :][: mine.numel()]
        mine.copy_(content) if part.fresh else mine.add_(content)
