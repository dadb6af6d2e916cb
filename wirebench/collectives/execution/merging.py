"""Merges: a plan over one indivisible item, folded with the compressor's own function."""

from collections.abc import Generator, Mapping
from typing import Any

from torch import Tensor

from wirebench.collectives.plan import Plan
from wirebench.comm.base import Handle
from wirebench.comm.metered import Metered
from wirebench.gradient.requests import Merge

Fold = Generator[Handle, Any, Tensor]
Counted = frozenset[tuple[int, int, int]]


def run_merge(plan: Plan, counted: Counted, request: Merge, communicator: Metered, position: Mapping[int, int]) -> Fold:
    """Run a plan over one indivisible item; the answer is the same on all ranks.

    Of two messages the one of the rank with the lower `position` comes first: ranks that exchange theirs then fold the
    two in the same order.

    counted  the merges that their receiver accounts for, as `accounted` gives them
    """
    message, rank = request.message, communicator.rank
    for phase, rounds in (("reduce", plan.reduce), ("copy", plan.copy)):
        for number, transfers in enumerate(rounds):
            sends = [(t.dst, message.contiguous()) for t in transfers if t.src == rank]
            mine = [t for t in transfers if t.dst == rank]
            receives = [(t.src, None) for t in mine]
            received = yield communicator.exchange(sends, receives, message.dtype, True, message.device)
            for transfer, theirs in zip(mine, received, strict=True):
                if transfer.fresh or phase == "copy":
                    message = theirs
                    continue
                combine = request.combine
                if request.accounting is not None and (number, transfer.src, rank) in counted:
                    combine = request.accounting
                first = position[transfer.src] < position[rank]
                message = combine(theirs, message) if first else combine(message, theirs)
    return message


def fold_all(messages: list[Tensor], request: Merge, rank: int) -> Tensor:
    """Every rank folds all ranks' messages, in rank order; rank 0 accounts for it."""
    combine = request.combine if request.accounting is None or rank else request.accounting
    first, *others = messages
    for message in others:
        first = combine(first, message)
    return first


def accounted(plan: Plan, size: int) -> Counted:
    """(reduce round, source, receiver) of the merges that count: where several ranks fold the same two, the first."""
    held = {rank: frozenset([rank]) for rank in range(size)}
    seen: set[frozenset[frozenset[int]]] = set()
    found = set()
    for number, transfers in enumerate(plan.reduce):
        before = dict(held)
        for transfer in transfers:
            theirs = before[transfer.src]
            if transfer.fresh:
                held[transfer.dst] = theirs
                continue
            pair = frozenset([held[transfer.dst], theirs])
            if pair not in seen:
                seen.add(pair)
                found.add((number, transfer.src, transfer.dst))
            held[transfer.dst] |= theirs
    return frozenset(found)
