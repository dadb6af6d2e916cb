"""What sums in segments cost: side by side, and in turn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.costmodel.test_plan_cost import ALPHA, BETA, GAMMA, ITEM_BYTES, close, flat, planned, two_levels
from tests.helpers import examples
from wirebench.collectives.execution.segments import IN_FLIGHT
from wirebench.collectives.plan import Plan, Transfer
from wirebench.costmodel.plan_cost import pipelined_seconds, plan_seconds
from wirebench.topology.tree import Link, Topology


def test_one_segment_costs_its_price():
    topology = two_levels((2, 3))
    plan = planned("flexreduce", topology, 600)
    assert pipelined_seconds([plan], topology, 4) == close(plan_seconds(plan, topology, 4))


@pytest.mark.parametrize("count", [2, 3])
def test_further_segments_cost_the_bottleneck(count):
    """A tree of two ranks: each direction of a link is busy in one of its two rounds."""
    topology = flat(2)
    plan = planned("tree", topology, 1_000_000)
    wire = 1_000_000 * ITEM_BYTES * BETA
    first = 2 * ALPHA + 2 * wire + 1_000_000 * ITEM_BYTES * GAMMA
    assert pipelined_seconds([plan] * count, topology, ITEM_BYTES) == close(first + (count - 1) * wire)


def test_adding_can_be_the_bottleneck():
    topology = flat(2, gamma=3 * BETA)
    plan = planned("tree", topology, 1000)
    price = plan_seconds(plan, topology, 1)
    assert pipelined_seconds([plan] * 3, topology, 1) == close(price + 2 * (ALPHA + 3000 * BETA))


@pytest.mark.parametrize(("name", "apart", "crossings"), [("flexreduce", 2, 14), ("flexreduce", 4, 14), ("tree", 1, 8)])
def test_segments_in_turn_keep_the_slow_links_busy(name: str, apart: int, crossings: int) -> None:
    """Seven segments. Rounds within machines are free here, and hidden; a tree's rounds up and down pass each other."""
    topology = Topology.parse("2+2").with_links([Link(0.0, 1e15), Link(0.0, 1 / BETA)])
    plan = planned(name, topology, 1000)
    crossing = plan_seconds(plan, topology, 4) / 2
    assert pipelined_seconds([plan] * 7, topology, 4, apart) == pytest.approx(crossings * crossing, rel=1e-6)


def test_a_step_takes_as_long_as_its_longest_round_or_its_busiest_resource() -> None:
    topology = Topology.parse("2+2").with_links([Link(1.0, 1e15), Link(3.0, 1e15)])
    within = (Transfer(0, 1, 0, 1), Transfer(2, 3, 0, 1))
    between = (Transfer(0, 2, 0, 1),)
    plan = Plan("p", (within, between), ())
    # Rank 0 starts both: with the second segment's first round it is busy for four seconds.
    assert pipelined_seconds([plan] * 3, topology, 4, apart=1) == pytest.approx(1 + 4 + 4 + 3)


def test_few_places_hold_back_what_waits_for_messages():
    """Rounds that wait and carry nothing to speak of: as many at a time as there are places."""
    topology = Topology(flat(2, link=Link(0.0, 1e12)).root, round_seconds=1.0)
    plan = planned("tree", topology, 1)
    assert pipelined_seconds([plan] * 9, topology, 4) == pytest.approx(3 * 2.0)


@examples(40)
@given(st.integers(2, 12), st.integers(1, 6), st.integers(0, 6), st.sampled_from(["ring", "tree", "halving_doubling"]))
def test_the_pipeline_lies_between_its_bounds(size, count, apart, name):
    topology = flat(size)
    plan = planned(name, topology, 5 * size)
    price = plan_seconds(plan, topology, ITEM_BYTES)
    piped = pipelined_seconds([plan] * count, topology, ITEM_BYTES, apart)
    assert price * (1 - 1e-9) <= piped <= count * price * (1 + 1e-9)
    if not apart:
        assert count * price / IN_FLIGHT * (1 - 1e-9) <= piped
