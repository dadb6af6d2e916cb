"""Merges: one indivisible message per rank, folded with the compressor's own function along a plan of one item."""

from collections.abc import Generator, Mapping
from typing import Any

from torch import Tensor

from wirebench.collectives.plan import Plan
from wirebench.comm.base import Handle
from wirebench.comm.metered import Metered
from wirebench.gradient.requests import Merge

Fold = Generator[Handle, Any, Tensor]
Counted = frozenset[tuple[int, int, int]]
"""(reduce round, source, receiver) of the merges that their receiver accounts for."""


def run_merge(plan: Plan, counted: Counted, request: Merge, communicator: Metered, position: Mapping[int, int]) -> Fold:
    """Run a plan over one indivisible item; the answer is the same on all ranks.

    counted   the merges that their receiver accounts for, as `accounted` gives them
    position  each rank's place in leaf order; the message from the lower place is the first argument of `combine`, on
              every rank. So two ranks that swap messages (recursive doubling) get the same bits
    """
    message, rank = request.message, communicator.rank
    for phase, rounds in (("reduce", plan.reduce), ("copy", plan.copy)):
        for number, transfers in enumerate(rounds):
            # The messages of a round are those held before it, so they are all posted before anything is folded.
            sends = [(t.dst, message.contiguous()) for t in transfers if t.src == rank]
            mine = [t for t in transfers if t.dst == rank]
            receives = [(t.src, None) for t in mine]
            received = yield communicator.exchange(sends, receives, message.dtype, True, message.device)
            for transfer, theirs in zip(mine, received, strict=True):
                if transfer.fresh or phase == "copy":
                    message = theirs  # nothing of this rank's to fold it with
                    continue
                combine = request.combine
                if request.accounting is not None and (number, transfer.src, rank) in counted:
                    combine = request.accounting
                first = position[transfer.src] < position[rank]
                message = combine(theirs, message) if first else combine(message, theirs)
    return message


def fold_all(messages: list[Tensor], request: Merge, rank: int) -> Tensor:
    """All ranks' messages, folded in rank order; every rank does it, and rank 0 accounts for it."""
    combine = request.combine if request.accounting is None or rank else request.accounting
    folded, *others = messages
    for message in others:
        folded = combine(folded, message)
    return folded


def accounted(plan: Plan, size: int) -> Counted:
    """The merges to account for: where several ranks fold the same two messages, the first of them only.

    A message is named by the ranks whose contributions it holds. In recursive doubling both partners of a swap fold the
    same two; counted twice, what they note could not be summed over ranks.
    """
    held = {rank: frozenset([rank]) for rank in range(size)}
    seen: set[frozenset[frozenset[int]]] = set()
    counted = set()
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
                counted.add((number, transfer.src, transfer.dst))
            held[transfer.dst] |= theirs
    return frozenset(counted)
