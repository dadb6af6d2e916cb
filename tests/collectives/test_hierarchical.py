"""The hierarchical all-reduce and the star: who talks to whom."""

import pytest

from tests.collectives.trees import crossings, under_a_switch
from wirebench.collectives.hierarchical import Hierarchical
from wirebench.collectives.plan import Plan, Transfer
from wirebench.collectives.ring import Ring
from wirebench.collectives.star import Star
from wirebench.collectives.tree import Tree
from wirebench.topology.tree import Topology


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
    assert len(plan.copy) == 4


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
