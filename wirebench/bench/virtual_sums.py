"""Sums on virtual ranks: a plan with wire formats, run on a matrix that has a gradient in each row.

The plan is the one that a job runs (collectives/execution/coded.py), and the bits are the same. Here all messages of a
round that are of one length are coded at once, so that 64 ranks take no longer than their numbers do.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

import torch
from torch import Tensor

from wirebench.collectives.plan import Code, Message, Plan, Wire, copied_pieces, messages, swapped

Each = TypeVar("Each")
Key = TypeVar("Key", bound=Hashable)
Sending = Callable[[Code, Tensor], Tensor]
"""What arrives of messages of one length in one format, (messages, elements), given what is sent."""


def coded_sum(plan: Plan, grads: Tensor, gathers: bool = True) -> Tensor:
    """The sum that all ranks end with, fp32 (n,), of fp32 gradients, (ranks, n), whose length the plan's items fill.

    gathers  False: the reduce half alone; each share is as the rank has it that adds it up, in fp32
    """
    held = grads.clone()
    _reduce(plan, held, through)
    return _gathered(plan, held, through if gathers else lambda code, values: values)


class Energies:
    """Squares of all that a plan codes, summed up; of exact sums, in fp64.

    within   of messages in the format within machines, where the plan has one of its own; between: of all others, the
             copies of the sum among them
    """

    def __init__(self, plan: Plan, grads: Tensor, gathers: bool = True) -> None:
        self.within = self.between = 0.0
        self._between = _wire(plan).between
        held = grads.double()
        _reduce(plan, held, self._add)
        if gathers:
            _gathered(plan, held, self._add)

    def _add(self, code: Code, values: Tensor) -> Tensor:
        energy = float(values.square().sum())
        if code == self._between:
            self.between += energy
        else:
            self.within += energy
        return values


def through(code: Code, values: Tensor) -> Tensor:
    """What arrives of messages of one length, fp32 (messages, elements), coded each for itself."""
    message = code.encode(values.reshape(-1), values.numel(), len(values))
    return code.decode(message.chunk(len(values)), torch.empty(values.numel())).view_as(values)


def _reduce(plan: Plan, held: Tensor, send: Sending) -> None:
    """Run the reduce half on what the ranks hold, (ranks, n)."""
    wire = _wire(plan)
    for transfers in plan.reduce:
        travelling = messages(transfers)
        arrived: dict[Message, Tensor] = {}
        by_kind = _alike(travelling, lambda each: (wire.code(each.src, each.dst), each.stop - each.start))
        for (code, _), alike in by_kind.items():
            values = torch.stack([_items(held[each.src], each.start, each.stop, wire) for each in alike])
            arrived |= zip(alike, send(code, values), strict=True)
        for each in swapped(transfers):
            _items(held[each.src], each.start, each.stop, wire).copy_(arrived[each])
        message_of = {part: each for each in travelling for part in each.parts}
        for part in transfers:
            message = message_of[part]
            content = _items(arrived[message], part.start - message.start, part.stop - message.start, wire)
            place = _items(held[part.dst], part.start, part.stop, wire)
            place.copy_(content) if part.fresh else place.add_(content)


def _gathered(plan: Plan, held: Tensor, send: Sending) -> Tensor:
    """What a rank ends with, given what the ranks hold after the reduce half; without a copy half all hold the sum."""
    wire, total = _wire(plan), held[0].clone()
    everyone = set(range(len(held)))
    pieces = [(min(everyone - receivers), (start, stop)) for start, stop, receivers in copied_pieces(plan)]
    for alike in _alike(pieces, lambda piece: piece[1][1] - piece[1][0]).values():
        values = torch.stack([_items(held[owner], *span, wire) for owner, span in alike])
        for (_, span), content in zip(alike, send(wire.between, values), strict=True):
            _items(total, *span, wire).copy_(content)
    return total


def _alike(each: Iterable[Each], key: Callable[[Each], Key]) -> dict[Key, list[Each]]:
    """Sort things by their key."""
    found: defaultdict[Key, list[Each]] = defaultdict(list)
    for one in each:
        found[key(one)].append(one)
    return found


def _items(vector: Tensor, start: int, stop: int, wire: Wire) -> Tensor:
    return vector[start * wire.unit : stop * wire.unit]


def _wire(plan: Plan) -> Wire:
    assert plan.wire is not None, "a plan with wire formats"
    return plan.wire
