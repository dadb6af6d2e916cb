"""Prices of requests: those of the plans that would serve them."""

import itertools
import math
import random
from dataclasses import replace

import pytest

from wirebench import collectives
from wirebench.collectives.execution.segments import SEGMENT_BYTES, segments
from wirebench.collectives.plan import Plan, Transfer, gather_moves
from wirebench.costmodel.plan_cost import native_seconds, pipelined_seconds, plan_seconds
from wirebench.costmodel.played_exchange import RequestSize
from wirebench.costmodel.request_cost import Pricer
from wirebench.gradient.requests import Gather, Merge, Reduce, Request, Route, Sum
from wirebench.topology import presets
from wirebench.topology.processor import Processor
from wirebench.topology.tree import Link

NETWORK = presets.find("mgwfbp")
CLUSTERS = [(4, 1), (8, 1), (8, 2), (16, 4), (5, 3)]
NAMES = [name for name in collectives.available() if name != "native"]


def pricer_of(name: str, ranks: int, each: int = 1, **options) -> Pricer:
    return Pricer(collectives.build(name), presets.cluster(NETWORK, ranks, each), **options)


def request_size(kind: type[Request], num_bytes: float) -> RequestSize:
    return RequestSize(kind, num_bytes, num_bytes)


def served_seconds(pricer: Pricer, name: str, items: int) -> float:
    """As trial.predicted_seconds has it, and the executor cuts it."""
    collective = collectives.build(name)
    cut = segments(lambda count: collective.plan(pricer.topology, count), pricer.topology, items, 4)
    return pipelined_seconds(cut.plans, pricer.topology, 4, cut.apart)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_sum_costs_what_its_segments_cost(name: str, cluster: tuple[int, int]):
    pricer, rng = pricer_of(name, *cluster), random.Random(1)
    for items in (16 * 2**20, 840 * 16, *(int(2 ** rng.uniform(4, 24)) for _ in range(12))):
        exact = served_seconds(pricer, name, items)
        # Sizes that divide evenly among ranks and segments are priced as they are.
        off = 1e-9 if items in (16 * 2**20, 840 * 16) and pricer.topology.size in (4, 8, 16) else 0.02
        assert pricer.seconds(request_size(Sum, 4 * items)) == pytest.approx(exact, rel=off), items


def test_processors_work_differently_for_each_kind_of_request():
    """Wires that cost nothing: a length and a question precede what is merged or gathered; an engine's are cheap."""
    wire = presets.cluster(presets.Network(0.0, 1e18, ""), 2)
    work = Processor(call_seconds=100.0, message_seconds=1.0, engine_share=0.25, engine_round_seconds=7.0)

    def seconds(name: str, kind: type[Request], processor: Processor = work) -> float:
        pricer = Pricer(collectives.build(name), replace(wire, processor=processor))
        return pricer.seconds(request_size(kind, 64.0)) - pricer.call_seconds

    assert seconds("tree", Sum) == pytest.approx(2.0), "up and down, an end for each rank"
    assert seconds("tree", Merge) == pytest.approx(3 * 2)
    assert seconds("ring", Gather) == pytest.approx(3 * 2), "both ends of both messages"
    assert seconds("native", Gather) == pytest.approx(100 + 2 * (7 + 0.25 * 2)), "in two calls"
    assert seconds("native", Sum) == pytest.approx(2 * (7 + 0.25 * 2)), "two rounds of a ring"
    one_core = replace(work, cores=1.0)
    assert seconds("tree", Merge, one_core) == pytest.approx(3 * 2 * 2 * 2**-0.15), "the ends of both ranks"
    crowded = Pricer(collectives.build("tree"), replace(wire, processor=one_core))
    assert crowded.call_seconds == 200.0, "both ranks make the call at the same time"


