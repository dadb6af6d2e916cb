"""Prices of requests on a topology: the third way to answer what a compressor asks, without moving data.

Up to MOST_RANKS ranks (at_scale.py) every request is priced by the plan that would serve it, beyond by its rounds.
"""

import functools
import math
from dataclasses import replace

from wirebench.collectives.execution.executor import Part
from wirebench.collectives.execution.segments import SEGMENT_BYTES, segments
from wirebench.collectives.plan import Collective, Plan, Transfer, gather_moves, root
from wirebench.collectives.ring import Ring
from wirebench.costmodel.plan_cost import native_seconds, pipelined_seconds, plan_seconds
from wirebench.costmodel.request_sizes import RequestSize
from wirebench.costmodel.round_cost import MOST_RANKS, RoundCost
from wirebench.gradient.requests import Gather, Merge, Reduce, Request, Route, Sum
from wirebench.gradient.schedule import Duration
from wirebench.topology.tree import Topology

LEAST_BYTES = 64.0
EVENLY = (1, 12, 840)
"""Numbers of parts that few segments share without a rest: all up to 8 of them, up to 4, or one alone."""


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
        large = formulas or topology.size > MOST_RANKS
        self._large = RoundCost(self._name, topology, segmented=not formulas) if large else None
        self._known: dict[tuple[type[Request], Part, float], float] = {}

    def seconds(self, asked: RequestSize) -> float:
        """Of one request."""
        return self._seconds(asked, "whole")

    def halves(self, asked: RequestSize) -> Duration:
        """Of a sum's reduce-scatter and of its all-gather, where a driver runs them apart.

        Segments of a long whole sum overlap from one part to the other, so that the parts may take up to twice as long.
        Other requests, and sums that the engine makes itself, have one part.
        """
        if asked.kind is not Sum or self._is_measured or self.topology.size == 1:
            return Duration(self.seconds(asked))
        return Duration(self._seconds(asked, "reduce"), self._seconds(asked, "copy") - self.call_seconds)

    def _seconds(self, asked: RequestSize, part: Part) -> float:
        if self.topology.size == 1:
            return 0.0
        # Whoever gathers waits for the longest message.
        num_bytes = max(asked.most_bytes if asked.kind is Gather else asked.num_bytes, LEAST_BYTES)
        if asked.kind in (Sum, Reduce) and not self._large and not self._is_measured:
            num_bytes = self._shared_out(num_bytes)
        key = (asked.kind, part, num_bytes)
        if key not in self._known:
            self._known[key] = self._price(*key)
        return self.call_seconds + self._known[key]

    @property
    def _is_measured(self) -> bool:
        """Whether sums are the engine's own, and measured."""
        return self._native and bool(self.topology.native)

    def _shared_out(self, num_bytes: float) -> float:
        """About as many bytes, in 4-byte items, which ranks and segments share without a rest: rounds are alike then.

        The largest chunk counts in every round, so few items are rounded up.
        """
        items, size, pieces = num_bytes / 4, self.topology.size, int(num_bytes // SEGMENT_BYTES)
        if pieces <= 8:
            pieces = max((count for count in EVENLY if 256 * count * size <= items), default=1)
        parts = size * pieces
        return 4.0 * parts * (math.ceil(items / parts) if pieces == 1 else round(items / parts))

    def _price(self, kind: type[Request], part: Part, num_bytes: float) -> float:
        if kind is Gather:
            return self._gather(num_bytes)
        if kind is Merge:
            return self._merge(num_bytes)
        if kind is Route:
            return self._route(num_bytes)
        if self._is_measured:
            return native_seconds(self.topology, num_bytes)
        return self._sum(num_bytes, "reduce" if kind is Reduce and self._has_root else part)

    @functools.cached_property
    def _has_root(self) -> bool:
        """Whether one rank has the whole sum after a plan's first part; else all get it where one is to (serve.py)."""
        few = self._collective.plan(Topology.flat(4), 64)
        return few is not None and root(few) is not None

    def _sum(self, num_bytes: float, part: Part) -> float:
        if self._large:
            return self._large.sum_seconds(num_bytes, part)
        items = max(1, round(num_bytes / 4))

        @functools.cache
        def whole(count: int) -> Plan:
            plan = self._collective.plan(self.topology, count)
            assert plan is not None, "a ring stands in for the engine's own"
            return plan

        def reduce(count: int) -> Plan:
            return replace(whole(count), copy=())

        # The all-gather is cut by the reduce-scatter (serve.py).
        cut = segments(whole if part == "whole" else reduce, self.topology, items, 4)
        plans = cut.plans
        if part == "copy":
            lengths = [segment.stop - segment.start for segment in cut.parts]
            copies = {length: replace(whole(length), reduce=()) for length in set(lengths)}
            plans = [copies[length] for length in lengths]
        return pipelined_seconds(plans, self.topology, num_bytes / items, cut.apart)

    def _gather(self, num_bytes: float) -> float:
        if self._large:
            return self._large.gather_seconds(num_bytes)
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
            return self._large.merge_seconds(num_bytes)
        plan = self._collective.plan(self.topology, 1)
        assert plan is not None
        return plan_seconds(plan, self.topology, num_bytes)

    def _route(self, num_bytes: float) -> float:
        size = self.topology.size
        if self._large:
            return self._large.route_seconds(num_bytes)
        pairs = [(src, dst) for src in range(size) for dst in range(size) if src != dst]
        rounds = (tuple(Transfer(src, dst, 0, 1) for src, dst in pairs),)
        return plan_seconds(Plan("pairs", (), rounds), self.topology, num_bytes / size)
