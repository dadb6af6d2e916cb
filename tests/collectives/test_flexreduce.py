"""FlexReduce's plan: its traffic on every link, beside BlueConnect's, and the parts that it must not count twice."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.collectives.trees import complete, crossings, under_a_switch
from tests.helpers import examples
from wirebench.collectives.blueconnect import BlueConnect
from wirebench.collectives.flexreduce import FlexReduce
from wirebench.collectives.parts.flexreduce_calls import ranges
from wirebench.collectives.plan import Plan, Transfer, check
from wirebench.topology.tree import Topology

LAYOUTS = ["4", "2+2", "3+3", "2+2+2", "4+4+4", "1+1+1", "(2+2)+(2+2)", "(3+3)+(3+3)", "(2+2+2)+(2+2+2)"]
SYMMETRIC = [*map(Topology.parse, LAYOUTS), under_a_switch(Topology.parse("3+3")), Topology.of_hosts("abcabc")]
symmetric = pytest.mark.parametrize("topology", SYMMETRIC, ids=lambda topology: topology.layout)


def test_a_round_per_level_in_each_half():
    plan = FlexReduce().plan(Topology.parse("2+3"), 12)
    assert (len(plan.reduce), len(plan.copy)) == (2, 2)
    assert plan.reduce[0] == (
        Transfer(1, 0, 0, 6),
        Transfer(0, 1, 6, 12),
        Transfer(3, 2, 0, 4),
        Transfer(4, 2, 0, 4),
        Transfer(2, 3, 4, 8),
        Transfer(4, 3, 4, 8),
        Transfer(2, 4, 8, 12),
        Transfer(3, 4, 8, 12),
    )
    assert {(t.src, t.dst) for t in plan.copy[0]} == {(t.dst, t.src) for t in plan.reduce[1]}


def test_links_of_the_papers_example():
    topology = Topology.parse("2+3")
    local, network = FlexReduce().plan(topology, 12).reduce
    for up_or_down in crossings([local], topology):
        assert up_or_down == {0: 6, 1: 6, 2: 8, 3: 8, 4: 8}
    for up_or_down in crossings([network], topology):
        assert up_or_down == {0: 3, 1: 3, 2: 2, 3: 2, 4: 2, (0,): 6, (1,): 6}


@examples(200)
@given(st.lists(st.integers(1, 8), min_size=2, max_size=5))
@example([1, 2, 4, 8])
def test_uplinks_carry_the_least_that_is_possible(machines: list[int]):
    """At the root level each machine sends n - n/M items and receives (M - 1) n/M, for M machines."""
    count = len(machines)
    topology, items = Topology.parse("+".join(map(str, machines))), count * math.lcm(*machines)
    level = FlexReduce().plan(topology, items).reduce[-1]
    for up_or_down in crossings([level], topology):
        links = {node: carried for node, carried in up_or_down.items() if isinstance(node, tuple)}
        assert links == {(machine,): items - items // count for machine in range(count)}


@symmetric
def test_the_ranges_are_blueconnects_after_every_level(topology: Topology):
    assert topology.degrees is not None
    for items in (0, 1, 5, topology.size, 2 * topology.size + 1, 23, 60):
        rounds, wanted = BlueConnect().plan(topology, items).reduce, ranges(topology, items)
        for level, after in enumerate(wanted):
            done = rounds[: sum(degree - 1 for degree in topology.degrees[: level + 1])]
            assert complete(done, topology, items, level) == {r: set(range(*held)) for r, held in after.items()}
        final = {rank: set(range(*held)) for rank, held in wanted[-1].items()}
        assert complete(FlexReduce().plan(topology, items).reduce, topology, items, level=-1) == final


@symmetric
def test_every_link_carries_what_it_carries_under_blueconnect(topology: Topology):
    mine, theirs = (each.plan(topology, 6 * topology.size) for each in (FlexReduce(), BlueConnect()))
    assert crossings(mine.reduce, topology) == crossings(theirs.reduce, topology)
    assert crossings(mine.copy, topology) == crossings(theirs.copy, topology)


@pytest.mark.parametrize("layout", ["1+3", "1+5", "(1+4)+2", "1+2+4+8"])
def test_a_destination_outside_its_holders_takes_the_first_part_fresh(layout: str):
    topology, items = Topology.parse(layout), 120
    plan = FlexReduce().plan(topology, items)
    check(plan, topology.size, items)
    assert any(t.fresh for transfers in plan.reduce for t in transfers)
    assert not any(t.fresh for transfers in plan.copy for t in transfers)
    stale = tuple(tuple(t._replace(fresh=False) for t in transfers) for transfers in plan.reduce)
    with pytest.raises(ValueError, match="ends with item"):
        check(Plan("stale", stale, plan.copy), topology.size, items)


def test_the_fresh_part_must_come_first():
    plan = FlexReduce().plan(Topology.parse("1+3"), 12)
    backwards = tuple(tuple(reversed(transfers)) for transfers in plan.reduce)
    with pytest.raises(ValueError, match="ends with item"):
        check(Plan("backwards", backwards, plan.copy), 4, 12)


def test_a_large_tree_with_many_items():
    topology, items = Topology.parse("7+9+20+28"), 25_557_032
    last = ranges(topology, items)[-1]
    plan = FlexReduce().plan(topology, items)
    assert sum(stop - start for start, stop in last.values()) == items
    assert max(len(transfers) for transfers in plan.reduce) > 64
