"""torch.distributed over Gloo, in real processes; and that virtual workers sum as they do, to the bit."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from tests.comm.contract import CHECKS
from tests.comm.processes import Ranks, keeps_the_contract
from tests.helpers import answer_all, cut, lay_out, normal
from wirebench.collectives import build
from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.comm.base import Handle
from wirebench.comm.local import ring_sum
from wirebench.comm.metered import Metered
from wirebench.comm.torchdist import TorchCommunicator
from wirebench.compressors.quantised_sum import QuantisedSum
from wirebench.exchange.advance import advance, run
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.flat import Bucket
from wirebench.topology.tree import Topology
from wirebench.utils.rng import generator

WORLD = 5


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    ranks = Ranks(3)
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def five() -> Iterator[Ranks]:
    ranks = Ranks(WORLD)
    yield ranks
    ranks.close()


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    ranks = Ranks(2)
    yield ranks
    ranks.close()


@pytest.mark.parametrize("name", CHECKS)
def test_the_contract(three, name):
    three.call(keeps_the_contract, name)


@pytest.mark.parametrize("name", ["gathers", "many_rounds_stay_in_order"])
def test_the_contract_of_two_ranks(two, name):
    two.call(keeps_the_contract, name)


def gathers_beside_rounds() -> None:
    """Two gathers and a round between them, of messages of one length, whose receives could take each other's."""
    c = TorchCommunicator()
    other = 1 - c.rank
    first = c.all_gather(torch.full((3,), 10.0 + c.rank))
    between = c.exchange([(other, torch.full((3,), 20.0 + c.rank))], [(other, 3)])
    last = c.all_gather(torch.full((3,), 30.0 + c.rank))
    for gather, tens in ((first, 10.0), (last, 30.0)):
        assert [each.tolist() for each in gather.wait()] == [[tens] * 3, [tens + 1] * 3]
    assert between.wait()[0].tolist() == [20.0 + other] * 3
    assert [each.numel() for each in c.all_gather(torch.ones(0)).wait()] == [0, 0]
    assert [each.dtype for each in c.all_gather(torch.ones(c.rank, dtype=torch.int16)).wait()] == [torch.int16] * 2


def test_gathers_of_two_ranks_keep_their_own_messages(two):
    two.call(gathers_beside_rounds)


def bytes_sent() -> dict[str, int]:
    """What a rank of three says that it sent."""
    c, found = TorchCommunicator(), {}
    calls: dict[str, Handle] = {
        "round": c.exchange([((c.rank + 1) % 3, torch.ones(4))], [((c.rank + 2) % 3, 4)]),
        "round with lengths": c.exchange([((c.rank + 1) % 3, torch.ones(4))], [((c.rank + 2) % 3, None)]),
        "sum": c.all_reduce(torch.ones(6)),
        "broadcast": c.broadcast([torch.ones(5)], root=1),
    }
    for name, handle in calls.items():
        handle.wait()
        found[name] = handle.wire_bytes
    gather = c.all_gather(torch.ones(c.rank))
    gather.wait()
    return found | {"gather": gather.wire_bytes}


def test_bytes_are_counted(three):
    sent = {"round": 16, "round with lengths": 24, "sum": 32, "broadcast": 0, "gather": 2 * (8 + 2 * 4)}
    assert three.call(bytes_sent) == [sent, sent | {"broadcast": 20}, sent]


def in_flight() -> None:
    """Two rounds and a sum at once, waited for in the same order on every rank."""
    c = TorchCommunicator()
    left, right = (c.rank - 1) % c.size, (c.rank + 1) % c.size
    rounds = [c.exchange([(right, torch.full((3,), float(c.rank + 10 * n)))], [(left, 3)]) for n in range(2)]
    total = c.all_reduce(torch.ones(2))
    for number, handle in enumerate(rounds):
        assert handle.wait()[0].tolist() == [left + 10 * number] * 3
    assert total.wait().tolist() == [c.size] * 2


