"""Prices of requests on a topology: the third way to answer what a compressor asks, without moving data.

Up to at_scale.MOST_RANKS ranks every request is priced by the plan that would serve it, beyond by the papers' formulas.
Prices are worked out at sizes a factor apart, and lie on straight lines in between.
"""

import functools
import math
from dataclasses import replace

from wirebench import at_scale
from wirebench.collectives.plan import Collective, Plan, Transfer, gather_moves
from wirebench.collectives.ring import Ring
from wirebench.collectives.segments import segments
from wirebench.cost import native_seconds, pipelined_seconds, plan_seconds
from wirebench.requests import Gather, Merge, Reduce, Request, Route
from wirebench.simulate_step import Duration
from wirebench.sizing import Asked
from wirebench.topology import Topology

FACTOR = math.sqrt(2)
LEAST_BYTES = 64.0


class Pricer:
    """Seconds of requests that `collective` serves on `topology`, whose links have speeds.

    name          of the collective: that of its plans
    call_seconds  what every request costs beyond that: copies, the engine's own handling
    formulas      price by the papers' formulas also where plans could be written down
    """

    def __init__(
        self, collective: Collective, name: str, topology: Topology, call_seconds: float = 0.0, formulas: bool = False
    ) -> None:
        self.topology, self.call_seconds = topology, call_seconds
        self._native = name == "native"
        # The engines' own algorithm is not ours to know: where it was not measured, it is taken for a ring.
        self._collective: Collective = Ring() if self._native else collective
        self._name = "ring" if self._native else name
        self._large = formulas or topology.size > at_scale.MOST_RANKS
        self._known: dict[tuple[type[Request], int], Duration] = {}

    def seconds(self, asked: Asked) -> Duration:
        """Of one request; the second number is what of it hands out sums that are added up (all others: 0)."""
        if self.topology.size == 1 or not asked.num_bytes:
            return Duration(0.0 if self.topology.size == 1 else self.call_seconds)
        place = max(0.0, math.log(asked.num_bytes / LEAST_BYTES, FACTOR))
        below = math.floor(place)
        low, high = self._at(asked.kind, below), self._at(asked.kind, below + 1)
        share = (asked.num_bytes / (LEAST_BYTES * FACTOR**below) - 1) / (FACTOR - 1) if place else 0.0
        first, second = (a + share * (b - a) for a, b in zip(low, high, strict=True))
        return Duration(self.call_seconds + first, second)

    def _at(self, kind: type[Request], step: int) -> Duration:
        if (kind, step) not in self._known:
            self._known[kind, step] = self._price(kind, LEAST_BYTES * FACTOR**step)
        return self._known[kind, step]

    def _price(self, kind: type[Request], num_bytes: float) -> Duration:
        if kind is Gather:
            return Duration(self._gather(num_bytes))
        if kind is Merge:
            return Duration(self._merge(num_bytes))
        if kind is Route:
            return Duration(self._route(num_bytes))
        if self._native and self.topology.native:
            return Duration(native_seconds(self.topology, num_bytes))
        whole, reduce = (self._sum(num_bytes, half) for half in (False, True))
        return Duration(reduce) if kind is Reduce else Duration(reduce, max(whole - reduce, 0.0))

    def _sum(self, num_bytes: float, half: bool) -> float:
        if self._large:
            return at_scale.sum_seconds(self._name, self.topology, num_bytes) / (2 if half else 1)
        items = max(1, round(num_bytes / 4))

        def plan_of(count: int) -> Plan | None:
            plan = self._collective.plan(self.topology, count)
            return replace(plan, copy=()) if plan is not None and half else plan

        cut = segments(plan_of, self.topology, items, 4)
        return pipelined_seconds(cut.plans, self.topology, num_bytes / items, cut.apart)

    def _gather(self, num_bytes: float) -> float:
        if self._large:
            return at_scale.gather_seconds(self._name, self.topology, num_bytes)
        return plan_seconds(self._gathering, self.topology, num_bytes)

    @functools.cached_property
    def _gathering(self) -> Plan:
        """An all-gather as a plan, of which an item is a rank's whole contribution; where they lie does not matter."""
        size = self.topology.size
        plan = self._collective.plan(self.topology, size)
        assert plan is not None, "a ring stands in for the engine's own"
        rounds = gather_moves(plan, size, self.topology.ranks)
        moved = (tuple(Transfer(move.src, move.dst, 0, len(move.origins)) for move in moves) for moves in rounds)
        return Plan(self._name, (), tuple(moved))

    def _merge(self, num_bytes: float) -> float:
        if self._native:
            return self._gather(num_bytes)  # engines have no merge of their own (collectives/serve.py)
        if self._large:
            return at_scale.merge_seconds(self._name, self.topology, num_bytes)
        plan = self._collective.plan(self.topology, 1)
        assert plan is not None
        return plan_seconds(plan, self.topology, num_bytes)

    def _route(self, num_bytes: float) -> float:
        size = self.topology.size
        if self._large:
            return at_scale.route_seconds(self.topology, num_bytes)
        pairs = [(src, dst) for src in range(size) for dst in range(size) if src != dst]
        rounds = (tuple(Transfer(src, dst, 0, 1) for src, dst in pairs),)
        return plan_seconds(Plan("pairs", (), rounds), self.topology, num_bytes / size)
