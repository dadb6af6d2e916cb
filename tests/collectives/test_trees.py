"""Trees: the pairs of gs-SGD's, and every collective on random ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.collectives.trees import carry_out, check_gathering, topologies
from tests.helpers import examples
from wirebench import collectives
from wirebench.collectives.plan import Plan, check, gather_moves
from wirebench.collectives.tree import Tree
from wirebench.topology.tree import Topology

# (sender, receiver) of every reduce round, by number of ranks: Algorithm 1 of arXiv 2108.06004, lines 8-23.
ROUNDS = {
    1: [],
    2: [[(1, 0)]],
    3: [[(1, 0)], [(2, 0)]],
    4: [[(1, 0), (3, 2)], [(2, 0)]],
    6: [[(1, 0), (3, 2), (5, 4)], [(2, 0)], [(4, 0)]],
    7: [[(1, 0), (3, 2), (5, 4)], [(2, 0), (6, 4)], [(4, 0)]],
    8: [[(1, 0), (3, 2), (5, 4), (7, 6)], [(2, 0), (6, 4)], [(4, 0)]],
    13: [[(1, 0), (3, 2), (5, 4), (7, 6), (9, 8), (11, 10)], [(2, 0), (6, 4), (10, 8)], [(4, 0), (12, 8)], [(8, 0)]],
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("size", ROUNDS)
def test_the_pairs_are_those_of_the_paper(size):
    plan = Tree().plan(Topology.flat(size), 3)
    assert [[(t.src, t.dst) for t in r] for r in plan.reduce] == ROUNDS[size]
    assert plan.rounds == 2 * (size - 1).bit_length()


def test_every_message_is_whole():
    plan = Tree().plan(Topology.flat(6), 7)
    assert {(t.start, t.stop) for r in (*plan.reduce, *plan.copy) for t in r} == {(0, 7)}


def test_the_copy_half_is_the_broadcast_from_the_root():
    plan = Tree().plan(Topology.flat(4), 1)
    assert [[(t.src, t.dst) for t in r] for r in plan.copy] == [[(0, 2)], [(0, 1), (2, 3)]]


def plans(topology: Topology, items: int) -> list[Plan]:
    made = [collectives.build(name).plan(topology, items) for name in collectives.available()]
    return [plan for plan in made if plan is not None]


@examples(500)
@given(topologies, st.integers(0, 64))
def test_every_plan_is_right_on_every_tree(topology: Topology, items: int):
    for plan in plans(topology, items):
        check(plan, topology.size, items)


@examples(100)
@given(topologies, st.integers(1, 64))
def test_all_ranks_hold_the_same_bits(topology: Topology, items: int):
    inputs = np.random.default_rng(items).standard_normal((topology.size, items), np.float32)
    for plan in plans(topology, items):
        held = carry_out(plan, inputs)
        assert (held == held[0]).all(), plan.name
        np.testing.assert_allclose(held[0], inputs.astype(np.float64).sum(0), atol=1e-4)


@examples(100)
@given(topologies)
def test_every_plan_gathers_on_every_tree(topology: Topology):
    for plan in plans(topology, topology.size):
        for owners in ((), topology.ranks):
            check_gathering(gather_moves(plan, topology.size, owners), topology.size)
