"""Requests served on virtual workers: every rank gets the right answer, and the log says at what cost."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.collectives.trees import Returned
from wirebench import collectives
from wirebench.collectives.execution.executor import RequestExecutor, RequestLog
from wirebench.collectives.plan import check
from wirebench.comm.base import LENGTH_BYTES
from wirebench.comm.local import LocalHub
from wirebench.comm.metered import Metered
from wirebench.exchange.advance import run
from wirebench.gradient.requests import Gather, Merge, Reduce, Request, Route, Sum
from wirebench.topology.tree import Topology
from wirebench.utils.rng import generator

NAMES = collectives.available()
SIZES = range(1, 10)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64)


def serve_all(name: str, requests: Sequence[Request]) -> tuple[list[Any], list[RequestExecutor]]:
    """Every rank's answer to its own request, and the servers."""
    size, collective = len(requests), collectives.build(name)
    servers = [RequestExecutor(Metered(c), collective, Topology.flat(size)) for c in LocalHub(size).communicators]
    return run([server.serve(request) for server, request in zip(servers, requests, strict=True)]), servers


def whole_numbers(rank: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randint(-9, 10, shape, generator=generator("whole", rank, *shape)).to(dtype)


def fractions(rank: int, numel: int) -> Tensor:
    return torch.randn(numel, generator=generator("fractions", rank, numel))


def union(mine: Tensor, theirs: Tensor) -> Tensor:
    """Associative and commutative, and what arrived twice or never shows."""
    return torch.cat([mine, theirs]).sort().values


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_sums_are_exact_and_the_same_everywhere(name, size):
    for numel in (0, 1, 2, 7, 100):
        inputs = [whole_numbers(rank, (numel,)) for rank in range(size)]
        expected = torch.stack(inputs).sum(0)
        answers, _ = serve_all(name, [Sum(each.clone()) for each in inputs])
        assert all(torch.equal(answer, expected) for answer in answers)


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_rounding_is_the_same_on_every_rank(name, size):
    inputs = [fractions(rank, 1003) for rank in range(size)]
    answers, _ = serve_all(name, [Sum(each.clone()) for each in inputs])
    assert all(torch.equal(answer, answers[0]) for answer in answers)
    assert torch.allclose(answers[0].double(), torch.stack(inputs).double().sum(0), atol=1e-5)


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_every_dtype(name, dtype):
    inputs = [whole_numbers(rank, (11,), dtype) for rank in range(4)]
    answers, _ = serve_all(name, [Sum(each.clone()) for each in inputs])
    for answer in answers:
        assert answer.dtype == dtype
        assert torch.equal(answer, torch.stack(inputs).sum(0, dtype=dtype))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("view", [lambda m: m, lambda m: m.t(), lambda m: m[:, ::2], lambda m: m[1:]])
def test_sums_keep_the_shape_whatever_the_strides(name, view: Callable[[Tensor], Tensor]):
    inputs = [view(whole_numbers(rank, (5, 6))) for rank in range(3)]
    expected = torch.stack(inputs).sum(0)
    answers, _ = serve_all(name, [Sum(each) for each in inputs])
    assert all(answer.shape == expected.shape and torch.equal(answer, expected) for answer in answers)


@pytest.mark.parametrize("name", NAMES)
def test_a_contiguous_sum_is_made_in_place(name):
    inputs = [whole_numbers(rank, (6,)) for rank in range(3)]
    answers, _ = serve_all(name, [Sum(each) for each in inputs])
    assert [answer.data_ptr() for answer in answers] == [each.data_ptr() for each in inputs]


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_gathers_bring_uneven_and_empty_parts_in_rank_order(name, size):
    for step in (3, 0):  # all parts may be empty
        inputs = [whole_numbers(rank, ((step * rank) % 5,)) for rank in range(size)]
        answers, _ = serve_all(name, [Gather(each.clone()) for each in inputs])
        for answer in answers:
            assert all(torch.equal(part, each) for part, each in zip(answer, inputs, strict=True))


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint8, torch.bool])
def test_gathers_of_every_dtype_and_stride(name, dtype):
    inputs = [whole_numbers(rank, (2 * rank + 1, 2), dtype)[:, 0] for rank in range(3)]
    answers, _ = serve_all(name, [Gather(each) for each in inputs])
    for answer in answers:
        assert [part.dtype for part in answer] == [dtype] * 3
        assert all(torch.equal(part, each) for part, each in zip(answer, inputs, strict=True))


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_merges_take_every_message_exactly_once(name, size):
    inputs = [100 * rank + torch.arange(rank % 4) for rank in range(size)]
    answers, _ = serve_all(name, [Merge(each.clone(), union) for each in inputs])
    assert all(torch.equal(answer, torch.cat(inputs)) for answer in answers)


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_merges_that_depend_on_the_order_are_the_same_on_every_rank(name, size):
    inputs = [fractions(rank, 5) for rank in range(size)]
    answers, _ = serve_all(
        name, [Merge(each.clone(), lambda mine, theirs: mine.mul_(0.3).add_(theirs)) for each in inputs]
    )
    assert all(torch.equal(answer, answers[0]) for answer in answers)


