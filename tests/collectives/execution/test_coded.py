"""Plans with wire formats: all ranks get the same bits, the bytes are those that arithmetic gives, sums are near."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.collectives.trees import Returned
from wirebench import collectives, compressors
from wirebench.collectives.execution.coded import coded_program_of
from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.collectives.plan import Collective, Plan, check, copied_pieces, mirror
from wirebench.collectives.wire import items_of
from wirebench.comm.local import LocalHub
from wirebench.comm.metered import Metered
from wirebench.costmodel.plan_cost import plan_seconds, sent_bytes, uplink_bytes
from wirebench.costmodel.request_cost import Pricer
from wirebench.errors import UserError
from wirebench.exchange.advance import run
from wirebench.gradient.requests import Sum
from wirebench.topology.tree import Link, Topology

NAMES = [name for name in collectives.available() if name != "native"]
BITS = {"bf16": 16, "int8": 8 + 32 / 256, "fp8_e5m2": 8 + 32 / 256, "mxfp6": 6 + 8 / 32, "nvfp4": 4 + 8 / 16}
"""Of an element, with its scales."""
STEP = {"bf16": 2**-9, "int8": 0.5 / 127, "fp8_e5m2": 2**-3, "mxfp6": 2**-3, "nvfp4": 0.25}
"""The most that rounding moves a number, over the largest of its chunk."""


def coded(name: str, form: str, within: str = "") -> Collective:
    made = collectives.build(name)
    return collectives.formatted(made, compressors.wire(form), compressors.wire(within) if within else None)


def test_a_format_as_an_option_is_answered_with_how_it_is_set() -> None:
    with pytest.raises(UserError, match=r"formatted\(collectives.build\('ring'\), compressors.wire\('int8'\)\)"):
        collectives.build("ring", wire="int8")


def served(collective: Collective, topology: Topology, inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[int]]:
    """All ranks' sums, and the bytes that each sent."""
    hub = LocalHub(topology.size)
    servers = [RequestExecutor(Metered(each), collective, topology) for each in hub.communicators]
    answers = run([server.serve(Sum(each.clone())) for server, each in zip(servers, inputs, strict=True)])
    return [torch.as_tensor(answer) for answer in answers], [server.log[0].wire_bytes for server in servers]


def inputs_of(size: int, numel: int) -> list[Tensor]:
    rng = torch.Generator().manual_seed(size * numel)
    return [torch.randn(numel, generator=rng) for _ in range(size)]


@pytest.mark.parametrize("name", NAMES)
def test_all_ranks_get_the_same_bits_near_the_sum(name: str) -> None:
    """Also with ranks beyond a power of two, with fewer chunks than ranks, and with a last chunk that is not full."""
    for (form, step), (layout, numel) in zip(
        STEP.items(), [("4", 5000), ("2+3", 777), ("2+2+1", 4096), ("6", 300), ("1+1+1", 9000)], strict=True
    ):
        topology = Topology.parse(layout)
        inputs = inputs_of(topology.size, numel)
        answers, _ = served(coded(name, form, "" if name == "recursive_doubling" else "bf16"), topology, inputs)
        assert all(torch.equal(answers[0], answer) for answer in answers[1:]), (form, layout)
        # At worst every hop rounds the whole sum of the largest numbers.
        worst = step * topology.size * sum(float(each.abs().max()) for each in inputs)
        assert 0 < float((answers[0] - torch.stack(inputs).sum(0)).abs().max()) < worst, (form, layout)


@pytest.mark.parametrize("layout", ["1+3", "1+4", "2+5", "1+2+4"])
def test_a_piece_that_comes_back_is_coded_by_the_rank_that_had_it(layout: str) -> None:
    """On uneven machines FlexReduce's copy half sends pieces back to the rank that sent them first."""
    topology = Topology.parse(layout)
    inputs, collective = inputs_of(topology.size, 9000), coded("flexreduce", "int8")
    plan = collective.plan(topology, items_of(collective, 9000).number)
    assert plan is not None
    came, sent = (
        {(rank, item) for each in plan.copy for t in each for rank in [side(t)] for item in range(t.start, t.stop)}
        for side in (lambda t: t.dst, lambda t: t.src)
    )
    coders = {
        item: {*range(topology.size)} - receivers
        for start, stop, receivers in copied_pieces(plan)
        for item in range(start, stop)
    }
    assert all(coders.values()) and any((rank, item) in came & sent for item, ranks in coders.items() for rank in ranks)
    answers, _ = served(collective, topology, inputs)
    wanted = torch.stack(inputs).sum(0)
    for each in answers:
        assert torch.equal(each, answers[0]) and 0 < float((each - wanted).norm() / wanted.norm()) < 0.02


