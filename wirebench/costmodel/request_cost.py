"""Seconds of a compressor's requests on a topology, without moving data.

Up to MOST_RANKS ranks (round_cost.py) a request is priced by the plan that would serve it (plan_cost.py). Beyond that
the number of its rounds and the size of their messages give the price: plans of thousands of ranks have too many
transfers.
"""

import functools
import math
from dataclasses import replace

from wirebench.collectives.execution.executor import Part
from wirebench.collectives.execution.segments import SEGMENT_BYTES, segments
from wirebench.collectives.plan import Collective, Move, Plan, Transfer, gather_moves, has_root
from wirebench.collectives.ring import Ring
from wirebench.collectives.rounds import ClusterShape, counts_of
from wirebench.collectives.wire import NO_PLAN, items_of, wire_of
from wirebench.costmodel.coding import Coding
from wirebench.costmodel.plan_cost import native_seconds, pipelined_seconds, plan_seconds, sent_bytes
from wirebench.costmodel.played_exchange import RequestSize
from wirebench.costmodel.round_cost import MOST_RANKS, RoundCost
from wirebench.errors import UserError
from wirebench.gradient.flat import FLOAT_BYTES
from wirebench.gradient.requests import Gather, Merge, Reduce, Request, Route, Sum
from wirebench.gradient.schedule import Duration
from wirebench.topology.tree import Topology

LEAST_BYTES = 64.0
"""The least that is priced; a message of less costs as much."""
LENGTH_BYTES = 8
EVENLY = (1, 12, 840)
"""Numbers of parts that divide evenly among 1 segment, among any number up to 4, and among any number up to 8."""