@pytest.mark.parametrize("name", NAMES)
def test_merged_messages_may_be_strided_and_change_length(name):
    inputs = [whole_numbers(rank, (4, 2))[:, 1] for rank in range(5)]
    answers, _ = serve_all(name, [Merge(each, lambda mine, theirs: union(mine, theirs)[::2]) for each in inputs])
    assert all(torch.equal(answer, answers[0]) for answer in answers)


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_routes_bring_every_rank_its_own_parts_in_rank_order(name, size):
    parts = [[whole_numbers(10 * src + dst, ((src + 2 * dst) % 5,)) for dst in range(size)] for src in range(size)]
    answers, _ = serve_all(name, [Route([part.clone() for part in mine]) for mine in parts])
    for dst, answer in enumerate(answers):
        assert len(answer) == size
        assert all(torch.equal(each, parts[src][dst]) for src, each in enumerate(answer))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.uint8, torch.bool])
def test_routes_of_every_dtype_and_stride(dtype):
    parts = [[whole_numbers(10 * src + dst, (dst + 1, 2), dtype)[:, 0] for dst in range(3)] for src in range(3)]
    answers, _ = serve_all("native", [Route(mine) for mine in parts])
    for dst, answer in enumerate(answers):
        assert [each.dtype for each in answer] == [dtype] * 3
        assert all(torch.equal(each, parts[src][dst]) for src, each in enumerate(answer))


def test_a_part_for_every_rank_is_asked_for():
    with pytest.raises(AssertionError, match="2 parts for 3 ranks"):
        serve_all("native", [Route([torch.ones(1)] * 2) for _ in range(3)])


def logged(name: str, requests: Sequence[Request]) -> list[RequestLog]:
    """What each rank's log has of its one request, but for when it was served."""
    _, servers = serve_all(name, requests)
    logs = [server.take_log() for server in servers]
    assert all(len(log) == 1 and log[0].seconds > 0 for log in logs) and not any(s.take_log() for s in servers)
    return [dataclasses.replace(served, seconds=0.0, begin=0.0) for (served,) in logs]


def test_the_log_counts_lengths_and_names_what_stands_in_for_a_plan():
    merges = [Merge(torch.ones(3), lambda mine, theirs: mine + theirs) for _ in range(2)]
    assert logged("tree", merges)[1] == RequestLog("Merge", "tree", 2, 12, 12, 12 + LENGTH_BYTES, 0.0)
    assert logged("native", merges)[1].plan == "native gather, fold in rank order"
    for name in ("ring", "tree", "native"):
        served = logged(name, [Gather(torch.ones(3), values=1) for _ in range(3)])[0]
        assert (served.kind, served.plan, served.payload_bytes, served.value_bytes) == ("Gather", name, 12, 4)
        assert served.wire_bytes > 0
        routes = logged(name, [Route([torch.ones(n) for n in (1, 2, 4)], values=3) for _ in range(3)])
        for own, served in zip((1, 2, 4), routes, strict=True):
            assert served == RequestLog("Route", "pairs", 1, 28, 12, 4 * (7 - own) + 2 * LENGTH_BYTES, 0.0)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("name", ["ring", "tree"])
