"""Rounds in place of plans where there are too many ranks to write every transfer down.

A plan of thousands of ranks has millions of transfers in rounds that are all alike. Here a collective is a list of such
rounds (collectives/rounds.py): how many, how much a message carries, and how many messages share a machine's link. On
one rank per machine these are the papers' formulas; up to MOST_RANKS ranks the plans themselves are priced
(request_cost.py).

Of links of one level the slowest counts. Segments (collectives/execution/segments.py) count where messages are whole
sums, as in a tree and a star: one segment goes up while others come down. How near this comes to the plans' own prices
is in tests/costmodel/test_round_cost.py.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wirebench.collectives.execution.executor import Part
from wirebench.collectives.execution.segments import cut
from wirebench.collectives.rounds import ClusterShape, EqualRounds, RoundCounts
from wirebench.costmodel.coding import Coding
from wirebench.errors import UserError
from wirebench.gradient.flat import FLOAT_BYTES
from wirebench.topology.processor import ByKind, Processor
from wirebench.topology.tree import Branch, Topology

MOST_RANKS = 16


class _Costs(NamedTuple):
    """Seconds of a round: start-up of its messages, bytes on the slowest link, adding and what else bytes cost."""

    latency: float
    wire: float
    adding: float


class _Crossed(NamedTuple):
    """The links that a round's messages cross: their start-up time; of each, messages one after another, and rate."""

    latency: float
    ways: tuple[tuple[float, float], ...]


