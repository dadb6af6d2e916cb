"""Rounds in place of plans: against the papers' formulas on one rank per machine, and against priced plans."""

import dataclasses
from collections import Counter

import pytest

from tests.costmodel import closed_forms
from tests.costmodel.test_request_cost import NAMES, pricer_of, request_size
from wirebench import collectives
from wirebench.collectives.plan import Plan, Transfer, mirror, rounds_of
from wirebench.collectives.rounds import counts_of, read_off
from wirebench.costmodel import request_cost
from wirebench.costmodel.plan_cost import plan_seconds
from wirebench.costmodel.request_cost import Pricer
from wirebench.costmodel.round_cost import RoundCost
from wirebench.errors import UserError
from wirebench.gradient.requests import Gather, Merge, Route, Sum
from wirebench.topology import presets
from wirebench.topology.processor import Processor
from wirebench.topology.tree import Link, Topology

NETWORK = presets.find("mgwfbp")
FULL = [(8, 1), (12, 1), (16, 1), (8, 2), (16, 2), (12, 2), (16, 4), (12, 4)]
"""Ranks, and ranks of a machine: all machines are full."""
NOT_FULL = [(14, 4), (7, 2), (10, 4)]
NUM_BYTES = (500.0, 64e3, 64e6)
ROUGH = {
    "halving_doubling": (0.8, 1.5),
    "blueconnect": (0.65, 1.1),
    "flexreduce": (0.5, 1.1),
    "recursive_doubling": (0.95, 1.2),
}
"""Gathers whose rounds are not alike, and their price over the plan's; all others are near 1."""


def by_rounds(name: str, topology: Topology, segmented: bool = False) -> RoundCost:
    """The price by the rounds that the collective lists; on 64 ranks at most by those read off its plan, if it ends so.

    "tree, read" is the tree's by its plan.
    """
    plain, _, read = name.partition(", ")
    collective = collectives.build(plain)
    counts = read_off(collective, topology) if read else counts_of(collective, topology)
    assert counts is not None
    return RoundCost(counts, topology, segmented)


def ratios(name: str, cluster: tuple[int, int]) -> dict[str, list[float]]:
    """Price by rounds over the plan's, unsegmented, at some sizes."""
    plans, topology = pricer_of(name.partition(", ")[0], *cluster), presets.cluster(NETWORK, *cluster)
    large, found = by_rounds(name, topology), {}
    sums = []
    for num_bytes in NUM_BYTES:
        items = round(num_bytes / 4)
        plan = collectives.build(name.partition(", ")[0]).plan(topology, items)
        assert plan is not None
        sums.append(large.sum_seconds(num_bytes) / plan_seconds(plan, topology, num_bytes / items))
    found["sum"] = sums
    by_kind = {Gather: large.gather_seconds, Merge: large.merge_seconds, Route: large.route_seconds}
    for kind, price in by_kind.items():
        found[kind.__name__.lower()] = [price(n) / plans.seconds(request_size(kind, n)) for n in NUM_BYTES]
    return found


@pytest.mark.sampled(6)
@pytest.mark.parametrize("cluster", FULL, ids=str)
@pytest.mark.parametrize("name", [*NAMES, *(f"{name}, read" for name in NAMES)])
def test_rounds_cost_what_plans_cost(name: str, cluster: tuple[int, int]):
    found = ratios(name, cluster)
    low, high = ROUGH.get(name, (0.98, 1.05))
    assert all(low < ratio < high for ratio in found.pop("gather")), "gather"
    # A star's messages from inside and outside overlap on the wire; here they do not.
    assert all(0.98 < ratio < 1.05 for each in found.values() for ratio in each), found


@pytest.mark.parametrize("cluster", [(8, 1), (12, 2), (16, 4)], ids=str)
@pytest.mark.parametrize(("name", "kinds"), [("tree", ("sums", "gathers", "merges")), ("flexreduce", ("sums",))])
def test_as_many_rounds_are_listed_as_a_plan_has(name: str, kinds: tuple[str, ...], cluster: tuple[int, int]):
    collective, topology = collectives.build(name), presets.cluster(NETWORK, *cluster)
    listed, plans = counts_of(collective, topology), read_off(collective, topology)
    for kind in kinds:
        mine, read = Counter[tuple[object, ...]](), Counter[tuple[object, ...]]()
        for found, rounds in ((mine, getattr(listed, kind)), (read, getattr(plans, kind))):
            for each in rounds:
                found[round(each.share, 9), tuple(filter(None, each.crossing)), each.adds] += each.times
        assert +mine == +read, kind