def test_calls_may_be_under_way_together(three):
    three.call(in_flight)


def contribution(rank: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """Values whose sum depends on its order."""
    return (torch.randn(numel, generator=generator("order", rank, numel)) * 1000).to(dtype)


def gloo_differs(sizes: list[int], numels: list[int], dtype: torch.dtype) -> list[tuple[int, int]]:
    """(P, numel) for which the first P ranks' all-reduce by Gloo is not `ring_sum`."""
    wrong = []
    for size in sizes:
        group = dist.new_group(list(range(size)))
        if not isinstance(group, dist.ProcessGroup):
            continue  # this rank is not in it
        for numel in numels:
            parts = [contribution(rank, numel, dtype) for rank in range(size)]
            total = parts[dist.get_rank()].clone()
            dist.all_reduce(total, group=group)
            if not torch.equal(total, ring_sum(parts)):
                wrong.append((size, numel))
    return wrong


LAYERS = lay_out([(40, 25), (7,), (64, 3)])
TWO = [range(0, 1), range(1, 3)]
"""Buckets, both under way at once."""


def few_bits() -> QuantisedSum:
    """Shares that are summed in bf16 within machines of two ranks, then between them in int8."""
    return QuantisedSum("int8", chunk=16, group=2, within="bf16")


def buckets_of(rank: int, step: int) -> list[Bucket]:
    return cut(normal(4, step, LAYERS[-1].stop)[rank].clone(), LAYERS, TWO)


def sums_in_groups() -> tuple[list[list[float]], int] | None:
    """What the first four ranks get of two steps, and the bytes that a rank sent; None on the fifth."""
    group = dist.new_group(list(range(4)))
    if not isinstance(group, dist.ProcessGroup):
        return None
    c, method, results = Metered(TorchCommunicator(group=group)), few_bits(), []
    server = RequestExecutor(c, build("native"), Topology.parse("2+2"))
    for step in range(2):
        world = ExchangeContext(c.rank, 4, step)
        exchanges = [method.exchange(bucket, world) for bucket in buckets_of(c.rank, step)]
        results += [each.tolist() for each in run([advance(each, server.serve) for each in exchanges])]
    return results, c.count.wire_bytes


def test_sums_in_groups_are_those_of_virtual_workers(five):
    """Messages of no bytes go to the ranks of other groups, and none of them waits for one."""
    methods, expected = [few_bits() for _ in range(4)], []
    for step in range(2):
        for ranks in zip(*(buckets_of(rank, step) for rank in range(4)), strict=True):
            worlds = (ExchangeContext(rank, 4, step) for rank in range(4))
            found = answer_all([m.exchange(b, w) for m, b, w in zip(methods, ranks, worlds, strict=True)])
            expected.append(found[0].tolist())
    *first, none = five.call(sums_in_groups)
    assert none is None and [results for results, _ in first] == [expected] * 4
    # A half goes to the machine's other rank in bf16, a quarter to the other machine in int8, where 16 numbers have a
    # scale of 4 bytes. Of the sum a quarter goes to each of the others, with its length in front.
    sent = sum(each // 2 * 2 + each // 4 * 20 // 16 + 3 * (each // 4 * 20 // 16 + 8) for each in (1024, 256))
    assert [sent_bytes for _, sent_bytes in first] == [2 * sent] * 4


LENGTHS = [*range(1, 40), *range(40, 1000, 37), *range(1000, 5001, 211), 4096, 5000, 600_000]
"""The last one takes more than one segment of 1 MiB per rank."""


@pytest.mark.parametrize(
    ("dtype", "numels"),
    [
        (torch.float32, LENGTHS),
        (torch.float64, LENGTHS[::7]),
        (torch.float16, LENGTHS[::7]),
        (torch.bfloat16, LENGTHS[::7]),
    ],
)
def test_virtual_workers_sum_as_gloo_does(five, dtype, numels):
    assert five.call(gloo_differs, list(range(1, WORLD + 1)), numels, dtype) == [[]] * WORLD
