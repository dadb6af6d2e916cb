"""The communication thread: buckets leave in order while the backward pass goes on, and errors come back."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from tests.exchange.lanes import (
    LAYERS,
    ORDER,
    PAIRS,
    WFBP,
    Averaging,
    Net,
    check_gradients,
    images,
    lane_of,
    loss_of,
    plain_gradients,
)
from wirebench.comm.local import LocalCommunicator, LocalHandle, LocalHub
from wirebench.exchange.overlapped import AfterBackward, Overlapped
from wirebench.telemetry.timeline import Timeline


class Echo(LocalCommunicator):
    """Rank 0 of two whose peer always has the same gradient; every sum takes `seconds`, and the `fails`th is lost."""

    def __init__(self, seconds: float = 0.0, fails: int = -1) -> None:
        super().__init__(LocalHub(2), 0)
        self.seconds, self.fails, self.calls = seconds, fails, 0

    def all_reduce(self, tensor: Tensor) -> LocalHandle:
        def result() -> Tensor:
            time.sleep(self.seconds)
            self.calls += 1
            if self.calls == self.fails:
                raise ConnectionError("the peer is gone")
            return tensor.mul_(2)

        return LocalHandle(result, tensor.nbytes)


class Opened(NamedTuple):
    """A driver, its model and its compressor."""

    driver: Overlapped
    model: Net
    compressor: Averaging


@pytest.fixture
def opened() -> Iterator[Callable[..., Opened]]:
    """Makes a driver of an echo's lane, and closes it when the test is over."""
    with ExitStack() as stack:

        def make(
            groups: Sequence[range] = WFBP,
            order: Sequence[str] = ORDER,
            kind: type[Overlapped] = Overlapped,
            echo: Echo | None = None,
            timeline: Timeline | None = None,
        ) -> Opened:
            compressor = Averaging()
            model, made = lane_of(echo or Echo(), groups, order, compressor)
            driver = kind(made, timeline or Timeline())
            stack.callback(driver.close)
            return Opened(driver, model, compressor)

        yield make


def step_of(driver: Overlapped, model: nn.Module, step: int, parts: int = 1) -> None:
    driver.begin(step, 0)
    for number, few in enumerate(images(step, 8).chunk(parts)):
        if number == parts - 1:
            driver.enable_sync()
        (loss_of(model, few) / parts).backward()
    driver.finish()


def test_a_held_step_says_how_long_each_exchange_took(opened):
    driver, model, _ = opened(WFBP, echo=Echo(0.02))
    driver.holding = True
    step_of(driver, model, 0)
    durations = driver.take_durations()
    assert len(durations) == len(WFBP)
    assert all(each.seconds >= 0.02 and each.copy_seconds == 0 for each in durations)
    assert driver.take_durations() == []


def test_what_lies_between_exchanges_belongs_to_the_one_before(opened):
    """The order of a split schedule's second halves: the last bucket first."""
    driver, _, _ = opened(WFBP)
    timed = [(2, 0.0, 1.0), (1, 1.5, 2.0), (0, 4.0, 5.0)]
    assert driver._seconds(timed) == [1.0, 2.5, 1.5]
    assert timed == []


@pytest.mark.parametrize("groups", [WFBP, PAIRS, [LAYERS]])
@pytest.mark.parametrize("kind", [Overlapped, AfterBackward])
@pytest.mark.parametrize("parts", [1, 4])
def test_gradients_are_averaged_step_after_step(opened, groups, kind, parts):
    driver, model, _ = opened(groups, kind=kind)
    for step in range(3):
        step_of(driver, model, step, parts)
        check_gradients(model, plain_gradients([images(step, 8)]))
        assert len(driver.take_logs()[0]) == len(groups)


@pytest.mark.parametrize("order", [ORDER, ORDER[::-1], ORDER[3:] + ORDER[:3]])
@pytest.mark.parametrize("groups", [WFBP, PAIRS])
def test_buckets_leave_in_order_whatever_order_gradients_come_in(opened, order, groups):
    driver, model, compressor = opened(groups, order)
    for step in range(2):
        step_of(driver, model, step)
        check_gradients(model, plain_gradients([images(step, 8)]))
    assert compressor.buckets == 2 * list(range(len(groups)))


def test_layers_without_gradient_hold_nothing_up(opened):
    driver, model, compressor = opened(PAIRS)
    model.skip = True
    step_of(driver, model, 0)
    check_gradients(model, plain_gradients([images(0, 8)], skip=True))
    model.skip = False
    step_of(driver, model, 1)
    check_gradients(model, plain_gradients([images(1, 8)]))
    assert compressor.buckets == [0, 1, 2, 0, 1, 2]


def test_frozen_layers_take_no_part(opened):
    frozen, order = Net(), [name for name in ORDER if not name.startswith("middle")]
    frozen.middle.requires_grad_(False)
    model, lane = lane_of(Echo(), [range(len(order))], order, model=frozen)
    with closing(Overlapped(lane, Timeline())) as driver:
        step_of(driver, model, 0)
    expected = plain_gradients([images(0, 8)])
    for name, parameter in model.named_parameters():
        if name.startswith("middle"):
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, expected[name])


