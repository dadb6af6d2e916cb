"""Fits: known speeds are found again, broken lines too, and what cannot be fitted is said."""

import dataclasses
import math

import pytest

from wirebench import collectives
from wirebench.cells import Cell
from wirebench.collectives.segments import cut
from wirebench.cost import native_seconds, pipelined_seconds
from wirebench.fit import Fit, fit, judge
from wirebench.topology import Link, Topology

SIZES = [1, 1_000, 60_000, 4_000_000]
NAMES = ["ring", "flexreduce", "tree", "recursive_doubling"]
MACHINE, NETWORK = Link(2e-5, 4e9), Link(3e-4, 1.2e8)


def cluster(*network: Link, gamma: float = 2e-10) -> Topology:
    plain = Topology.parse("2+3").with_links([MACHINE, network])
    return dataclasses.replace(plain, reduce_seconds_per_byte=gamma, native=(Link(5e-4, 1.1e8),))


def cell(topology: Topology, name: str, items: int, noise: float = 1.0) -> Cell:
    """What a cluster that is as the cost model says would measure."""
    collective = collectives.build(name)
    plans = [collective.plan(topology, stop - start) for start, stop in cut(items, 4, topology.size)]
    planned = [plan for plan in plans if plan is not None]
    seconds = pipelined_seconds(planned, topology, 4) if planned else native_seconds(topology, 4 * items)
    return Cell(
        name, name, items, 4, topology.size, topology.layout, "torch", "gloo", len(planned),
        planned[0].rounds if planned else 0, (seconds * noise,) * 3, 0.0, True, None, None,
    )  # fmt: skip


def cells(topology: Topology, noise: float = 0.0) -> list[Cell]:
    found = []
    for number, (name, items) in enumerate((n, i) for n in [*NAMES, "native"] for i in SIZES):
        found.append(cell(topology, name, items, 1 + noise * math.sin(17.0 * number)))
    return found


@pytest.fixture(scope="module")
def found() -> Fit:
    """The fit of a cluster that obeys the model."""
    return fit(Topology.parse("2+3"), cells(cluster(NETWORK)))


def test_a_cluster_that_obeys_the_model_is_predicted_at_sizes_it_was_not_fitted_to(found: Fit) -> None:
    truth = cluster(NETWORK)
    assert found.within == 1
    assert found.r_squared > 0.999
    link = found.topology.root.link(1e6)
    assert link.bytes_per_second == pytest.approx(NETWORK.bytes_per_second, rel=0.1)
    other = [
        cell(truth, name, items) for name in ("ring", "flexreduce", "hierarchical") for items in (20_000, 2_000_000)
    ]
    assert judge(found.topology, other).within == 1


def test_noise_is_not_fitted() -> None:
    found = fit(Topology.parse("2+3"), cells(cluster(NETWORK), noise=0.04))
    assert found.within > 0.95
    assert found.topology.root.link(1e6).bytes_per_second == pytest.approx(NETWORK.bytes_per_second, rel=0.15)


def test_a_line_that_is_broken_is_broken() -> None:
    slow_answers = Link(4e-3, 1.2e8, 8192.0)
    truth = cluster(NETWORK, slow_answers)
    found = fit(Topology.parse("2+3"), cells(truth))
    assert len(found.topology.root.links) > 1
    assert found.within >= 0.9


def test_the_engines_own_collective_is_interpolated(found: Fit) -> None:
    truth = cluster(NETWORK)
    for num_bytes in (4, 5_000, 16_000_000, 64_000_000):
        assert native_seconds(found.topology, num_bytes) == pytest.approx(native_seconds(truth, num_bytes), rel=1e-6)


def test_too_few_cells_and_cells_of_another_cluster_are_refused() -> None:
    topology = Topology.parse("2+3")
    truth = cluster(NETWORK)
    with pytest.raises(ValueError, match="at least 3 cells"):
        fit(topology, [cell(truth, "ring", 1000), cell(truth, "native", 1000)])
    with pytest.raises(ValueError, match="do not belong"):
        fit(Topology.parse("2+2"), cells(truth))
