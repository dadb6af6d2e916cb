"""The driver of split schedules, alone: updates come right before a layer's forward pass, or the run is refused."""

import contextlib
import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.compressors.test_contract import WARMUP, forms
from tests.exchange.lanes import Meeting, images, lane_of, loss_of
from wirebench import compressors
from wirebench.collectives.execution.executor import RequestLog
from wirebench.comm.base import Communicator
from wirebench.comm.local import LocalHub
from wirebench.errors import Diverged, UserError
from wirebench.exchange.lane import Lane
from wirebench.exchange.overlapped import Overlapped
from wirebench.exchange.reduce_scatter import ReduceScatterDriver
from wirebench.telemetry.clock import Clock
from wirebench.telemetry.timeline import Timeline
from wirebench.telemetry.timers import HostTimer
from wirebench.training.divergence import Guard, seeded

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


class Net(nn.Module):
    """Four layers, enough for the buckets to have something to choose from."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


NET_ORDER = [f"layers.{number}.{kind}" for number in (4, 2, 0) for kind in ("bias", "weight")]
NET_GROUPS = [range(0, 2), range(2, 4), range(4, 5), range(5, 6)]


def treed(model: nn.Module, communicator: Communicator | None = None, compressor: Any = None) -> Lane:
    """The lane of a `Net`, whose sums go along a tree."""
    communicator = communicator or LocalHub(1).communicators[0]
    return lane_of(communicator, NET_GROUPS, NET_ORDER, compressor, model, "tree")[1]


def two_of(around: bool, groups: Sequence[range]) -> tuple[Two, Lane]:
    """A `Two` and its lane."""
    return lane_of(LocalHub(1).communicators[0], groups, ORDER, model=Two(around), collective="tree")


def split_of(model: nn.Module, lane: Lane, optimizer: torch.optim.Optimizer | None = None) -> ReduceScatterDriver:
    timeline = Timeline()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return ReduceScatterDriver(lane, timeline, model, optimizer, Clock(CPU, timeline))


def step_of(driver: Overlapped, model: nn.Module, step: int, batch: Tensor, epoch: int = 0) -> Tensor:
    """One step up to its update; its loss."""
    driver.begin(step, epoch)
    driver.enable_sync()
    loss = loss_of(model, batch)
    seeded(loss).backward()
    driver.finish()
    return loss.detach()


def train(driver: ReduceScatterDriver, model: nn.Module, steps: int) -> None:
    for step in range(steps):
        step_of(driver, model, step, images(step))
    driver.settle()


GROUPS = [[range(0, 2)], [range(0, 1), range(1, 2)]]


@pytest.mark.parametrize("groups", GROUPS, ids=["one", "two"])
def test_weights_are_those_of_plain_sgd(opened: list[ReduceScatterDriver], groups: Sequence[range]) -> None:
    model, lane = two_of(False, groups)
    plain = copy.deepcopy(model)
    opened.append(driver := split_of(model, lane))
    step_of(driver, model, 0, images(0))
    assert driver.met(0) == -1, "others may not have begun it while its all-gathers are to come"
    driver.settle()
    assert driver.met(0) == 0
    for step in range(1, 4):
        step_of(driver, model, step, images(step))
    driver.settle()
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
    model, lane = two_of(True, groups)
    opened.append(driver := split_of(model, lane))
    with pytest.raises(UserError, match=r"^scheduler\.name: .* 'second\.weight' is used without that"):
        train(driver, model, 2)


WARMED_UP = [(name, options | {"warmup": WARMUP}) for name, options in forms() if "density" in options]
"""Every form of every compressor that takes a warm-up, in it."""


def trained(variant: tuple[str, dict[str, Any]], split: bool, steps: int = 6) -> list[tuple[Tensor, Counter[Any]]]:
    """Of both ranks of a world: the parameters after some steps, two of each epoch, and the messages they took."""
    name, options = variant
    # Made one after the other: threads share the generator that they are drawn from.
    meeting, models = Meeting(2), [Net(), Net()]

    def work(rank: int) -> tuple[Tensor, Counter[Any]]:
        model = models[rank]
        lane = treed(model, meeting.communicator(rank), compressors.build(name, **options))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        driver = split_of(model, lane, optimizer) if split else Overlapped(lane, Timeline())
        log: list[RequestLog] = []
        with contextlib.closing(driver):
            for step in range(steps):
                step_of(driver, model, step, images(2 * step + rank), step // 2)
                if not split:
                    optimizer.step()
                log += driver.take_logs()[0]
            driver.settle()
            log += driver.take_logs()[0]
        return lane.flat.gather_weights(), Counter((each.kind, each.payload_bytes, each.wire_bytes) for each in log)

    return meeting.run(work)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("variant", WARMED_UP, ids=lambda each: "-".join([each[0], *map(str, each[1].values())]))
def test_dear_is_fused_to_the_bit_also_in_a_warm_up(variant: tuple[str, dict[str, Any]]) -> None:
    """The same weights, by the same messages."""
    for (ours, messages), (theirs, wanted) in zip(trained(variant, True), trained(variant, False), strict=True):
        assert messages == wanted
        assert torch.equal(ours, theirs)


def test_a_bad_gradient_of_one_rank_ends_all_in_the_next_forward_pass() -> None:
    meeting, models = Meeting(2), [Net(), Net()]

    def work(rank: int) -> tuple[int, str]:
        model = models[rank]
        lane = treed(model, meeting.communicator(rank))
        guard = Guard(lane.flat)
        with contextlib.closing(split_of(model, lane)) as driver:
            driver.averaged = guard.note_gradient
            for step in range(5):
                batch = images(2 * step + rank)
                if (step, rank) == (2, 1):
                    batch[0, 0] = torch.inf
                try:
                    guard.note(step, step_of(driver, model, step, batch))
                except Diverged as error:
                    return step, str(error)
        raise AssertionError("nobody noticed")

    [first, second] = meeting.run(work)
    assert first == second
    assert first[0] == 3
    assert re.match(r"step 2: the gradient of layers? layers\.", first[1])


READS = ("__bool__", "item", "tolist", "__float__", "__int__")


def test_the_device_is_asked_at_most_once_a_step(
    opened: list[ReduceScatterDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU each of these waits for all that is under way, in the midst of the overlap that is measured."""
    model = Net()
    lane = treed(model)
    guard = Guard(lane.flat)
    opened.append(driver := split_of(model, lane))
    driver.averaged = guard.note_gradient
    asked: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(Tensor, name)

        def read(tensor: Tensor, *args: Any) -> Any:
            asked.append(name)
            return real(tensor, *args)

        return read

    for name in READS:
        monkeypatch.setattr(Tensor, name, counted(name))
    for step in range(4):
        asked.clear()
        loss = step_of(driver, model, step, images(step))
        assert len(asked) == (1 if step else 0), asked
        guard.note(step, loss)


class Ticks(HostTimer):
    """A clock that only goes on when it is told to."""

    now = 0.0

    def mark(self) -> float:
        return self.now

    def go_on(self, seconds: float) -> None:
        self.now += seconds


def test_updates_in_a_forward_pass_are_timed_as_all_phases_are(opened: list[ReduceScatterDriver]) -> None:
    """By the clock's own marks, which on a GPU are events; and they are no part of the forward pass."""
    model, ticks = Net(), Ticks()
    opened.append(driver := split_of(model, treed(model)))
    driver.clock._timer = ticks
    assert isinstance(driver.optimizer, torch.optim.Optimizer)
    driver.optimizer.register_step_post_hook(lambda *_: ticks.go_on(1))
    step_of(driver, model, 0, images(0))
    driver.clock.resume()
    with driver.clock.phase("forward"):
        ticks.go_on(10)
        driver.begin(1, 0)
        model(images(1))
    driver.clock.end_step(1, 4, True)
    [times] = driver.clock.completed()
    assert times.phases["update"] == len(NET_GROUPS)
    assert times.phases["forward"] == 10
    assert times.phases["exchange_exposed"] == 0
