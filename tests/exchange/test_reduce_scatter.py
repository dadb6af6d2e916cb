"""The driver of split schedules, alone: updates come right before a layer's forward pass, or the run is refused."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.exchange.lanes import Averaging, images, loss_of
from wirebench import collectives
from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.comm.local import LocalHub
from wirebench.comm.metered import Metered
from wirebench.errors import UserError
from wirebench.exchange.lane import Lane
from wirebench.exchange.reduce_scatter import ReduceScatterDriver
from wirebench.gradient.flat import FlatGradient
from wirebench.telemetry.clock import Clock
from wirebench.telemetry.timeline import Timeline
from wirebench.topology.tree import Topology

ORDER = ["second.weight", "first.weight"]
CPU = torch.device("cpu")


class Two(nn.Module):
    """Two layers; `around` uses the second one's weight without calling it."""

    def __init__(self, around: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.around = around

    def forward(self, x: Tensor) -> Tensor:
        if self.around:
            # A copy, so that autograd does not notice that the weight itself changes after its use.
            return self.first(functional.linear(x, self.second.weight.clone()).relu())
        return self.second(self.first(x).relu())


@pytest.fixture
def opened() -> Iterator[list[ReduceScatterDriver]]:
    """Drivers to close when the test is over."""
    drivers: list[ReduceScatterDriver] = []
    yield drivers
    for driver in drivers:
        driver.close()


def split_of(model: nn.Module, groups: Sequence[range]) -> ReduceScatterDriver:
    [communicator] = LocalHub(1).communicators
    server = RequestExecutor(Metered(communicator), collectives.build("ring"), Topology.flat(1))
    lane = Lane(0, FlatGradient(model, ORDER), Averaging(), server, 7, nullcontext)
    lane.set_buckets(groups)
    timeline = Timeline()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return ReduceScatterDriver(lane, timeline, model, optimizer, Clock(CPU, timeline))


def train(driver: ReduceScatterDriver, model: nn.Module, steps: int) -> None:
    for step in range(steps):
        driver.begin(step, 0)
        driver.enable_sync()
        loss_of(model, images(step)).backward()
        driver.finish()
    driver.settle()


GROUPS = [[range(0, 2)], [range(0, 1), range(1, 2)]]


@pytest.mark.parametrize("groups", GROUPS, ids=["one", "two"])
def test_weights_are_those_of_plain_sgd(opened: list[ReduceScatterDriver], groups: Sequence[range]) -> None:
    model = Two(around=False)
    plain = copy.deepcopy(model)
    opened.append(driver := split_of(model, groups))
    train(driver, model, 4)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(plain, images(step)).backward()
        optimizer.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("groups", GROUPS, ids=["one", "two"])
def test_a_weight_that_is_used_without_its_module_is_named(
    opened: list[ReduceScatterDriver], groups: Sequence[range]
) -> None:
    """Also where its bucket was asked for by another layer of the same bucket, after the use."""
    model = Two(around=True)
    opened.append(driver := split_of(model, groups))
    with pytest.raises(UserError, match=r"^scheduler\.name: .* 'second\.weight' is used without that"):
        train(driver, model, 2)
