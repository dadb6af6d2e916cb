"""What tests of the drivers share: small models on lanes, with compressors that can be watched."""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from wirebench import collectives
from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.comm.base import Communicator
from wirebench.comm.local import LocalCommunicator, LocalHandle, LocalHub
from wirebench.comm.metered import Metered
from wirebench.exchange.lane import Lane
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Method
from wirebench.gradient.flat import Bucket, FlatGradient
from wirebench.gradient.requests import Sum
from wirebench.topology.tree import Topology

Result = TypeVar("Result")


class Averaging(Method):
    """Sums, divides; notes the bucket, the world and the thread of every exchange."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, ExchangeContext, str]] = []

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        self.seen.append((bucket.index, world, threading.current_thread().name))
        total = yield Sum(bucket.grad)
        return total / world.size  # a new tensor, which the lane brings home

    def wire_bytes(self, numel: int, size: int) -> int:
        return 4 * numel

    @property
    def buckets(self) -> list[int]:
        """Indices of the buckets in the order of their exchanges."""
        return [index for index, _, _ in self.seen]


class Net(nn.Module):
    """Three layers; `skip` leaves the middle one out, `odd` never takes part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.middle, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.odd = nn.Parameter(torch.ones(2))
        self.skip = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        return self.last(x if self.skip else self.middle(x).relu())


class Plain(Net):
    """The net without the parameter that takes no part."""

    def __init__(self) -> None:
        super().__init__()
        del self.odd


ORDER = ["last.weight", "last.bias", "middle.weight", "middle.bias", "first.weight", "first.bias", "odd"]
LAYERS = range(len(ORDER))
WFBP = [range(place, place + 1) for place in LAYERS]
PAIRS = [range(0, 2), range(2, 4), range(4, 7)]


def images(rank: int, count: int = 4) -> Tensor:
    """A worker's batch."""
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(rank))


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean over the batch of a loss that is not linear in the parameters."""
    return (model(batch) ** 2).sum(1).mean()


def plain_gradients(batches: Sequence[Tensor], skip: bool = False) -> dict[str, Tensor]:
    """The gradients of `Net` by autograd alone, averaged over `batches`; zeros where it has none."""
    model = Net()
    model.skip = skip
    (sum(loss_of(model, batch) for batch in batches) / len(batches)).backward()  # type: ignore[union-attr]
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}


def lane_of(
    communicator: Communicator,
    groups: Sequence[range] = WFBP,
    order: Sequence[str] = ORDER,
    compressor: Any = None,
    model: Any = None,
    collective: str = "native",
) -> tuple[Any, Lane]:
    """A model, by default a net, and its lane."""
    model = model or Net()
    server = RequestExecutor(Metered(communicator), collectives.build(collective), Topology.flat(communicator.size))
    lane = Lane(communicator.rank, FlatGradient(model, order), compressor or Averaging(), server, 7, nullcontext)
    lane.set_buckets(groups)
    return model, lane


def lanes_of(size: int, groups: Sequence[range] = WFBP) -> tuple[list[Net], list[Lane]]:
    """`size` virtual workers."""
    pairs = [lane_of(communicator, groups) for communicator in LocalHub(size).communicators]
    return [model for model, _ in pairs], [lane for _, lane in pairs]


def check_gradients(model: nn.Module, expected: Mapping[str, Tensor]) -> None:
    """The model's gradients are `expected`, up to rounding."""
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.allclose(parameter.grad, expected[name], rtol=1e-4, atol=1e-6), name


class Meeting:
    """Where the ranks of a world in threads, one for each rank's exchanges, wait for each other before every answer."""

    def __init__(self, size: int) -> None:
        self.hub, self.barrier = LocalHub(size), threading.Barrier(size, timeout=60)

    def communicator(self, rank: int) -> Communicator:
        """Rank `rank`'s: a local one whose calls are answered when all ranks have made them."""
        return _Meeting(self.hub, rank, self.barrier)

    def run(self, work: Callable[[int], Result]) -> list[Result]:
        """`work(rank)` of every rank, each in a thread of its own; raises the first rank's error, if any."""
        with ThreadPoolExecutor(self.hub.size) as pool:
            return [done.result() for done in [pool.submit(work, rank) for rank in range(self.hub.size)]]


class _Meeting(LocalCommunicator):
    def __init__(self, hub: LocalHub, rank: int, barrier: threading.Barrier) -> None:
        super().__init__(hub, rank)
        self.barrier = barrier

    def exchange(self, *args: Any, **options: Any) -> LocalHandle:
        return self._when_all_are_there(super().exchange(*args, **options))

    def all_reduce(self, tensor: Tensor) -> LocalHandle:
        return self._when_all_are_there(super().all_reduce(tensor))

    def all_gather(self, tensor: Tensor) -> LocalHandle:
        return self._when_all_are_there(super().all_gather(tensor))

    def _when_all_are_there(self, handle: LocalHandle) -> LocalHandle:
        answer = handle.result

        def result() -> Any:
            self.barrier.wait()
            return answer()

        handle.result = result
        return handle


def local_step(models, optimizers, step):
    """A step of all workers by themselves, each on images of its own."""
    for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        optimizer.zero_grad()
        loss_of(model, images(10 * step + rank)).backward()
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        optimizer.step()


def one_step(driver, models, optimizers, step):
    """A step of all workers under `driver`, each on images of its own."""
    driver.begin(step, 0)
    driver.enable_sync()
    for rank, model in enumerate(models):
        loss_of(model, images(10 * step + rank)).backward()
    driver.finish()
    with driver.stepping():
        for optimizer in optimizers:
            optimizer.step()
