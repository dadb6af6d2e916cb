"""torch.distributed over Gloo, in real processes; and that virtual workers sum as they do, to the bit."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from tests.comm.contract import CHECKS
from tests.comm.processes import Ranks, keeps_the_contract
from wirebench.comm.base import Handle
from wirebench.comm.local import ring_sum
from wirebench.comm.torchdist import TorchCommunicator
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
