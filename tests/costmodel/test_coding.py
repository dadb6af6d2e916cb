"""What coding adds to the price of a sum: who codes how much, by plans and by rounds."""

import itertools
from dataclasses import dataclass, replace

import pytest
import torch

from wirebench import collectives, compressors
from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.comm.local import LocalHub
from wirebench.comm.metered import Metered
from wirebench.costmodel.coding import coded_items
from wirebench.costmodel.plan_cost import plan_seconds
from wirebench.costmodel.played_exchange import RequestSize
from wirebench.costmodel.request_cost import Pricer
from wirebench.errors import UserError
from wirebench.exchange.advance import run
from wirebench.gradient.requests import Route, Sum
from wirebench.topology import presets
from wirebench.topology.processor import Processor
from wirebench.topology.tree import Link, Topology

NUMEL = 4 * 256 * 64
WIRE = [Link(0.0, 1e30), Link(0.0, 1e30)]
"""Messages that take no time."""


@dataclass
class PerElement:
    """Seconds in proportion to elements."""

    encoding: float
    decoding: float

    def encode(self, form: str, numel: float) -> float:
        return self.encoding * numel * (10.0 if form == "bf16" else 1.0)

    def decode(self, form: str, numel: float) -> float:
        return self.decoding * numel * (10.0 if form == "bf16" else 1.0)


def of(name: str, within: str = "", **options: object) -> collectives.Collective:
    inside = compressors.wire(within) if within else None
    return collectives.formatted(collectives.build(name, **options), compressors.wire("int8"), inside)


