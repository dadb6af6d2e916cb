"""Rounds in place of plans where there are too many ranks to write every transfer down.

A plan of thousands of ranks has millions of transfers in rounds that are all alike. Here a collective is a list of such
rounds: how many, how much a message carries, and how many messages share a machine's link. On one rank per machine
these are the papers' formulas (formulas.py); up to MOST_RANKS ranks the plans themselves are priced (request_cost.py).

All machines count as large as the largest, and deeper trees as machines on one network, that of their slowest links.
Segments (collectives/execution/segments.py) count where messages are whole sums, in a tree and a star: one segment goes
up while others come down. How near this comes to the plans' own prices is in tests/costmodel/test_round_cost.py.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wirebench.collectives.execution.executor import Part
from wirebench.collectives.execution.segments import cut
from wirebench.costmodel import formulas
from wirebench.costmodel.round_counts import GATHERS, MERGES, SUMS, ClusterShape, Rounds
from wirebench.errors import UserError
from wirebench.topology.tree import Branch, Topology

MOST_RANKS = 16
WHOLE_MESSAGES = ("tree", "star")
"""Collectives whose every message is a whole sum, so that one half uses the other direction of the links."""


class _Costs(NamedTuple):
    """Seconds of a round: start-up of its messages, bytes on the slowest link, adding."""

    latency: float
    wire: float
    adding: float


class RoundCost:
    """Seconds of a collective on a topology, by its rounds.

    plan       the collective's name
    segmented  cut large sums into segments, as they are run; without it sums cost what the papers' formulas say
    Raises UserError for a collective without a list of rounds, and for a topology with `shared` or `round_seconds`.
    """

    def __init__(self, plan: str, topology: Topology, segmented: bool = False) -> None:
        if plan not in SUMS:
            raise UserError(f"no price of {plan!r} for {topology.size} ranks: its plan is priced up to {MOST_RANKS}")
        if topology.shared or topology.round_seconds:
            raise UserError(
                f"no price for {topology.size} ranks of a topology with `shared` or `round_seconds`: these are known "
                f"for up to {MOST_RANKS}"
            )
        self.plan, self.topology, self.segmented = plan, topology, segmented
        self.shape = ClusterShape(topology.size, len(topology.machines), max(map(len, topology.machines)))
        branches = topology.branches.values()
        self._local = _kinds(each for each in branches if any(isinstance(child, int) for child in each.children))
        self._network = _kinds(each for each in branches if any(isinstance(child, Branch) for child in each.children))

    def sum_seconds(self, num_bytes: float, part: Part = "whole") -> float:
        """Seconds of an all-reduce of `num_bytes`, or of its reduce half or its copy half alone (`part`)."""
        if self.plan == "flexreduce" and self.topology.degrees is None:
            return self._uneven(num_bytes, part)
        rounds = SUMS[self._rounds](self.shape)
        if part != "whole":
            return self._seconds([each for each in rounds if each.adds == (part == "reduce")], num_bytes)
        if not self.segmented or self.plan not in WHOLE_MESSAGES:
            return self._seconds(rounds, num_bytes)
        segments = len(cut(max(1, round(num_bytes / 4)), 4, 1, in_turn=True))
        one = num_bytes / segments
        return self._seconds(rounds, one) + (segments - 1) * self._busiest(rounds[: len(rounds) // 2], one)

    def _busiest(self, half: Sequence[Rounds], num_bytes: float) -> float:
        """How long the reduce half of a segment keeps the root busy: its link, or its starting and adding messages."""
        costs = [(each.times, self._costs(each, each.share * num_bytes)) for each in half]
        wire = sum(times * cost.wire for times, cost in costs)
        return max(wire, sum(times * (cost.latency + cost.adding) for times, cost in costs))

    def gather_seconds(self, num_bytes: float) -> float:
        """Seconds of an all-gather of `num_bytes` from every rank."""
        return self._seconds(GATHERS[self._rounds](self.shape), num_bytes)

    def merge_seconds(self, num_bytes: float) -> float:
        """Seconds of a merge of one indivisible message of `num_bytes` from every rank."""
        return self._seconds(MERGES[self._rounds](self.shape), num_bytes)

    def route_seconds(self, num_bytes: float) -> float:
        """Seconds of an all-to-all in which a rank's parts for all ranks have `num_bytes` together."""
        ranks, _, each = self.shape
        inside, outside = Rounds(each - 1, 1 / ranks), Rounds(ranks - each, 1 / ranks, each)
        return self._seconds([inside, outside] if ranks > each else [inside], num_bytes)

    @functools.cached_property
    def _rounds(self) -> str:
        """The collective whose rounds are run: BlueConnect, which cannot factor an asymmetric tree, is a ring there."""
        return "ring" if self.plan == "blueconnect" and self.topology.degrees is None else self.plan

    def _uneven(self, num_bytes: float, part: Part) -> float:
        """FlexReduce on an asymmetric tree, by its paper's formula, and the adding that the formula leaves out."""
        latency = max(branch.link(num_bytes / self.shape.ranks).latency_seconds for branch in self._network)
        half = formulas.flexreduce_seconds(num_bytes, self.topology, latency) / 2
        adding = (1 - 1 / self.shape.ranks) * num_bytes * self.topology.reduce_seconds_per_byte
        return {"reduce": half + adding, "copy": half, "whole": 2 * half + adding}[part]

    def _seconds(self, rounds: Sequence[Rounds], num_bytes: float) -> float:
        return sum(each.times * sum(self._costs(each, each.share * num_bytes)) for each in rounds if each.times)

    def _costs(self, each: Rounds, message_bytes: float) -> _Costs:
        links = [branch.link(message_bytes) for branch in self._local]
        wire = max(message_bytes / link.bytes_per_second for link in links)
        if each.crossing:
            links = [branch.link(message_bytes) for branch in self._network]
            wire = max(wire, *(each.crossing * message_bytes / link.bytes_per_second for link in links))
        adding = message_bytes * self.topology.reduce_seconds_per_byte if each.adds else 0.0
        return _Costs(max(link.latency_seconds for link in links), wire, adding)


def _kinds(branches: Iterable[Branch]) -> tuple[Branch, ...]:
    """One branch for each speed of links: of thousands of machines most are alike."""
    return tuple({branch.links: branch for branch in branches}.values())