def test_on_an_uneven_tree_flexreduce_lists_twice_as_many_rounds_between_machines():
    clusters = (presets.cluster(NETWORK, *each) for each in ((10, 4), (8, 8)))
    uneven, alone = (counts_of(collectives.build("flexreduce"), each) for each in clusters)
    assert uneven is not None and alone is not None
    assert [(each.times, each.share) for each in uneven.sums] == [(3, 1 / 4), (4, 1 / 24)] * 2
    assert [(each.times, each.share) for each in uneven.gathers] == [(3, 1), (2, 1), (3, 3)]
    assert [(each.times, each.share) for each in alone.gathers] == [(7, 1)]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("cluster", NOT_FULL, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_machines_that_are_not_full_count_as_full(name: str, cluster: tuple[int, int]):
    found = ratios(name, cluster)
    assert all(0.4 < ratio < 1.9 for ratio in found.pop("gather")), "gather"
    assert all(0.5 < ratio < 1.75 for each in found.values() for ratio in each), found


RACKS = presets.Racks(4, oversubscription=4.0)
"""Of the 64 ranks of eight machines of 8: two racks."""


@pytest.mark.sampled(6)
@pytest.mark.parametrize("rails", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_three_levels_cost_what_plans_cost(name: str, rails: bool, monkeypatch: pytest.MonkeyPatch):
    topology = presets.cluster(NETWORK, 64, 8, RACKS, rails)
    assert topology.degrees == (8, 4, 2)
    large, collective = by_rounds(name, topology), collectives.build(name)
    plan = collective.plan(topology, 1024)
    assert plan is not None
    for num_bytes in NUM_BYTES:
        whole = plan_seconds(plan, topology, num_bytes / 1024)
        assert large.sum_seconds(num_bytes) == pytest.approx(whole, rel=0.02), num_bytes
    monkeypatch.setattr(request_cost, "MOST_RANKS", 64)
    plans, num_bytes = Pricer(collective, topology), 64e3
    prices = {Merge: large.merge_seconds, Route: large.route_seconds}
    prices |= {} if name in ROUGH and name != "recursive_doubling" else {Gather: large.gather_seconds}
    for kind, price in prices.items():
        assert price(num_bytes) == pytest.approx(plans.seconds(request_size(kind, num_bytes)), rel=0.02), kind


def test_rails_and_the_spine_matter_where_many_messages_leave():
    price = {
        (racks, rails): by_rounds("recursive_doubling", presets.cluster(NETWORK, 4096, 8, racks, rails)).sum_seconds(
            64e6
        )
        for racks in (None, presets.Racks(32, 1.0), presets.Racks(32, 8.0))
        for rails in (False, True)
    }
    flat, even, narrow = (price[racks, False] for racks in (None, presets.Racks(32, 1.0), presets.Racks(32, 8.0)))
    assert flat == pytest.approx(even) and narrow > 1.1 * even
    assert all(price[racks, True] < price[racks, False] for racks, _ in price)


@pytest.mark.parametrize("ranks", [2, 8, 12, 64, 4096])
def test_one_rank_per_machine_is_the_papers_formula(ranks: int):
    alpha, beta, gamma = NETWORK.latency_seconds, 1 / NETWORK.bytes_per_second, NETWORK.reduce_seconds_per_byte
    lines = {
        "ring": closed_forms.ring,
        "tree": closed_forms.binary_tree,
        "star": closed_forms.star,
        "recursive_doubling": closed_forms.recursive_doubling,
        "halving_doubling": closed_forms.halving_doubling,
    }
    for name, line in lines.items():
        large = by_rounds(name, presets.cluster(NETWORK, ranks))
        expected = line(ranks, alpha, beta, gamma).seconds(1e6)
        assert large.sum_seconds(1e6) == pytest.approx(expected), name
        halves = large.sum_seconds(1e6, "reduce") + large.sum_seconds(1e6, "copy")
        assert halves == pytest.approx(expected), name


@pytest.mark.sampled(10)
@pytest.mark.parametrize("cluster", [(8, 1), (16, 1), (8, 2), (16, 4)], ids=str)
@pytest.mark.parametrize("name", ["tree", "star", "ring", "halving_doubling"])
@pytest.mark.parametrize("num_bytes", [64e3, 4e6, 1e8])
def test_segments_of_large_sums_count(name: str, cluster: tuple[int, int], num_bytes: float):
    """Beyond 16 ranks nothing jumps: up to 16 both prices can be told."""
    topology = presets.cluster(presets.find("10gbe"), *cluster)
    plans, large = Pricer(collectives.build(name), topology), by_rounds(name, topology, segmented=True)
    assert large.sum_seconds(num_bytes) == pytest.approx(plans.seconds(request_size(Sum, num_bytes)), rel=0.2)


def test_rates_of_a_job_on_one_machine_are_not_known_of_many_ranks():
    plain = presets.cluster(NETWORK, 32)
    for more in ({"shared": (Link(0.0, 1e9),)}, {"round_seconds": 1e-4}, {"processor": Processor(cores=2)}):
        with pytest.raises(UserError, match="no price for 32 ranks of a topology with `shared`"):
            by_rounds("ring", dataclasses.replace(plain, **more))


@pytest.mark.parametrize("name", sorted(presets.NETWORKS))
def test_a_networks_rate_is_reached(name: str):
    network = presets.find(name)._replace(reduce_seconds_per_byte=0.0)
    pricer = Pricer(collectives.build("ring"), presets.cluster(network, 4))
    assert pricer.seconds(request_size(Sum, 4e9)) == pytest.approx(1.5 * 4e9 / network.bytes_per_second, rel=0.01)


@pytest.mark.parametrize("cluster", [(7, 2), (14, 4), (30, 4), (100, 8)], ids=str)
def test_on_an_uneven_tree_flexreduce_sends_more_messages_and_blueconnect_is_a_ring(cluster: tuple[int, int]):
    topology = presets.cluster(NETWORK, *cluster)
    large, blue, ring = (by_rounds(name, topology) for name in ("flexreduce", "blueconnect", "ring"))
    for num_bytes, low in ((1e3, 0.99), (64e3, 0.9), (1e8, 0.75)):
        items = round(num_bytes / 4)
        plan = collectives.build("flexreduce").plan(topology, items)
        assert plan is not None
        ratio = large.sum_seconds(num_bytes) / plan_seconds(plan, topology, num_bytes / items)
        assert low < ratio < 1.01, "ranks of the smallest machine add more than others"
    halves = large.sum_seconds(1e6, "reduce") + large.sum_seconds(1e6, "copy")
    assert halves == pytest.approx(large.sum_seconds(1e6))
    for price in ("sum_seconds", "gather_seconds", "merge_seconds"):
        assert getattr(blue, price)(1e6) == getattr(ring, price)(1e6)


def test_one_machine_alone_has_no_network():
    topology = Topology.flat(32, Link(1e-6, 1e9))
    assert by_rounds("ring", topology).sum_seconds(1e6) == pytest.approx(closed_forms.ring(32, 1e-6, 1e-9).seconds(1e6))
    for name in NAMES:
        large = by_rounds(name, topology)
        for price in (large.sum_seconds, large.gather_seconds, large.merge_seconds, large.route_seconds):
            assert 0 < price(1e6) < 10


class Chain:
    """A collective of one's own, which says nothing about its rounds."""

    def plan(self, topology: Topology, items: int) -> Plan:
        """All to the next rank, down and up again."""
        reduce = rounds_of([Transfer(r, r - 1, 0, items)] for r in range(topology.size - 1, 0, -1))
        return Plan("chain", reduce, mirror(reduce))


@pytest.mark.parametrize("cluster", [(17, 1), (64, 8), (1024, 8)], ids=str)
def test_a_collective_of_ones_own_is_priced_by_the_rounds_of_its_plan(cluster: tuple[int, int]):
    topology = presets.cluster(NETWORK, *cluster)
    pricer, plan = Pricer(Chain(), topology), Chain().plan(topology, 1)
    for kind in (Sum, Merge):
        assert pricer.seconds(request_size(kind, 64e3)) == pytest.approx(plan_seconds(plan, topology, 64e3), rel=0.02)
    assert pricer.seconds(request_size(Gather, 64e3)) > pricer.seconds(request_size(Merge, 64e3))


def test_a_plan_too_large_to_be_read_is_one_line():
    with pytest.raises(UserError, match="no price of Chain for 1025 ranks: its plan is read up to 1024"):
        Pricer(Chain(), presets.cluster(NETWORK, 1025))
