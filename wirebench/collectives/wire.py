"""A collective with a wire format for its messages: one description that is proved, priced and run.

What a rank sends is coded, and decoded where it arrives; sums are made in fp32. In the reduce half every message is
coded anew, so that a ring rounds a share at each hop and a direct exchange once. In the copy half each piece of the sum
is coded once, by the rank that has it, and passed on unchanged: all ranks decode the same message, that rank too, and
end with the same bits.
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from wirebench.collectives.plan import Code, Collective, Plan, Wire, swapped
from wirebench.config.plugins import note_options, options_of
from wirebench.errors import UserError
from wirebench.topology.tree import Topology

NO_PLAN = (
    "collective.wire: the engine's own all-reduce adds up what it sends, so that it takes no wire format; "
    "set collective.name=one_hop, or another plan"
)


class Formatted:
    """A collective whose plans have a wire format; an item of them stands for `unit` elements.

    inner    whose rounds they are
    between  code of messages between machines, and of the sum
    within   code of messages within a machine, before the sum is complete; None: the same
    """

    def __init__(self, inner: Collective, between: Code, within: Code | None = None) -> None:
        self.inner, self.between, self.within = inner, between, within or between

    @property
    def unit(self) -> int:
        """Elements that an item of its plans stands for."""
        return Wire(self.between, self.within, ()).unit

    @property
    def name(self) -> str:
        """The formats, in words."""
        return Wire(self.between, self.within, ()).name

    def plan(self, topology: Topology, items: int) -> Plan:
        """The inner collective's plan for `items` items, with its formats."""
        plan = self.inner.plan(topology, items)
        if plan is None:
            raise UserError(NO_PLAN)
        if self.within != self.between and any(map(swapped, plan.reduce)):
            raise UserError(
                f"collective.wire_within: in {plan.name} ranks swap sums, which all have to round alike; set "
                "collective.wire alone"
            )
        wire = Wire(self.between, self.within, _machines(topology))
        return replace(plan, name=f"{plan.name} in {wire.name}", wire=wire)


def formatted(collective: Collective, between: Code | None, within: Code | None = None) -> Collective:
    """The collective with these codes; itself without any. UserError where only one within machines is given."""
    if between is None:
        if within is not None:
            raise UserError("collective.wire_within: is the format within machines; set collective.wire, too")
        return collective
    made = Formatted(collective, between, within)
    # Ranks of a job compare what parts were built with.
    formats = {"inner": type(collective).__module__, "wire": made.between.name, "wire_within": made.within.name}
    note_options(made, {**options_of(collective), **formats})
    return made


def wire_of(collective: Collective) -> Formatted | None:
    """The collective as one with wire formats; None where items travel uncoded."""
    return collective if isinstance(collective, Formatted) else None


class Items(NamedTuple):
    """What the plans of a sum count: how many items it has, and the bytes of one, unformatted and on the wire."""

    number: int
    num_bytes: int
    sent_bytes: int


def items_of(collective: Collective, numel: int, element_bytes: int = 4) -> Items:
    """The items of a sum of `numel` elements; an item of a collective with wire formats holds several."""
    wire = wire_of(collective)
    if wire is None:
        return Items(numel, element_bytes, element_bytes)
    return Items(-(-numel // wire.unit), 4 * wire.unit, wire.between.num_bytes(wire.unit))


@lru_cache(maxsize=64)
def _machines(topology: Topology) -> tuple[int, ...]:
    """For each rank the number of its machine."""
    found = [0] * topology.size
    for number, ranks in enumerate(topology.machines):
        for rank in ranks:
            found[rank] = number
    return tuple(found)