def vectors(made: collectives.Collective, topology: Topology, coding: PerElement) -> float:
    """Seconds of a sum's coding, in codings of the vector."""
    plan = made.plan(topology, NUMEL // 256)
    assert plan is not None
    return plan_seconds(plan, topology, 4 * 256, coding) / NUMEL


@pytest.mark.parametrize(
    ("name", "encoded", "decoded"),
    [
        ("one_hop", 1.0, 1.75),
        ("ring", 1.0, 1.75),
        ("halving_doubling", 1.0, 1.75),
        ("tree", 3.0, 3.0),
        ("star", 2.0, 4.0),
        ("recursive_doubling", 2.0, 4.0),
    ],
)
def test_ranks_code_what_they_send_and_decode_what_arrives(name: str, encoded: float, decoded: float) -> None:
    """Of four ranks: three quarters and then a share of the sum; in a tree the whole vector at each level.

    A star's root decodes three vectors; partners who swap decode their own message, too. All decode the sum.
    """
    topology = Topology.parse("4", WIRE[:1])
    assert vectors(of(name), topology, PerElement(1.0, 0.0)) == pytest.approx(encoded)
    assert vectors(of(name), topology, PerElement(0.0, 1.0)) == pytest.approx(decoded)


def test_formats_within_machines_are_priced_as_such() -> None:
    """Two machines of two: half a vector in bf16, ten times as dear, a quarter in int8, and the sum's quarter."""
    made, topology = of("one_hop", "bf16", levels=True), Topology.parse("2+2", WIRE)
    assert vectors(made, topology, PerElement(1.0, 0.0)) == pytest.approx(10 / 2 + 1 / 4 + 1 / 4)
    plan = made.plan(topology, 4)
    assert plan is not None
    forms = [{each.form for each in those} for those in coded_items(plan)]
    assert forms == [{"bf16"}, {"int8"}, {"int8"}, {"int8"}]
    assert coded_items(replace(plan, wire=None)) == [[], [], [], []]


@pytest.mark.parametrize("formulas", [False, True])
def test_adding_is_counted_once(formulas: bool) -> None:
    """Decoding adds, so that gamma counts where coding takes no time, and where nothing is coded."""
    plain, request = presets.cluster(presets.find("10gbe"), 8), RequestSize(Sum, 4.0 * NUMEL, 4.0 * NUMEL)
    adding = replace(plain, reduce_seconds_per_byte=1e-6)

    def slower(collective: collectives.Collective, coding: PerElement | None) -> float:
        slow, fast = (Pricer(collective, each, formulas=formulas, coding=coding) for each in (adding, plain))
        return slow.seconds(request) - fast.seconds(request)

    gamma = pytest.approx(7 / 8 * 4 * NUMEL * 1e-6, rel=0.04)  # chunks are rounded up
    assert slower(of("ring"), PerElement(3e-9, 2e-9)) == 0
    assert slower(of("ring"), None) == gamma == slower(collectives.build("ring"), PerElement(3e-9, 2e-9))


@pytest.mark.parametrize("name", ["one_hop", "ring", "halving_doubling", "tree"])
@pytest.mark.parametrize("part", ["whole", "halves"])
def test_rounds_cost_what_plans_cost(name: str, part: str) -> None:
    """16 ranks are few enough for plans, and `formulas` prices them by rounds."""
    network = presets.Network(0.0, 1e9, "")
    topology, request = presets.cluster(network, 16), RequestSize(Sum, 4.0 * NUMEL, 4.0 * NUMEL)
    coding = PerElement(3e-9, 2e-9)
    plans, rounds = (Pricer(of(name), topology, formulas=formulas, coding=coding) for formulas in (False, True))
    if part == "whole":
        assert rounds.seconds(request) == pytest.approx(plans.seconds(request), rel=1e-3)
    else:
        assert rounds.halves(request) == pytest.approx(plans.halves(request), rel=1e-3)
    free = Pricer(of(name), topology)
    assert plans.seconds(request) > 1.5 * free.seconds(request)


@pytest.mark.parametrize("size", [8, 64])
def test_the_engine_s_own_sum_has_no_price_in_a_format(size: int) -> None:
    with pytest.raises(UserError, match="takes no wire format"):
        Pricer(of("native"), presets.cluster(presets.find("10gbe"), size))


def test_cores_that_ranks_share_code_for_all_of_them() -> None:
    """Four ranks on one core: it codes four vectors, and decodes what four ranks decode."""
    topology = Topology.parse("4", WIRE[:1])
    one_core = replace(topology, processor=Processor(cores=1.0))
    alone, shared = (vectors(of("ring"), each, PerElement(1.0, 1.0)) for each in (topology, one_core))
    assert shared == pytest.approx(4 * alone)


def test_bytes_that_are_sent_are_the_format_s() -> None:
    """int8 at most 0.26 of fp32's and 0.51 of bf16's; other requests are not coded."""
    topology, request = presets.cluster(presets.find("10gbe"), 8), RequestSize(Sum, 4.0 * NUMEL, 4.0 * NUMEL)
    fp32 = Pricer(collectives.build("ring"), topology)
    bf16 = Pricer(collectives.formatted(collectives.build("ring"), compressors.wire("bf16")), topology)
    for size in (8, 64):
        topology = presets.cluster(presets.find("10gbe"), size)
        for name in ("ring", "one_hop", "tree"):
            made = Pricer(of(name), topology)
            assert made.sent(request) / request.sent(size) == pytest.approx(8.125 / 32, rel=1e-3)
    made = Pricer(of("one_hop"), presets.cluster(presets.find("10gbe"), 8))
    assert made.sent(request) <= 0.26 * fp32.sent(request) and made.sent(request) <= 0.51 * bf16.sent(request)
    route = request._replace(kind=Route)
    assert made.sent(route) == fp32.sent(route)


@pytest.mark.parametrize("numel", [1, 7, 33, 100_003])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_bytes_of_any_length_are_those_that_are_counted(size: int, numel: int) -> None:
    """Zeros fill the last chunk: a sum of one number takes 260 bytes of int8 at each hop."""
    topology, request = presets.cluster(presets.find("10gbe"), size), RequestSize(Sum, 4.0 * numel, 4.0 * numel)
    for name, form in itertools.product(("ring", "one_hop", "halving_doubling", "tree"), ("int8", "mxfp6", "nvfp4")):
        made = collectives.formatted(collectives.build(name), compressors.wire(form))
        servers = [RequestExecutor(Metered(each), made, topology) for each in LocalHub(size).communicators]
        run([each.serve(Sum(torch.ones(numel))) for each in servers])
        counted = sum(each.log[0].wire_bytes for each in servers) / size
        assert Pricer(made, topology).sent(request) == pytest.approx(counted, rel=1e-4), (name, form)
    large = Pricer(of("ring"), presets.cluster(presets.find("10gbe"), 64))
    assert large.sent(request) == pytest.approx(-(-numel // 256) * 260 * 2 * 63 / 64, rel=1e-4)