class Pricer:
    """Seconds of requests that `collective` serves on `topology`, whose links have speeds.

    call_seconds  what every request costs beyond that: copies, the engine's own handling
    formulas      price by the papers' formulas also where plans could be written down
    coding        of the collective's wire formats; None: it takes no time
    Raises UserError for wire formats on the engine's own all-reduce, and for too many ranks for plans and for the
    collective's rounds (collectives/rounds.py).
    """

    def __init__(
        self,
        collective: Collective,
        topology: Topology,
        call_seconds: float = 0.0,
        formulas: bool = False,
        coding: Coding | None = None,
    ) -> None:
        self.topology, self._coding = topology, coding
        # All ranks make a request at the same time; where they share cores they are in one another's way.
        own = topology.processor.call_seconds * topology.processor.crowded(topology.size)
        large = formulas or topology.size > MOST_RANKS
        counts = counts_of(collective, topology) if large else None
        self._native = counts is None if large else collective.plan(topology, topology.size) is None
        if self._native and wire_of(collective) is not None:
            raise UserError(NO_PLAN)
        # An engine gathers the lengths first, in a call of their own.
        self.call_seconds, self._gather_call = call_seconds + own, call_seconds + own * (2 if self._native else 1)
        # The engine's own algorithm is not known: where the topology has no measurement of it, it counts as a ring.
        self._collective: Collective = Ring() if self._native else collective
        kinds = topology.processor.by_kind(self._native)
        # A topology for each kind of request, whose messages cost the processors different work.
        self._sums, self._others = (
            topology if each == topology.processor else replace(topology, processor=each) for each in kinds
        )
        self._large: RoundCost | None = None
        if large:
            counts = counts or Ring().rounds(ClusterShape.of(topology))
            self._large = RoundCost(counts, topology, segmented=not formulas, kinds=kinds, coding=coding)
        self._known: dict[tuple[type[Request], Part, float, float], float] = {}
        self._asked: dict[tuple[RequestSize, Part], float] = {}
        self._share_of = functools.cache(self._coded_share)

    def seconds(self, request: RequestSize) -> float:
        """Seconds of one request."""
        return self._seconds(request, "whole")

    def halves(self, request: RequestSize) -> Duration:
        """Seconds of the two halves of a request: of a sum, its reduce-scatter and its all-gather.

        Segments of a long sum overlap from one half to the other, so that its halves, run apart, may take up to twice
        as long as the whole. Other requests, and sums by the engine's own all-reduce, have no halves: all of their
        seconds are in the first.
        """
        if request.kind is not Sum or self._is_measured or self.topology.size == 1:
            return Duration(self.seconds(request))
        # A request in two halves is one call, whose cost is in the first.
        return Duration(self._seconds(request, "reduce"), self._seconds(request, "copy") - self.call_seconds)

    def sent(self, request: RequestSize) -> float:
        """Bytes that a rank sends on average, sums in their wire format, if nothing travels twice."""
        sent = request.sent(self.topology.size)
        return sent * self._share_of(request.num_bytes) if sent and request.kind in (Sum, Reduce) else sent

    def _coded_share(self, num_bytes: float) -> float:
        """Bytes of a sum on the wire over its fp32 numbers', in all rounds together; zeros fill its last chunk."""
        wire = wire_of(self._collective)
        if wire is None:
            return 1.0
        items, item_bytes, _ = items_of(wire, max(1, round(num_bytes / FLOAT_BYTES)))
        padded = items * item_bytes / num_bytes
        if self._large:
            rounds = [(each.times * each.share, each.coded) for each in self._large.counts.sums]
            return padded * sum(share * coded for share, coded in rounds) / sum(share for share, _ in rounds)
        plan = wire.plan(self.topology, items)
        uncoded = sent_bytes(replace(plan, wire=None), item_bytes)
        return padded * sum(sent_bytes(plan, 0.0).values()) / sum(uncoded.values())

    def _seconds(self, request: RequestSize, part: Part) -> float:
        asked = (request, part)
        if asked not in self._asked:
            self._asked[asked] = self._counted(request, part)
        return self._asked[asked]

    def _counted(self, request: RequestSize, part: Part) -> float:
        if self.topology.size == 1:
            return 0.0
        num_bytes, most_bytes = max(request.num_bytes, LEAST_BYTES), max(request.most_bytes, LEAST_BYTES)
        if request.kind in (Sum, Reduce) and not self._large and not self._is_measured:
            num_bytes = self._even_bytes(num_bytes, max(math.ceil(request.num_bytes / request.item_bytes), 1))
        key = (request.kind, part, num_bytes, most_bytes if request.kind is Gather else num_bytes)
        if key not in self._known:
            self._known[key] = self._price(*key)
        call = self._gather_call if request.kind in (Gather, Merge) else self.call_seconds
        return call + self._known[key]

    @property
    def _is_measured(self) -> bool:
        """Whether sums are the engine's own all-reduce, and the topology has measurements of it."""
        return self._native and bool(self.topology.native)

    def _even_bytes(self, num_bytes: float, elements: int) -> float:
        """About as many bytes, in items that divide evenly among ranks and segments.

        Then all chunks, and so all rounds and segments, are alike: few distinct rounds have to be priced, and requests
        of nearly the same size have the same price, which is kept. Where ranks share cores, fewer elements than ranks
        are not rounded: an empty chunk sends no message, and takes no core's time. Elsewhere a round waits for its
        slowest message, however many there are, as in the rounds of more than MOST_RANKS ranks.
        """
        items, size, pieces = num_bytes / FLOAT_BYTES, self.topology.size, int(num_bytes // SEGMENT_BYTES)
        if self.topology.processor.cores and elements <= size:
            return float(FLOAT_BYTES) * elements
        if pieces <= 8:
            # At least 256 items for each rank and piece, so that this changes the size by a fraction of a percent.
            pieces = max((count for count in EVENLY if 256 * count * size <= items), default=1)
        parts = size * pieces
        # Few items are rounded up: the largest chunk of an uneven cut is what a round waits for.
        return float(FLOAT_BYTES) * parts * (math.ceil(items / parts) if pieces == 1 else round(items / parts))

    def _price(self, kind: type[Request], part: Part, num_bytes: float, most_bytes: float) -> float:
        if kind is Gather:
            return self._gather(num_bytes, most_bytes)
        if kind is Merge:
            return self._merge(num_bytes)
        if kind is Route:
            return self._route(num_bytes)
        if self._is_measured:
            return native_seconds(self.topology, num_bytes)
        return self._sum(num_bytes, "reduce" if kind is Reduce and self._has_root else part)

    @functools.cached_property
    def _has_root(self) -> bool:
        return has_root(self._collective)

    def _sum(self, num_bytes: float, part: Part) -> float:
        if self._large:
            return self._large.sum_seconds(num_bytes, part)
        items, _, sent_bytes = items_of(self._collective, max(1, round(num_bytes / FLOAT_BYTES)), FLOAT_BYTES)

        @functools.cache
        def whole(count: int) -> Plan:
            plan = self._collective.plan(self.topology, count)
            assert plan is not None, "a ring stands in for the engine's own"
            return plan

        def reduce(count: int) -> Plan:
            return replace(whole(count), copy=())

        # The executor cuts an all-gather into the segments of its reduce-scatter, which left the sums where they are.
        cut = segments(whole if part == "whole" else reduce, self.topology, items, sent_bytes)
        plans = cut.plans
        if part == "copy":
            lengths = [segment.stop - segment.start for segment in cut.parts]
            copies = {length: replace(whole(length), reduce=()) for length in set(lengths)}
            plans = [copies[length] for length in lengths]
        return pipelined_seconds(plans, self._sums, num_bytes / items, cut.apart, self._coding)

    def _gather(self, num_bytes: float, most_bytes: float) -> float:
        """An all-gather in which one rank hands over `most_bytes`, and all of them `num_bytes` on average.

        The longest message decides how long it takes. If no other rank sends, it also decides how busy the links are:
        the choice of one rank, which all others receive, goes down a tree once.
        """
        size = self.topology.size
        rest = max((size * num_bytes - most_bytes) / (size - 1), 1.0)
        if self._large:
            from_one = most_bytes > size / 2 * num_bytes and self._has_root
            large = self._large
            return large.sum_seconds(most_bytes, "copy") if from_one else large.gather_seconds(most_bytes)
        lengths = self._gathering(LENGTH_BYTES, LENGTH_BYTES) if self._native else Plan("", (), ())
        gathering = self._gathering(round(most_bytes), round(rest))
        return sum(plan_seconds(each, self._others, 1.0) for each in (lengths, gathering))

    def _gathering(self, longest: int, others: int) -> Plan:
        """An all-gather as a plan of copies, in which an item is a byte.

        longest  bytes that the first rank hands over, which has the sum wherever only one has it; others: all others
        Pricing counts a message's items and not where they lie, so every transfer begins at item 0.
        """
        lengths = [longest, *[others] * (self.topology.size - 1)]
        moved = (
            tuple(Transfer(move.src, move.dst, 0, sum(lengths[origin] for origin in move.origins)) for move in moves)
            for moves in self._moves
        )
        return Plan("", (), tuple(moved))

    @functools.cached_property
    def _moves(self) -> tuple[tuple[Move, ...], ...]:
        size = self.topology.size
        plan = self._collective.plan(self.topology, size)
        assert plan is not None, "a ring stands in for the engine's own"
        return gather_moves(plan, size, self.topology.ranks)

    def _merge(self, num_bytes: float) -> float:
        if self._native:
            return self._gather(
                num_bytes, num_bytes
            )  # engines have no merge: the executor gathers, then every rank folds
        if self._large:
            return self._large.merge_seconds(num_bytes)
        plan = self._collective.plan(self.topology, 1)
        assert plan is not None
        return plan_seconds(plan, self._others, num_bytes)

    def _route(self, num_bytes: float) -> float:
        size = self.topology.size
        if self._large:
            return self._large.route_seconds(num_bytes)
        pairs = [(src, dst) for src in range(size) for dst in range(size) if src != dst]
        rounds = (tuple(Transfer(src, dst, 0, 1) for src, dst in pairs),)
        return plan_seconds(Plan("pairs", (), rounds), self._others, num_bytes / size)
