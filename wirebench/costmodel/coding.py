"""What a plan's wire formats make ranks do: which rank codes and decodes how many items in each round.

It is the work of collectives/execution/coded.py. In the reduce half a sender codes each message, and its receiver
decodes it. In the copy half a rank codes the pieces of the sum that it has, before the first round, and every rank
decodes all pieces after the last one.
"""

from typing import NamedTuple, Protocol

from wirebench.collectives.plan import Plan, copied_pieces, messages, swapped


class Coding(Protocol):
    """Seconds of a rank's coding, by the format's name and the elements of a message."""

    def encode(self, form: str, numel: float) -> float:
        """Seconds to write a message of `numel` elements."""
        ...

    def decode(self, form: str, numel: float) -> float:
        """Seconds to read it and to add it to what is there, which no gamma of a topology counts again."""
        ...


class CodedItems(NamedTuple):
    """Items of a message that a rank codes, or decodes."""

    rank: int
    form: str
    items: int
    decodes: bool

    def seconds(self, coding: Coding, numel: float) -> float:
        """Seconds that this takes, if an item has `numel` elements."""
        return (coding.decode if self.decodes else coding.encode)(self.form, self.items * numel)


def coded_items(plan: Plan) -> list[list[CodedItems]]:
    """What ranks code and decode in each round of the plan; nothing where it has no wire format."""
    rounds: list[list[CodedItems]] = [[] for _ in range(plan.rounds)]
    wire = plan.wire
    if wire is None:
        return rounds
    for found, transfers in zip(rounds, plan.reduce, strict=False):
        kept = swapped(transfers)
        for each in messages(transfers):
            form, items = wire.code(each.src, each.dst).name, each.stop - each.start
            found += [CodedItems(each.src, form, items, False), CodedItems(each.dst, form, items, True)]
            # A sender that adds to what it sent has to round it as its partner does.
            found += [CodedItems(each.src, form, items, True)] * (each in kept)
    for start, stop, receivers in copied_pieces(plan):
        for rank in range(len(wire.machines)):
            if rank not in receivers:
                rounds[len(plan.reduce)].append(CodedItems(rank, wire.between.name, stop - start, False))
            rounds[-1].append(CodedItems(rank, wire.between.name, stop - start, True))
    return rounds
