"""BlueConnect: its example, factors of one's own, and what it does without symmetry."""

import pytest

from tests.collectives.trees import complete, crossings, under_a_switch
from wirebench import collectives
from wirebench.collectives.blueconnect import BlueConnect
from wirebench.collectives.plan import Transfer, check
from wirebench.collectives.ring import Ring
from wirebench.errors import UserError
from wirebench.topology.tree import Topology


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
