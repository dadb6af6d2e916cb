"""The papers' formulas: their printed figures, and what they say of each other."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.flexreduce.measured import ideal_saving
from tests.costmodel import closed_forms
from tests.helpers import examples
from wirebench.topology.tree import Branch, Link, Topology

# Numbers of the papers, worked out independently: (machines, n, w_net, w_local, alpha, T_FR, T_ring).
FLEXREDUCE_COST = [
    ((2, 2), 1.0, 1.0, 1e9, 0.0, 1.000000001, 1.5),
    ((2, 3), 1.0, 1.0, 1e9, 0.0, 1.0000000013333334, 1.6),
    ((3, 4), 1.0, 1.0, 1e9, 0.0, 1.0000000015, 1.7142857142857142),
    ((3, 3, 4), 1.0, 1.0, 1e9, 0.0, 1.3333333348333332, 1.8),
    ((4, 4, 4), 1.0, 1.0, 1e9, 0.0, 1.3333333348333332, 1.8333333333333333),
    ((2, 3), 12, 1.0, 100.0, 0.0, 12.16, 19.2),
    ((2, 3), 12, 1.0, 100.0, 0.5, 15.16, 23.2),
]
BLUECONNECT_COST = [
    ((3, 2), (100.0, 1.0), 12, 0.0, 12.16),
    ((3, 2), (100.0, 1.0), 12, 0.5, 15.16),
    ((2, 2, 3), (50.0, 10.0, 1.0), 12, 0.25, 19.44),
]
# (a, b) of a ring of N nodes in the MG-WFBP authors' simulator.
MGWFBP_RING = {
    2: (9.05e-05, 2.2434107462565106e-09),
    4: (0.00027150000000000004, 3.365116119384766e-09),
    8: (0.0006335000000000001, 3.925968805948893e-09),
    16: (0.0013575, 4.206395149230957e-09),
    32: (0.0028055000000000003, 4.346608320871989e-09),
    64: (0.0057015, 4.416714906692505e-09),
}


def two_levels(machines, local_rate, network_rate):
    """Machines of so many ranks under a switch; rates in bytes per second."""
    return Topology.parse("+".join(map(str, machines)), [Link(0.0, local_rate), Link(0.0, network_rate)])


def test_table_ii_at_eight_ranks():
    alphas, betas, gammas = {}, {}, {}
    for form in (
        closed_forms.binary_tree,
        closed_forms.recursive_doubling,
        closed_forms.halving_doubling,
        closed_forms.ring,
    ):
        name = form.__name__
        alphas[name], betas[name], gammas[name] = form(8, 1, 0).a, form(8, 0, 1).b, form(8, 0, 0, 1).b
    assert list(alphas.values()) == [6, 3, 6, 14]
    assert list(betas.values()) == [6, 3, 7 / 4, 7 / 4]
    assert list(gammas.values()) == [3, 3, 7 / 8, 7 / 8]


@pytest.mark.parametrize("size", MGWFBP_RING)
def test_the_authors_ring(size):
    alpha, beta, gamma = 45.25e-6, 1.2 / (9 * 2**30 / 8), 160 / 64e9
    assert closed_forms.ring(size, alpha, beta, gamma) == pytest.approx(MGWFBP_RING[size], rel=1e-12)


def test_one_alpha_explains_all_start_ups_of_figure_5b():
    start_ups = {2: 90.52e-6, 4: 271.56e-6, 8: 633.64e-6}
    assert {n: closed_forms.ring(n, 45.26e-6, 0).a for n in start_ups} == pytest.approx(start_ups, rel=1e-12)


def test_a_line_prices_bytes():
    assert closed_forms.CostLine(0.5, 0.25).seconds(8) == 2.5


def test_powers_of_two_fold_nothing():
    assert [n for n in range(1, 65) if closed_forms.folding(n, 1, 1, 1) == (0, 0)] == [1, 2, 4, 8, 16, 32, 64]
    assert closed_forms.folding(6, 1, 10, 100) == (2, 120)
    assert closed_forms.recursive_doubling(6, 1, 10, 100) == (2 + 2, 2 * 110 + 120)
    assert closed_forms.halving_doubling(6, 1, 10, 100) == (4 + 2, 3 / 4 * 120 + 120)


def test_one_rank_sends_nothing():
    for form in (
        closed_forms.ring,
        closed_forms.binary_tree,
        closed_forms.star,
        closed_forms.recursive_doubling,
        closed_forms.halving_doubling,
    ):
        assert form(1, 1, 1, 1) == (0, 0)


@pytest.mark.parametrize(("machines", "n", "network", "local", "alpha", "expected", "ring"), FLEXREDUCE_COST)
def test_flexreduce_and_the_ring_beside_it(machines, n, network, local, alpha, expected, ring):
    topology = two_levels(machines, local, network)
    assert closed_forms.flexreduce_seconds(n, topology, alpha) == pytest.approx(expected, rel=1e-12)
    assert closed_forms.ring(sum(machines), alpha, 1 / network).seconds(n) == pytest.approx(ring, rel=1e-12)


def test_flexreduce_by_level():
    topology = two_levels((2, 3), 100.0, 1.0)
    assert closed_forms.flexreduce_levels(12, topology, 0.5) == pytest.approx([1.08, 6.5])
    assert closed_forms.flexreduce_levels(12, topology, 0.0) == pytest.approx([0.08, 6.0])


@pytest.mark.parametrize(("deltas", "omegas", "n", "alpha", "expected"), BLUECONNECT_COST)
def test_blueconnect(deltas, omegas, n, alpha, expected):
    assert closed_forms.blueconnect_seconds(n, deltas, omegas, alpha) == pytest.approx(expected, rel=1e-12)


@examples(300)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.floats(1e-3, 1e3)), min_size=1, max_size=4),
    st.floats(0, 10),
    st.floats(1e-3, 1e6),
)
def test_flexreduce_is_blueconnect_on_symmetric_trees(levels, alpha, n):
    """FlexReduce, Eq. 7 to 11: Eq. 6 equals Eq. 3."""
    deltas, omegas = zip(*levels, strict=True)
    topology = Topology.flat(deltas[0], Link(0.0, omegas[0]))
    for delta, omega in levels[1:]:
        topology = Topology(stack(topology, delta, omega))
    expected = closed_forms.blueconnect_seconds(n, deltas, omegas, alpha)
    assert closed_forms.flexreduce_seconds(n, topology, alpha) == pytest.approx(expected, rel=1e-9)


def stack(topology, copies, rate):
    """A branch over `copies` copies of the tree, ranks numbered from left to right."""

    def moved(node, by):
        return node + by if isinstance(node, int) else Branch(tuple(moved(c, by) for c in node.children), node.links)

    return Branch(tuple(moved(topology.root, copy * topology.size) for copy in range(copies)), (Link(0.0, rate),))


def test_unequal_depths_count_levels_from_the_root():
    topology = Topology.parse("(2+2)+3", [Link(0, 10.0), Link(0, 2.0), Link(0, 1.0)])
    # Level 0: the machines of two: T_r(n, 2, 10). Level 1: the switch, and the machine of three beside it. Level 2: the
    # root, with the switch's link carrying n / 2 and the machine of three n / 3 per rank.
    machine, switch, root = 12 / (2 * 10), max(12 / (2 * 2), 2 * 12 / (3 * 2)), 12 / 2
    assert closed_forms.flexreduce_levels(12, topology, 0) == pytest.approx([machine, switch, root])


def test_links_without_speed_have_no_price():
    with pytest.raises(ValueError, match="no link speeds"):
        closed_forms.flexreduce_seconds(1, Topology.parse("2+3"), 0)


@pytest.mark.parametrize(
    ("machines", "percent"),
    [
        ((2, 2), 33.3),
        ((2, 3), 37.5),
        ((3, 3), 40.0),
        ((3, 4), 41.7),
        ((4, 4), 42.9),
        ((3, 3, 3), 25.0),
        ((3, 3, 4), 25.9),
        ((3, 4, 4), 26.7),
        ((4, 4, 4), 27.3),
    ],
)
def test_the_ideal_saving(machines, percent):
    saving = ideal_saving("+".join(map(str, machines)))
    assert 100 * saving == pytest.approx(percent, abs=0.05)
    ring = closed_forms.ring(sum(machines), 0, 1).seconds(1)
    flexreduce = closed_forms.flexreduce_seconds(1, two_levels(machines, math.inf, 1.0), 0)
    assert 1 - flexreduce / ring == pytest.approx(saving, rel=1e-12)


def test_a_hierarchy_of_one_machine_is_a_ring():
    local, network = (1.0, 2.0), (10.0, 20.0)
    assert closed_forms.hierarchical([5], local, network, 3.0) == closed_forms.ring(5, *local, 3.0)
    assert closed_forms.hierarchical([1, 1, 1], local, network, 3.0) == closed_forms.ring(3, *network, 3.0)
    assert closed_forms.hierarchical([2, 3], local, network, 3.0) == (4 * 1 + 2 * 10, 2 * (2 * 2 + 3) + 0.5 * 43)
