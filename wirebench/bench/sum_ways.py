"""Ways to sum in few bits: collectives whose plans have wire formats. `wirebench bench sums --help` describes them."""

import json
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from wirebench import collectives
from wirebench.collectives.plan import Plan
from wirebench.collectives.wire import Formatted
from wirebench.compressors.bits.coded import Coded
from wirebench.topology.tree import Topology

ITEMS = 16
"""Of a rank's share, in a plan that only shows who sends what."""
GROUP = 8
"""Ranks of a machine, where no topology says it."""


class Way(NamedTuple):
    """A way to sum: a collective with its options, and how its plan is coded.

    within   the format within machines; "": the same as between them
    gathers  False: the reduce half alone
    """

    name: str
    options: Mapping[str, Any] = MappingProxyType({})
    within: str = ""
    gathers: bool = True

    def formatted(self, code: Coded) -> Formatted:
        """The collective with its formats."""
        inside = Coded(self.within) if self.within else None  # type: ignore[arg-type]
        return Formatted(collectives.build(self.name, **self.options), code, inside)

    def plan(self, ranks: int, code: Coded, numel: int) -> Plan:
        """The plan of a sum of `numel` elements, a whole number of the code's units for each rank.

        All ranks are in one machine; where machines have a format of their own, in machines of `group_of` ranks.
        """
        each = group_of(ranks) if self.within else ranks
        made = self.formatted(code)
        return made.plan(Topology.parse("+".join([str(each)] * (ranks // each))), numel // made.unit)

    def on(self, topology: Topology, code: Coded) -> Plan:
        """The rounds on these ranks and machines, of a few items each; the reduce half alone if it does not gather."""
        plan = self.formatted(code).plan(topology, ITEMS * topology.size)
        return plan if self.gathers else replace(plan, copy=())

    def overrides(self, form: str) -> tuple[str, ...]:
        """The settings of a config that sum so in this format; none for a half, which is no config's."""
        if not self.gathers:
            return ()
        options = (f"collective.{key}={json.dumps(value)}" for key, value in self.options.items())
        within = (f"collective.wire_within={self.within}",) if self.within else ()
        return f"collective.name={self.name}", *options, f"collective.wire={form}", *within


WAYS = {
    "one_hop": Way("one_hop"),
    "scatter": Way("one_hop", gathers=False),
    "tree": Way("tree"),
    "ring": Way("ring"),
    "halving_doubling": Way("halving_doubling"),
    "hierarchical": Way("one_hop", {"levels": True}, within="bf16"),
}


def group_of(ranks: int) -> int:
    """Ranks of a machine, where no topology says it."""
    return min(GROUP, ranks // 2)