def test_micro_batches_start_nothing_before_the_last_one(opened):
    driver, model, compressor = opened()
    driver.begin(0, 0)
    loss_of(model, images(0)).backward()
    time.sleep(0.02)
    assert compressor.seen == []
    driver.enable_sync()
    loss_of(model, images(1)).backward()
    driver.finish()
    assert compressor.buckets == list(LAYERS)


def test_finishing_a_step_whose_sync_was_not_enabled_is_a_mistake(opened):
    driver, model, _ = opened()
    driver.begin(0, 0)
    loss_of(model, images(0)).backward()
    with pytest.raises(AssertionError, match=r"without enable_sync\(\)"):
        driver.finish()


@pytest.mark.parametrize("fails", [1, 2, 3])
def test_what_an_exchange_raises_reaches_the_training_thread(opened, fails):
    driver, model, compressor = opened(PAIRS, echo=Echo(fails=fails))
    with pytest.raises(ConnectionError, match="the peer is gone"):
        step_of(driver, model, 0)
    assert len(compressor.seen) == fails, "nothing is exchanged after an error"
    with pytest.raises(ConnectionError):
        step_of(driver, model, 1)


def test_closing_ends_the_thread_and_detaches():
    model, lane = lane_of(Echo())
    driver = Overlapped(lane, Timeline())
    driver._background.submit(lambda: None)
    thread = driver._background._thread
    driver.close()
    assert thread is not None and not thread.is_alive()
    lane.begin(0, 0)
    loss_of(model, images(0)).backward()
    assert not lane.flat.grad.any()


@pytest.mark.parametrize("stopped", [False, True])
def test_closing_in_a_step_exchanges_all_of_it_on_every_rank(stopped):
    """Else only ranks whose thread had a wake-up call left over exchange the last bucket, and wait for the others."""
    compressor, frozen, order = Averaging(), Net(), [name for name in ORDER if not name.startswith("odd")]
    frozen.odd.requires_grad_(False)
    model, lane = lane_of(Echo(), WFBP[:-1], order, compressor, model=frozen)
    driver = Overlapped(lane, Timeline())
    driver.begin(0, 0)
    driver.enable_sync()
    loss_of(model, images(0)).backward()
    if stopped:
        driver._background.submit(interrupted, wake=False)
        with pytest.raises(KeyboardInterrupt):
            driver.close()
        thread = driver._background._thread
        assert thread is not None
        thread.join(60)
        assert not thread.is_alive()
    else:
        driver.close()
    assert len(compressor.seen) == len(order)


def interrupted() -> None:
    raise KeyboardInterrupt


class Held(torch.autograd.Function):
    """Passes on what it gets, on the way back when `until` has returned."""

    until: ClassVar[Callable[[], object]] = staticmethod(lambda: None)

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        Held.until()
        return gradient


def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def spans(timeline: Timeline, folder) -> dict[str, tuple[float, float]]:
    """(begin, end) in milliseconds of everything that was drawn, by name."""
    timeline.save(folder / "trace.json")
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    return {e["name"]: (e["ts"] / 1e3, (e["ts"] + e["dur"]) / 1e3) for e in events if e["ph"] == "X"}


def drawn_step(
    opened, folder, monkeypatch, kind: type[Overlapped], wait: Callable[[Averaging], object]
) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """A step whose backward pass stands still before its first layer, as long as `wait` takes: spans, and threads.

    The step before has shown the order of the gradients.
    """
    timeline = Timeline()
    driver, model, compressor = opened(PAIRS, kind=kind, timeline=timeline)
    model.first.register_forward_hook(lambda _module, _inputs, output: Held.apply(output))
    step_of(driver, model, 0)
    driver._background.wait()  # a call of this step that the thread has not heard yet would take the last bucket
    monkeypatch.setattr(Held, "until", lambda: wait(compressor))
    timeline.active = True
    driver.begin(1, 0)
    driver.enable_sync()
    loss = loss_of(model, images(0))
    begin = time.perf_counter()
    loss.backward()
    timeline.span("compute", "backward", begin, time.perf_counter())
    driver.finish()
    check_gradients(model, plain_gradients([images(0)]))
    return spans(timeline, folder), [thread for _, _, thread in compressor.seen[3:]]


def test_exchanges_run_in_a_thread_while_the_backward_pass_goes_on_and_the_rest_where_it_has_ended(
    opened, tmp_path, monkeypatch
):
    """The backward pass waits here until the second exchange has begun."""
    second = lambda compressor: until(lambda: len(compressor.seen) == 5)  # noqa: E731
    drawn, threads = drawn_step(opened, tmp_path, monkeypatch, Overlapped, second)
    assert threads == ["exchange", "exchange", threading.current_thread().name]
    backward_end = drawn["backward"][1]
    assert drawn["bucket 0"][1] < backward_end
    assert drawn["bucket 1"][0] < backward_end
    assert drawn["bucket 0"][1] <= drawn["bucket 1"][0] + 1e-5, "one after the other"


def test_after_backward_means_after_backward(opened, tmp_path, monkeypatch):
    """The backward pass takes long enough for a thread to begin."""
    drawn, _ = drawn_step(opened, tmp_path, monkeypatch, AfterBackward, lambda _: time.sleep(0.1))
    assert all(drawn[f"bucket {number}"][0] >= drawn["backward"][1] - 1e-5 for number in range(3))
