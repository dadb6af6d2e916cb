"""The papers' formulas give their printed figures; test_plan_cost.py holds plans' prices against the formulas."""

import pytest

from tests.costmodel import closed_forms
from wirebench.topology.tree import Link, Topology

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


@pytest.mark.parametrize(("machines", "n", "network", "local", "alpha", "expected", "ring"), FLEXREDUCE_COST)
def test_flexreduce_and_the_ring_beside_it(machines, n, network, local, alpha, expected, ring):
    topology = two_levels(machines, local, network)
    assert closed_forms.flexreduce_seconds(n, topology, alpha) == pytest.approx(expected, rel=1e-12)
    assert closed_forms.ring(sum(machines), alpha, 1 / network).seconds(n) == pytest.approx(ring, rel=1e-12)