def test_the_log_counts_what_the_plan_says(name, size):
    items = 7
    plan = collectives.build(name).plan(Topology.flat(size), items)
    assert plan is not None
    found = logged(name, [Sum(torch.ones(items, dtype=torch.float16), values=3) for _ in range(size)])
    for rank, served in enumerate(found):
        assert served == RequestLog("Sum", name, plan.rounds, 14, 6, 2 * plan.sent_items(rank), 0.0)


@pytest.mark.parametrize("name", NAMES)
def test_a_single_rank_sends_nothing(name):
    for request in (Sum(torch.ones(3)), Gather(torch.ones(3)), Merge(torch.ones(3), union), Route([torch.ones(3)])):
        (served,) = logged(name, [request])
        assert (served.plan, served.rounds, served.wire_bytes, served.payload_bytes) == ("none", 0, 0, 12)


def test_plans_are_made_once_per_size():
    asked: list[int] = []

    class Counting:
        def plan(self, topology: Topology, items: int) -> None:
            asked.append(items)

    server = RequestExecutor(Metered(LocalHub(2).communicators[0]), Counting(), Topology.flat(2))
    for numel in (3, 4, 3):
        next(server.serve(Sum(torch.ones(numel))))
    assert asked == [3, 4]


def test_fresh_transfers_overwrite():
    check(Returned().plan(Topology.flat(2), 3), 2, 3)
    for request in (Sum, lambda tensor: Merge(tensor, torch.add)):
        servers = [RequestExecutor(Metered(c), Returned(), Topology.flat(2)) for c in LocalHub(2).communicators]
        answers = run([server.serve(request(torch.full((3,), rank + 1.0))) for rank, server in enumerate(servers)])
        assert all(isinstance(answer, Tensor) and answer.tolist() == [3.0] * 3 for answer in answers)


@pytest.mark.parametrize("name", NAMES)
def test_a_reduce_leaves_the_sum_on_one_rank(name):
    for size in SIZES:
        for numel in (1, 7, 50):
            inputs = [whole_numbers(rank, (numel,)) for rank in range(size)]
            answers, servers = serve_all(name, [Reduce(each.clone()) for each in inputs])
            (told,) = [answer for answer in answers if answer is not None]
            assert torch.equal(told, torch.stack(inputs).sum(0))
            assert {server.log[0].kind for server in servers} == {"Reduce"}


@pytest.mark.parametrize(("name", "share"), [("tree", 0.5), ("star", 0.5), ("ring", 1.0)])
def test_a_reduce_is_half_of_a_sum_where_the_plan_has_a_root(name, share):
    sent = {}
    for kind in (Sum, Reduce):
        _, servers = serve_all(name, [kind(torch.ones(60)) for _ in range(5)])
        sent[kind] = sum(server.log[0].wire_bytes for server in servers)
    assert sent[Reduce] == share * sent[Sum]


def test_a_long_reduce_is_cut_into_segments():
    topology = Topology.parse("1+1+1+1")
    numel = 4_000_000
    servers = [RequestExecutor(Metered(c), collectives.build("tree"), topology) for c in LocalHub(4).communicators]
    inputs = [whole_numbers(rank, (numel,)) for rank in range(4)]
    requests = [Reduce(each.clone()) for each in inputs]
    answers = run([server.serve(request) for server, request in zip(servers, requests, strict=True)])
    assert isinstance(answers[0], Tensor)
    assert torch.equal(answers[0], torch.stack(inputs).sum(0))
    assert answers[1:] == [None] * 3
    assert servers[0].log[0].rounds > 2
