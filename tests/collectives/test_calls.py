"""FlexReduce's planner: the paper's example and its numbers, call by call, and what holds on any tree."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.collectives.trees import topologies, under_a_switch
from tests.helpers import examples
from wirebench.collectives.parts.flexreduce_calls import calls, calls_bound, calls_per_learner, ranges
from wirebench.topology.tree import BranchPath as Node
from wirebench.topology.tree import Topology

ORACLES = json.loads((Path(__file__).parent / "oracles.json").read_text())
DIVISIBLE = math.lcm(*range(1, 13)) * 12

# The configurations of the paper's Fig. 4, and calls per learner: the mean over both levels, and at the root alone.
CALLS = {
    "2+2": (1.00, 1.00),
    "2+3": (1.30, 1.60),
    "3+3": (1.00, 1.00),
    "3+4": (1.36, 1.71),
    "4+4": (1.00, 1.00),
    "3+3+3": (1.00, 1.00),
    "3+3+4": (1.20, 1.40),
    "3+4+4": (1.23, 1.45),
    "4+4+4": (1.00, 1.00),
}


@pytest.mark.parametrize("case", ORACLES)
def test_ranges_and_calls_are_the_published_ones(case: str):
    layout, count = case.split(" n=")
    topology, items, names = Topology.parse(layout), int(count), ORACLES[case]["leaves"]
    branches: dict[Node, str] = {(): "A"} | {(machine,): letter for machine, letter in enumerate("BCa")}
    made = [{names[rank]: list(held) for rank, held in level.items()} for level in ranges(topology, items)]
    assert made == ORACLES[case]["ranges_after_level"]
    assert [
        [
            {
                "branch": branches[call.branch],
                "dst": names[call.dst],
                "lo": call.start,
                "hi": call.stop,
                "holders": [names[holder] for holder in call.holders],
            }
            for call in level
        ]
        for level in calls(topology, items)
    ] == ORACLES[case]["calls_per_level"]


@pytest.mark.parametrize("layout", CALLS)
def test_calls_per_learner_are_those_of_the_paper(layout: str):
    levels = calls_per_learner(Topology.parse(layout), DIVISIBLE)
    assert len(levels) == 2
    assert round(sum(levels) / 2, 2) == CALLS[layout][0]
    assert round(levels[1], 2) == CALLS[layout][1]


@pytest.mark.parametrize(("layout", "outside"), [("2+3", 0), ("3+4", 0), ("1+3", 1), ("1+5", 3)])
def test_destinations_that_hold_nothing_of_their_call(layout: str, outside: int):
    *_, root = calls(Topology.parse(layout), DIVISIBLE)
    assert sum(call.dst not in call.holders for call in root) == outside


def test_ranges_are_ordered_by_their_ends_first():
    # Rank 0 holds everything, ranks 1 to 3 a third each: it comes before rank 3, with which its range ends.
    _, root = calls(Topology.parse("1+3"), 12)
    assert [call[1:] for call in root] == [
        (1, 0, 2, (0, 1)),
        (2, 2, 4, (0, 1)),
        (0, 4, 8, (0, 2)),
        (0, 8, 10, (0, 3)),
        (3, 10, 12, (0, 3)),
    ]
    # Of ranges that end together the one that begins first: rank 2 holds everything, rank 1 a half.
    assert ranges(Topology.parse("2+1"), 12)[-1] == {0: (0, 3), 2: (3, 9), 1: (9, 12)}


def test_the_bound_of_a_learner_with_a_large_part():
    # Machines of 1 and 5: the lone learner owns 1/2 of all items, which the others hold in fifths.
    topology = Topology.parse("1+5")
    assert calls_bound(topology, 0, 1) == 1 + 1 + 3
    assert {calls_bound(topology, rank, 1) for rank in range(1, 6)} == {1 + 1 + 1}


def test_branches_of_degree_one_make_no_calls():
    machine, above = calls(under_a_switch(Topology.parse("4")), 12)
    assert [call[1:] for call in machine] == [call[1:] for call in calls(Topology.parse("4"), 12)[0]]
    assert above == ()
    lowest, root = calls(Topology.parse("1+1+1"), 9)
    assert lowest == ()
    assert [(c.dst, c.start, c.stop) for c in root] == [(0, 0, 3), (1, 3, 6), (2, 6, 9)]


def test_a_leaf_high_up_waits_for_its_level():
    # One switch over a machine of two and over a switch with a machine of one and a machine of two.
    topology = Topology.parse("2+(1+2)")
    assert [sorted({call.branch for call in level}) for level in calls(topology, 60)] == [[(1, 1)], [(0,), (1,)], [()]]
    after_lowest = ranges(topology, 60)[0]
    assert [after_lowest[rank] for rank in (0, 1)] == [(0, 60), (0, 60)]
    assert calls_bound(topology, 0, 0) == 0


def test_ranks_go_by_leaf_order():
    scattered = Topology.of_hosts(["a", "b", "b", "a", "b"])
    names = scattered.ranks
    assert names == (0, 3, 1, 2, 4)
    for mine, counted in zip(calls(scattered, 12), calls(Topology.parse("2+3"), 12), strict=True):
        assert [(c.dst, c.start, c.stop, c.holders) for c in mine] == [
            (names[c.dst], c.start, c.stop, tuple(names[h] for h in c.holders)) for c in counted
        ]


@examples(500)
@given(topologies, st.integers(0, 64))
def test_what_holds_on_every_tree(topology: Topology, items: int):
    tree_levels, everything = calls(topology, items), [(0, items)] * topology.size
    assert len(tree_levels) == len(topology.levels)
    before = dict(zip(range(topology.size), everything, strict=True))
    for number, (level, after) in enumerate(zip(tree_levels, ranges(topology, items), strict=True)):
        for branch in topology.levels[number]:
            tiles = sorted(after[rank] for rank in branch.ranks)
            assert [start for start, _ in tiles] == [0, *(stop for _, stop in tiles[:-1])], "a gap or an overlap"
            assert tiles[-1][1] == items
            mine = [call for call in level if call.dst in branch.ranks]
            times = Counter(item for call in mine for item in range(call.start, call.stop))
            assert not times or set(times.values()) == {1}, "an item has two destinations"
            assert sum(times.values()) == (items if branch.degree > 1 else 0)
        for call in level:
            assert after[call.dst][0] <= call.start < call.stop <= after[call.dst][1]
            assert all(before[h][0] <= call.start < call.stop <= before[h][1] for h in call.holders)
        received = Counter(call.dst for call in level)
        assert all(count <= calls_bound(topology, rank, number) for rank, count in received.items())
        before = after
