"""Rings: one of all ranks, one in each level, BlueConnect's; and the star."""

import pytest

from tests.collectives.trees import complete, crossings, under_a_switch
from wirebench import collectives
from wirebench.collectives.blueconnect import BlueConnect
from wirebench.collectives.hierarchical import Hierarchical
from wirebench.collectives.plan import Plan, Transfer, check, mirror
from wirebench.collectives.ring import Ring
from wirebench.collectives.star import Star
from wirebench.collectives.tree import Tree
from wirebench.errors import UserError
from wirebench.topology.tree import Topology

SIZES = range(1, 17)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("size", SIZES)
def test_in_two_times_p_minus_one_rounds_every_rank_sends_as_many_parts(size):
    items = 6 * size
    plan = Ring().plan(Topology.flat(size), items)
    assert plan.rounds == 2 * (size - 1)
    assert {plan.sent_items(rank) for rank in range(size)} == {2 * (size - 1) * items // size}


@pytest.mark.parametrize(("size", "items"), [(3, 10), (4, 2), (5, 7), (8, 9)])
def test_uneven_chunks_differ_by_at_most_one_item_a_round(size, items):
    plan = Ring().plan(Topology.flat(size), items)
    assert sum(plan.sent_items(rank) for rank in range(size)) == 2 * (size - 1) * items
    assert max(t.stop - t.start for r in plan.reduce for t in r) == -(items // -size)


def test_everybody_talks_to_neighbours_only():
    plan = Ring().plan(Topology.flat(5), 10)
    # In one direction: a ring that turned around would wait until the ranks that lead have become those that follow.
    assert {(t.dst - t.src) % 5 for r in (*plan.reduce, *plan.copy) for t in r} == {1}
    assert plan.copy[0] == tuple(Transfer(rank, (rank + 1) % 5, 2 * rank, 2 * rank + 2) for rank in range(5))
    few = Ring().plan(Topology.flat(5), 1)
    assert [(t.src, t.dst) for r in few.copy for t in r] == [(4, 3), (3, 2), (2, 1), (1, 0)]


def test_the_ring_enters_and_leaves_every_machine_once():
    topology = Topology.of_hosts(["a", "b", "c", "a", "b", "c"])
    plan = Ring().plan(topology, 6)
    assert topology.ranks == (0, 3, 1, 4, 2, 5)
    assert {(t.src, t.dst) for r in plan.reduce for t in r} == {(0, 3), (3, 1), (1, 4), (4, 2), (2, 5), (5, 0)}
    assert sorted((t.start, t.dst) for t in plan.reduce[-1]) == list(enumerate(topology.ranks))


def test_rank_r_ends_the_reduce_half_with_chunk_r():
    plan = Ring().plan(Topology.flat(4), 8)
    assert sorted((t.dst, t.start, t.stop) for t in plan.reduce[-1]) == [(r, 2 * r, 2 * r + 2) for r in range(4)]


def pairs(plan: Plan) -> list[list[tuple[int, int]]]:
    return [[(t.src, t.dst) for t in transfers] for transfers in plan.reduce]


def test_trees_within_machines_then_a_ring_of_masters():
    plan = Hierarchical().plan(Topology.parse("2+3+4"), 9)
    assert pairs(plan) == [
        [(1, 0), (3, 2), (6, 5), (8, 7)],
        [(4, 2), (7, 5)],
        [(0, 2), (2, 5), (5, 0)],
        [(0, 2), (2, 5), (5, 0)],
    ]
    assert {t.stop - t.start for transfers in plan.reduce[:2] for t in transfers} == {9}
    assert {t.stop - t.start for transfers in plan.reduce[2:] for t in transfers} == {3}
    # The masters' ring goes on in its direction, with each master's own chunk first; the trees go back.
    assert plan.copy[0] == (Transfer(0, 2, 0, 3), Transfer(2, 5, 3, 6), Transfer(5, 0, 6, 9))
    assert [[(t.src, t.dst) for t in transfers] for transfers in plan.copy[1:]] == [
        [(0, 2), (2, 5), (5, 0)],
        [(2, 4), (5, 7)],
        [(0, 1), (2, 3), (5, 6), (7, 8)],
    ]
    few = Hierarchical().plan(Topology.parse("2+3+4"), 2)
    assert few.copy == mirror(few.reduce)


def test_masters_of_masters_in_deeper_trees():
    plan = Hierarchical().plan(Topology.parse("(2+2)+(1+2)+1"), 6)
    assert pairs(plan) == [
        [(1, 0), (3, 2), (6, 5)],
        [(2, 0), (5, 4)],
        [(0, 4), (4, 7), (7, 0)],
        [(0, 4), (4, 7), (7, 0)],
    ]


def test_each_uplink_carries_the_share_of_a_ring_of_machines():
    topology = Topology.parse("4+2+3")
    for up_or_down in crossings(Hierarchical().plan(topology, 30).reduce, topology):
        assert [up_or_down[machine,] for machine in range(3)] == [20, 20, 20]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_one_machine_is_a_ring(size: int):
    plan, ring = Hierarchical().plan(Topology.flat(size), 17), Ring().plan(Topology.flat(size), 17)
    assert (plan.name, plan.reduce, plan.copy) == ("hierarchical", ring.reduce, ring.copy)


def test_a_switch_over_one_machine_leaves_its_tree():
    topology = under_a_switch(Topology.flat(5))
    assert Hierarchical().plan(topology, 4).reduce == Tree().plan(topology, 4).reduce


def test_a_machine_of_one_rank_is_its_own_master():
    assert pairs(Hierarchical().plan(Topology.of_hosts(["a", "b", "a"]), 2)) == [[(2, 0)], [(0, 1), (1, 0)]]


def test_the_star_sends_all_to_the_first_rank_and_back():
    plan = Star().plan(Topology.flat(4), 5)
    assert plan.reduce == ((Transfer(1, 0, 0, 5), Transfer(2, 0, 0, 5), Transfer(3, 0, 0, 5)),)
    assert plan.copy == ((Transfer(0, 1, 0, 5), Transfer(0, 2, 0, 5), Transfer(0, 3, 0, 5)),)
    assert Star().plan(Topology.flat(1), 5).rounds == 0


def test_star_and_tree_count_in_leaf_order():
    scattered = Topology.of_hosts(["a", "b", "b", "a", "a"])
    assert scattered.ranks == (0, 3, 4, 1, 2)
    assert pairs(Star().plan(scattered, 1)) == [[(3, 0), (4, 0), (1, 0), (2, 0)]]
    assert pairs(Tree().plan(scattered, 1)) == [[(3, 0), (1, 4)], [(4, 0)], [(2, 0)]]


def test_two_machines_of_three():
    # D, E, F | G, H, I of the paper's Fig. 1: thirds within each machine, then halves of thirds between the machines.
    plan = BlueConnect().plan(Topology.parse("3+3"), 12)
    assert plan.name == "blueconnect"
    assert [{(t.src, t.dst) for t in transfers} for transfers in plan.reduce] == [
        {(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)},
        {(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)},
        {(0, 3), (3, 0), (1, 4), (4, 1), (2, 5), (5, 2)},
    ]
    final = {0: (0, 2), 3: (2, 4), 1: (4, 6), 4: (6, 8), 2: (8, 10), 5: (10, 12)}
    assert complete(plan.reduce, Topology.parse("3+3"), 12, level=-1) == {r: set(range(*p)) for r, p in final.items()}
    assert Transfer(3, 0, 0, 2) in plan.reduce[2]


@pytest.mark.parametrize(("layout", "half"), [("4", 3), ("2+2+2", 3), ("(2+2+2)+(2+2+2)", 4), ("1+1", 1)])
def test_rounds_are_the_sum_of_degrees_less_one(layout: str, half: int):
    plan = BlueConnect().plan(Topology.parse(layout), 64)
    assert (len(plan.reduce), len(plan.copy)) == (half, half)


def test_each_level_gathers_in_the_direction_in_which_it_scattered():
    plan = BlueConnect().plan(Topology.parse("3+3+3"), 9)
    steps = [{(t.src, t.dst) for t in transfers} for transfers in (*plan.reduce, *plan.copy)]
    inside = {(3 * machine + i, 3 * machine + (i + 1) % 3) for machine in range(3) for i in range(3)}
    between = {(rank, (rank + 3) % 9) for rank in range(9)}
    assert steps == [inside, inside, between, between, between, between, inside, inside]
    few = BlueConnect().plan(Topology.parse("3+3+3"), 8)
    assert few.copy == mirror(few.reduce)


def test_levels_of_degree_one_make_no_rounds():
    plan, machine = (BlueConnect().plan(t, 8) for t in (under_a_switch(Topology.flat(3)), Topology.flat(3)))
    assert plan == machine


@pytest.mark.sampled(6)
@pytest.mark.parametrize("factors", [(12,), (3, 4), (4, 3), (2, 3, 2), (1, 12), (2, 1, 6, 1)])
@pytest.mark.parametrize("layout", ["12", "5+7", "3+3+3+3"])
def test_factors_of_ones_own(factors: tuple[int, ...], layout: str):
    topology = Topology.parse(layout)
    for items in (0, 1, 11, 12, 13, 48):
        plan = BlueConnect(factors).plan(topology, items)
        check(plan, 12, items)
        assert plan.rounds <= 2 * sum(factor - 1 for factor in factors)
    assert {plan.sent_items(rank) for rank in range(12)} == {2 * 11 * 48 // 12}


def test_one_factor_is_the_ring():
    assert BlueConnect((5,)).plan(Topology.parse("2+3"), 17).reduce == Ring().plan(Topology.parse("2+3"), 17).reduce


def test_without_common_degrees_it_is_the_ring_and_says_so():
    for layout in ("2+3", "(2+2)+2"):
        topology = Topology.parse(layout)
        plan, ring = BlueConnect().plan(topology, 17), Ring().plan(topology, 17)
        assert plan.name == "blueconnect=ring"
        assert (plan.reduce, plan.copy) == (ring.reduce, ring.copy)


def test_factors_count_in_leaf_order():
    scattered = Topology.of_hosts(["a", "b", "a", "b"])
    first, second = BlueConnect().plan(scattered, 8).reduce
    up, _ = crossings([first], scattered)
    assert not {node for node in up if isinstance(node, tuple)}, "the first level stays within machines"
    assert {(t.src, t.dst) for t in second} == {(0, 1), (1, 0), (2, 3), (3, 2)}


def test_factors_must_multiply_to_the_number_of_ranks():
    collective = collectives.build("blueconnect", factors=[2, 3])
    with pytest.raises(UserError, match=r"collective.factors: \[2, 3\] multiply to 6, but there are 4 ranks"):
        collective.plan(Topology.flat(4), 8)


@pytest.mark.parametrize(
    ("factors", "words"), [([0, 4], "at least 1"), ([2, -2], "at least 1"), ("22", "a list"), ([2.0], "a list")]
)
def test_what_is_no_list_of_factors_is_refused(factors: object, words: str):
    with pytest.raises(UserError, match=words):
        collectives.build("blueconnect", factors=factors)