@pytest.mark.parametrize("name", ["ring", "native"])
@pytest.mark.parametrize("items", [1, 2, 3, 4])
def test_a_chunk_without_elements_is_no_message(name: str, items: int):
    """Four ranks on two cores: every element makes three steps to be summed and three back, of two ends each."""
    wire = presets.cluster(presets.Network(0.0, 1e18, ""), 4)
    pricer = Pricer(collectives.build(name), replace(wire, processor=Processor(cores=2.0, message_seconds=1.0)))
    for item_bytes in (2, 4):
        size = RequestSize(Sum, item_bytes * items, item_bytes * items, item_bytes)
        assert pricer.seconds(size) == pytest.approx(6 * items * 2**-0.15)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_summed_costs_its_plan(name: str, cluster: tuple[int, int]):
    pricer = pricer_of(name, *cluster)
    topology, num_bytes = pricer.topology, 12345.0
    merge = collectives.build(name).plan(topology, 1)
    assert merge is not None
    assert pricer.seconds(request_size(Merge, num_bytes)) == pytest.approx(plan_seconds(merge, topology, num_bytes))
    whole = collectives.build(name).plan(topology, topology.size)
    assert whole is not None
    rounds = tuple(
        tuple(Transfer(move.src, move.dst, 0, len(move.origins)) for move in moves)
        for moves in gather_moves(whole, topology.size, topology.ranks)
    )
    gathered = plan_seconds(Plan(name, (), rounds), topology, num_bytes)
    assert pricer.seconds(request_size(Gather, num_bytes)) == pytest.approx(gathered)
    ranks = range(topology.size)
    pairs = tuple(Transfer(src, dst, 0, 1) for src in ranks for dst in ranks if src != dst)
    routed = plan_seconds(Plan("pairs", (), (pairs,)), topology, num_bytes / topology.size)
    assert pricer.seconds(request_size(Route, num_bytes)) == pytest.approx(routed)


def test_a_gather_waits_for_the_longest_message():
    pricer = pricer_of("ring", 4)
    assert pricer.seconds(RequestSize(Gather, 250.0, 1000.0)) == pricer.seconds(request_size(Gather, 1000.0))
    assert pricer.seconds(RequestSize(Sum, 1000.0, 4000.0)) == pricer.seconds(request_size(Sum, 1000.0))


