"""Fits: known speeds are found again, broken lines too, and what cannot be fitted is said."""

import dataclasses
import functools
import math

import pytest

from wirebench import collectives
from wirebench.collectives.execution.segments import segments
from wirebench.costmodel.fit import Fit, fit, judge
from wirebench.costmodel.piecewise import Piecewise
from wirebench.costmodel.plan_cost import native_seconds, pipelined_seconds
from wirebench.errors import UserError
from wirebench.record.collective_results import AllReduceResult
from wirebench.topology.tree import Link, Topology

SIZES = [1, 1_000, 60_000, 4_000_000]
NAMES = ["ring", "flexreduce", "tree", "recursive_doubling"]
MACHINE, NETWORK = Link(2e-5, 4e9), Link(3e-4, 1.2e8)


def cluster(*network: Link, gamma: float = 2e-10) -> Topology:
    plain = Topology.parse("2+3").with_links([MACHINE, network])
    return dataclasses.replace(plain, reduce_seconds_per_byte=gamma, native=(Link(5e-4, 1.1e8),))


def cell(topology: Topology, name: str, items: int, noise: float = 1.0) -> AllReduceResult:
    """What a cluster that is as the cost model says would measure."""
    cut = segments(functools.partial(collectives.build(name).plan, topology), topology, items, 4)
    planned = cut.plans
    seconds = pipelined_seconds(planned, topology, 4, cut.apart) if planned else native_seconds(topology, 4 * items)
    return AllReduceResult(
        name, name, items, 4, topology.size, topology.layout, "torch", "gloo", len(planned),
        planned[0].rounds if planned else 0, (seconds * noise,) * 3, 0.0, True, None, None,
    )  # fmt: skip


def cells(topology: Topology, noise: float = 0.0) -> list[AllReduceResult]:
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


@pytest.mark.slow
def test_noise_is_not_fitted() -> None:
    found = fit(Topology.parse("2+3"), cells(cluster(NETWORK), noise=0.04))
    assert found.within > 0.95
    assert found.topology.root.link(1e6).bytes_per_second == pytest.approx(NETWORK.bytes_per_second, rel=0.15)


@pytest.mark.slow
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


def test_what_cells_cannot_show_is_named() -> None:
    seen = Topology.parse("2+3").with_links([Link(1e-5, 1e9), Link(1e-4, 1e7)])
    known = dataclasses.replace(seen, shared=(Link(1e-5, 1e9),), reduce_seconds_per_byte=1e-9)
    assert not Fit(known, (), 1.0, 1.0).unseen
    hidden = dataclasses.replace(seen.with_links([Link(1e-8, 1e12), Link(1e-4, 1e7)]), shared=(Link(1e-8, 1e9),))
    assert Fit(hidden, (), 1.0, 1.0).unseen == [
        "start-up time of level 0", "rate of level 0", "start-up time of shared", "cost of adding"
    ]  # fmt: skip


def test_constants_are_counted() -> None:
    lines = [Link(1e-5, 1e9), Link(1e-4, 1e7)]
    straight = dataclasses.replace(Topology.parse("2+3").with_links(lines), shared=(Link(1e-5, 1e9),))
    broken = dataclasses.replace(straight, shared=(Link(1e-5, 1e9), Link(1e-4, 1e9, 8192.0)))
    # Start-up and rate of both levels and of what is shared, of a round, and of adding.
    assert [Fit(each, (), 1.0, 1.0).constants for each in (straight, broken)] == [8, 10]


def test_cells_of_another_cut_are_refused() -> None:
    topology = cluster(NETWORK)
    other = dataclasses.replace(cell(topology, "flexreduce", 4_000_000), segments=3)
    with pytest.raises(UserError, match="measured by another version"):
        judge(topology, [other])


def test_the_engines_own_costs_no_less_than_its_smallest_sum() -> None:
    topology = Topology.parse("4").with_links([NETWORK])
    measured = [
        dataclasses.replace(cell(cluster(NETWORK), "native", n), seconds=(s,))
        for n, s in ((250_000, 0.01), (1_000_000, 0.06))
    ]
    found = fit(
        topology,
        [cell(topology, "ring", n) for n in SIZES] + [dataclasses.replace(m, layout="4", ranks=4) for m in measured],
    )
    assert native_seconds(found.topology, 4) == pytest.approx(0.01)
    assert native_seconds(found.topology, 2_000_000) == pytest.approx(0.01 + 0.05 / 3)


@pytest.mark.parametrize(
    ("points", "costs"),
    [
        ([(100, 2.0), (200, 3.0), (400, 7.0)], {0: 1, 50: 1.5, 100: 2, 150: 2.5, 200: 3, 300: 5, 400: 7, 500: 9}),
        ([(100, 2.0), (200, 4.0)], {0: 1.0}),
        ([(100, 2.0), (200, 2.0)], {0: 2.0}),
        ([(100, 2.0)], {0: 2.0, 100: 2.0, 1000: 2.0}),
        ([(400, 2.5), (100, 2.0), (200, 3.0)], {100: 2.0, 200: 2.75, 300: 2.75, 400: 2.75}),
        ([(256, 10.0), (1024, 1.0), (10_000, 2.0), (1_000_000, 8.0)], {256: 13 / 3, 1024: 13 / 3, 1_000_000: 8.0}),
        ([(0, 1.0), (10, 2.0)], {0: 1.0}),
        ([(1, 2.0), (2, 4.0)], {0: 1.0, 1: 2.0, 3: 6.0}),
    ],
    ids=["between and beyond", "half of the smallest", "flat", "one", "noise", "slow small message", "at 0", "at 1"],
)
def test_a_cost_between_points(points: list[tuple[int, float]], costs: dict[int, float]) -> None:
    """The start-up is at least half of the smallest point; noise makes no larger message cheaper."""
    cost = Piecewise(points)
    assert [cost(n) for n in costs] == pytest.approx(list(costs.values()))