class Mirrored(NamedTuple):
    """A collective whose copy half is the mirror of its reduce half."""

    inner: Collective

    def plan(self, topology: Topology, items: int) -> Plan | None:
        plan = self.inner.plan(topology, items)
        assert plan is not None
        return replace(plan, copy=mirror(plan.reduce))


@pytest.mark.parametrize("layout", ["1+3", "2+5", "2+2", "3+3+3"])
@pytest.mark.parametrize("name", ["ring", "hierarchical", "blueconnect"])
def test_the_direction_of_an_all_gather_changes_no_bit(name: str, layout: str) -> None:
    topology = Topology.parse(layout)
    inputs, made = inputs_of(topology.size, 6000), collectives.build(name)
    for wire in (None, compressors.wire("int8"), compressors.wire("nvfp4")):
        (forward, sent), (back, sent_back) = (
            served(collectives.formatted(each, wire), topology, inputs) for each in (made, Mirrored(made))
        )
        assert all(torch.equal(each, back[0]) for each in forward), wire
        assert sum(sent) == sum(sent_back)
    assert layout != "3+3+3" or made.plan(topology, 99) != Mirrored(made).plan(topology, 99)


@pytest.mark.parametrize("name", ["ring", "one_hop", "halving_doubling", "hierarchical", "flexreduce"])
@pytest.mark.parametrize("form", BITS)
def test_bytes_are_those_of_the_format(name: str, form: str) -> None:
    """As many as the plan says, and within 2 % the bits of an element times the elements that fp32 would send."""
    topology, numel = Topology.parse("2+2"), 4 * 8192
    collective, plain = coded(name, form), collectives.build(name).plan(Topology.parse("2+2"), numel)
    assert plain is not None
    _, sent = served(collective, topology, inputs_of(4, numel))
    items = items_of(collective, numel)
    plan = collective.plan(topology, items.number)
    assert plan is not None
    check(plan, 4, items.number)
    assert sent_bytes(plan, items.num_bytes) == {rank: sent[rank] for rank in range(4) if sent[rank]}
    for rank in range(4):
        assert sent[rank] == pytest.approx(plain.sent_items(rank) * BITS[form] / 8, rel=0.02)
    crossing = [each.sent for each in uplink_bytes(plan, topology, items.num_bytes)]
    dense = [each.sent for each in uplink_bytes(plain, topology, BITS[form] / 8)]
    assert crossing == pytest.approx(dense, rel=0.02)