@pytest.mark.parametrize("ranks", [4, 64])
def test_what_one_rank_alone_hands_over_goes_down_a_tree_once(ranks: int):
    message = NETWORK.latency_seconds + 1e6 / NETWORK.bytes_per_second
    alone = RequestSize(Gather, 1e6 / ranks, 1e6)
    assert pricer_of("tree", ranks).seconds(alone) == pytest.approx(math.log2(ranks) * message, rel=0.1)
    assert pricer_of("star", 4).seconds(RequestSize(Gather, 0.25e6, 1e6)) == pytest.approx(
        3 * message + NETWORK.latency_seconds, rel=0.1
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_halves_of_a_short_sum_are_the_whole(name: str):
    for ranks, each in CLUSTERS:
        pricer = pricer_of(name, ranks, each)
        halves = pricer.halves(request_size(Sum, 40_000))
        assert sum(halves) == pytest.approx(pricer.seconds(request_size(Sum, 40_000)))
        assert halves.copy_seconds > 0 or name == "recursive_doubling"
        # Segments of a long one are cut otherwise, and overlap from half to half.
        assert 0.9 < sum(pricer.halves(request_size(Sum, 2e7))) / pricer.seconds(request_size(Sum, 2e7)) < 2.01


def test_halves_of_a_long_sum_are_cut_as_a_job_would():
    pricer, tree, items = pricer_of("tree", 8), collectives.build("tree"), 8 * 840 * 100

    def reducing(count):
        plan = tree.plan(pricer.topology, count)
        assert plan is not None
        return replace(plan, copy=())

    cut = segments(reducing, pricer.topology, items, 4)
    assert len(cut.plans) > 1
    first, second = pricer.halves(request_size(Sum, 4 * items))
    assert first == pytest.approx(pipelined_seconds(cut.plans, pricer.topology, 4, cut.apart))
    copies = []
    for part in cut.parts:
        plan = tree.plan(pricer.topology, part.stop - part.start)
        assert plan is not None
        copies.append(replace(plan, reduce=()))
    assert second == pytest.approx(pipelined_seconds(copies, pricer.topology, 4, cut.apart))


def test_only_sums_have_halves():
    pricer = pricer_of("ring", 4, call_seconds=1.0)
    for kind in (Gather, Merge, Route, Reduce):
        assert pricer.halves(request_size(kind, 999)) == (pricer.seconds(request_size(kind, 999)), 0.0)
    halves, free = pricer.halves(request_size(Sum, 4000)), pricer_of("ring", 4).halves(request_size(Sum, 4000))
    assert halves.seconds == pytest.approx(free.seconds + 1.0), "a call is paid for once"
    assert halves.copy_seconds == pytest.approx(free.copy_seconds)


def test_one_rank_gets_a_sum_at_half_its_price_where_the_plan_has_a_root():
    for ranks in (8, 64):
        for name in ("tree", "star"):
            pricer = pricer_of(name, ranks)
            assert pricer.seconds(request_size(Reduce, 4000)) == pricer.halves(request_size(Sum, 4000)).seconds
        ring = pricer_of("ring", ranks)
        assert ring.seconds(request_size(Reduce, 4000)) == ring.seconds(request_size(Sum, 4000))


def test_the_engines_own_sum_is_what_was_measured_else_a_ring():
    topology = presets.cluster(NETWORK, 4)
    assert pricer_of("native", 4).seconds(request_size(Sum, 4e6)) == pricer_of("ring", 4).seconds(
        request_size(Sum, 4e6)
    )
    measured = replace(topology, native=(Link(1e-3, 1e9),))
    pricer = Pricer(collectives.build("native"), measured)
    assert native_seconds(measured, 1e6) == pytest.approx(1e-3 + 2 * 3 / 4 * 1e6 / 1e9)
    for kind in (Sum, Reduce):
        assert pricer.seconds(request_size(kind, 123_456)) == native_seconds(measured, 123_456)
    assert pricer.halves(request_size(Sum, 123_456)) == (native_seconds(measured, 123_456), 0.0)
    # Engines have no merge of their own: they gather.
    assert pricer.seconds(request_size(Merge, 5000)) == pricer.seconds(request_size(Gather, 5000))


def test_nobody_to_send_to_costs_nothing_and_nothing_to_send_a_start_up():
    assert pricer_of("ring", 1, call_seconds=1.0).seconds(request_size(Sum, 1e6)) == 0
    assert pricer_of("ring", 4).seconds(request_size(Gather, 0)) == pytest.approx(3 * NETWORK.latency_seconds, rel=0.01)


def test_every_call_costs_what_was_said():
    for kind in (Sum, Reduce, Gather, Merge, Route):
        plain, dearer = (
            pricer_of("tree", 8, call_seconds=each).seconds(request_size(kind, 1e5)) for each in (0.0, 0.25)
        )
        assert dearer - plain == pytest.approx(0.25)


def test_more_bytes_never_cost_less_by_more_than_a_segments_step():
    for name in NAMES:
        pricer = pricer_of(name, 8, 2)
        prices = [pricer.seconds(request_size(Sum, 1000 * 1.1**step)) for step in range(100)]
        assert all(later > 0.8 * earlier for earlier, later in itertools.pairwise(prices)), name
    assert 5 * SEGMENT_BYTES < 1000 * 1.1**99, "some of these are cut"


def test_up_to_sixteen_ranks_plans_beyond_their_rounds():
    few, many = (pricer_of("tree", ranks).seconds(request_size(Sum, 1e8)) for ranks in (16, 17))
    assert few < many < 1.4 * few, "the tree is one level deeper, and nothing jumps"
    formulas = pricer_of("tree", 16, formulas=True).seconds(request_size(Sum, 1e8))
    assert formulas > 1.4 * few, "the formulas know no segments, whose halves overlap"