class RoundCost:
    """Seconds of a collective on a topology, by its rounds.

    counts     the collective's rounds
    segmented  cut large sums into segments, as in a run; without it sums cost what the papers' formulas give
    kinds      the topology's processor as each kind of request finds it; None: the same processor for all kinds
    coding     of wire formats; None: it takes no time
    Raises UserError for a topology with `shared`, `round_seconds` or cores that all ranks share.
    """

    def __init__(
        self,
        counts: RoundCounts,
        topology: Topology,
        segmented: bool = False,
        kinds: ByKind | None = None,
        coding: Coding | None = None,
    ) -> None:
        if topology.shared or topology.round_seconds or topology.processor.cores:
            raise UserError(
                f"no price for {topology.size} ranks of a topology with `shared`, `round_us` or `processor.cores`: "
                f"these are known for up to {MOST_RANKS}"
            )
        self.counts, self.topology, self.segmented, self._coding = counts, topology, segmented, coding
        self._kinds = kinds or ByKind(topology.processor, topology.processor)
        self._shape, levels = ClusterShape.of(topology), topology.levels
        self._local = _kinds(each for level in levels for each in level if isinstance(each.children[0], int))
        # Of each level above the machines: the links over which machines, racks and so on are left.
        above = [[each for each in level if isinstance(each.children[0], Branch)] for level in levels[1:]]
        self._network = [_kinds(each) for each in above]
        self._ways: dict[tuple[float, ...], _Crossed] = {}

    def sum_seconds(self, num_bytes: float, part: Part = "whole") -> float:
        """Seconds of an all-reduce of `num_bytes`, or of its reduce half or its copy half alone (`part`)."""
        rounds, sums = self.counts.sums, self._kinds.sums
        copying = 0.0 if part == "reduce" else self._copying(num_bytes)
        if part != "whole":
            return (
                self._seconds([each for each in rounds if each.adds == (part == "reduce")], num_bytes, sums) + copying
            )
        if not self.segmented or not self.counts.one_way:
            return self._seconds(rounds, num_bytes, sums) + copying
        segments = len(cut(max(1, round(num_bytes / 4)), 4, 1, in_turn=True))
        one = num_bytes / segments
        reduce = [each for each in rounds if each.adds]
        return self._seconds(rounds, one, sums) + (segments - 1) * self._busiest(reduce, one) + copying

    def _busiest(self, half: Sequence[EqualRounds], num_bytes: float) -> float:
        """How long the reduce half of a segment keeps the root busy: its link, or its starting and adding messages."""
        costs = [(each.times, self._costs(each, each.share * num_bytes, self._kinds.sums)) for each in half]
        wire = sum(times * cost.wire for times, cost in costs)
        return max(wire, sum(times * (cost.latency + cost.adding) for times, cost in costs))

    def _copying(self, num_bytes: float) -> float:
        """Coding of the copy half: a rank codes what it has of the sum, its least message, and decodes the whole."""
        copies = [each for each in self.counts.sums if not each.adds and each.times]
        if self._coding is None or not copies or not copies[0].form:
            return 0.0
        form, numel = copies[0].form, num_bytes / FLOAT_BYTES
        return self._coding.encode(form, min(each.share for each in copies) * numel) + self._coding.decode(form, numel)

    def gather_seconds(self, num_bytes: float) -> float:
        """Seconds of an all-gather of `num_bytes` from every rank."""
        return self._seconds(self.counts.gathers, num_bytes, self._kinds.others)

    def merge_seconds(self, num_bytes: float) -> float:
        """Seconds of a merge of one indivisible message of `num_bytes` from every rank."""
        return self._seconds(self.counts.merges, num_bytes, self._kinds.others)

    def route_seconds(self, num_bytes: float) -> float:
        """Seconds of an all-to-all in which a rank's parts for all ranks have `num_bytes` together."""
        ranks, each = self._shape.ranks, self._shape.each
        # Every rank sends to every rank outside of its group, whatever the order.
        leaving = tuple(size * (ranks - size) / max(ranks - each, 1) for size in self._shape.groups)
        inside, outside = EqualRounds(each - 1, 1 / ranks), EqualRounds(ranks - each, 1 / ranks, leaving)
        return self._seconds([inside, outside] if ranks > each else [inside], num_bytes, self._kinds.others)

    def _seconds(self, rounds: Sequence[EqualRounds], num_bytes: float, processor: Processor) -> float:
        return sum(each.times * sum(self._costs(each, each.share * num_bytes, processor)) for each in rounds)

    def _costs(self, each: EqualRounds, message_bytes: float, processor: Processor) -> _Costs:
        """A round's costs. A rank sends one message and receives one, so that its processor works at two ends."""
        sent_bytes = each.coded * message_bytes
        crossed = self._crossed(each.crossing, sent_bytes)
        wire = 0.0
        for messages, rate in crossed.ways:
            wire = max(wire, messages * sent_bytes / rate)
        adding = message_bytes * self.topology.reduce_seconds_per_byte if each.adds else 0.0
        if each.adds and each.form and self._coding is not None:  # decoding was measured with its adding
            numel = message_bytes / FLOAT_BYTES
            adding = self._coding.encode(each.form, numel) + self._coding.decode(each.form, numel)
        latency = crossed.latency + 2 * processor.message_seconds + processor.engine_round_seconds
        return _Costs(latency, wire, adding + 2 * sent_bytes * processor.seconds_per_byte)

    def _crossed(self, crossing: tuple[float, ...], message_bytes: float) -> _Crossed:
        """The links that a round's messages of this size cross; kept where links have one speed for all sizes."""
        if crossing in self._ways:
            return self._ways[crossing]
        links = [branch.link(message_bytes) for branch in self._local]
        ways = [(1.0, link.bytes_per_second) for link in links]
        for leaving, branches in zip(crossing, self._network, strict=False):
            if leaving:
                # The highest level that is crossed has the start-up time.
                links = [branch.link(message_bytes) for branch in branches]
                ways += [(link.busiest(leaving), link.bytes_per_second) for link in links]
        found = _Crossed(max(link.latency_seconds for link in links), tuple(ways))
        if all(len(branch.links) == 1 for level in (self._local, *self._network) for branch in level):
            self._ways[crossing] = found
        return found


def _kinds(branches: Iterable[Branch]) -> tuple[Branch, ...]:
    """One branch for each speed of links: of thousands of machines most are alike."""
    return tuple({branch.links: branch for branch in branches}.values())