def test_a_format_within_machines_is_of_their_messages_alone() -> None:
    topology, numel = Topology.parse("4+4"), 8 * 2048
    fine, mixed = coded("hierarchical", "bf16"), coded("hierarchical", "int8", "bf16")
    inputs = inputs_of(8, numel)
    (of_fine, _), (of_mixed, _), (of_int8, _) = (
        served(each, topology, inputs) for each in (fine, mixed, coded("hierarchical", "int8"))
    )
    wanted = torch.stack(inputs).sum(0)
    off = [float((each[0] - wanted).norm()) for each in (of_fine, of_mixed, of_int8)]
    assert 3 * off[0] < off[1] < off[2]
    plan = mixed.plan(topology, numel // 256)
    assert plan is not None and plan.name == "hierarchical in int8, bf16 within machines"
    # The tree within a machine sends everything in bf16 to its masters' place; back it comes in int8.
    assert sent_bytes(plan, 1024)[1] == 2 * numel
    assert sent_bytes(plan, 1024)[0] == pytest.approx((2 + 2 * 0.5) * numel * BITS["int8"] / 8)


def test_what_partners_swap_both_round() -> None:
    """Rank 0's program knows which of its own numbers it adds up once more; in a ring none."""
    topology = Topology.flat(4)
    for name, kept in (("recursive_doubling", True), ("ring", False), ("one_hop", False), ("tree", False)):
        plan = coded(name, "int8").plan(topology, 16)
        assert plan is not None
        of_ranks = [coded_program_of(plan, rank).sends for rank in range(4)]
        assert {sent.kept for sends in of_ranks for each in sends for sent in each} == {kept}, name


def test_a_rank_that_takes_its_items_back_adds_them_once() -> None:
    bf16 = collectives.formatted(Returned(), compressors.wire("bf16"))
    answers, _ = served(bf16, Topology.flat(2), [torch.ones(9), torch.ones(9)])
    assert [answer.tolist() for answer in answers] == [[2.0] * 9] * 2


def test_halves_of_a_sum_are_the_whole() -> None:
    topology, inputs = Topology.parse("1+1+1"), inputs_of(3, 700_000)
    whole, sent = served(coded("ring", "int8"), topology, inputs)
    servers = [RequestExecutor(Metered(c), coded("ring", "int8"), topology) for c in LocalHub(3).communicators]
    for server in servers:
        server.halves = True
    answers = run([server.serve(Sum(each.clone())) for server, each in zip(servers, inputs, strict=True)])
    assert all(torch.equal(torch.as_tensor(answer), whole[0]) for answer in answers)
    assert [server.log[0].wire_bytes for server in servers] == sent


def test_other_floats_are_summed_in_fp32_and_integers_refused() -> None:
    topology, inputs = Topology.flat(3), [each.bfloat16() for each in inputs_of(3, 500)]
    answers, _ = served(coded("one_hop", "bf16"), topology, inputs)
    wanted = torch.stack(inputs).float().sum(0)
    assert answers[0].dtype == torch.bfloat16 and torch.allclose(answers[0].float(), wanted, rtol=2**-8, atol=0)
    with pytest.raises(UserError, match=r"collective[.]wire: codes floating-point numbers, .* a sum of int32"):
        served(coded("ring", "int8"), topology, [torch.ones(4, dtype=torch.int32)] * 3)
    with pytest.raises(UserError, match=r"in recursive_doubling ranks swap sums, which all have to round alike"):
        coded("recursive_doubling", "int8", "bf16").plan(topology, 4)
    with pytest.raises(UserError, match=r"the engine's own all-reduce .* takes no wire format"):
        coded("native", "int8").plan(topology, 4)


def test_not_a_number_reaches_all_ranks() -> None:
    for name, form in itertools.product(("ring", "one_hop", "recursive_doubling"), ("int8", "mxfp8", "nvfp4")):
        inputs = inputs_of(3, 2000)
        inputs[1][1234] = torch.nan
        answers, _ = served(coded(name, form), Topology.flat(3), inputs)
        assert all(bool(answer[1234].isnan()) for answer in answers), (name, form)


@pytest.mark.parametrize("name", NAMES)
def test_the_price_of_a_sum_is_that_of_its_bytes(name: str) -> None:
    """Without start-up times, and where adding is free, an int8 sum takes 8.125 / 32 of an fp32 sum's time."""
    topology = Topology.parse("2+2", [Link(0.0, 1e9), Link(0.0, 1e9)])
    numel = 4 * 840 * 256
    seconds = []
    for collective in (collectives.build(name), coded(name, "int8")):
        items = items_of(collective, numel)
        plan = collective.plan(topology, items.number)
        assert plan is not None
        seconds.append(plan_seconds(plan, topology, items.num_bytes))
    assert seconds[1] / seconds[0] == pytest.approx(BITS["int8"] / 32, rel=1e-6)
    large = Topology.parse("+".join(["2"] * 16), [Link(0.0, 1e9), Link(0.0, 1e9)])
    many = [Pricer(each, large)._sum(4.0 * numel, "whole") for each in (collectives.build(name), coded(name, "int8"))]
    assert many[1] / many[0] == pytest.approx(BITS["int8"] / 32, rel=1e-3)
