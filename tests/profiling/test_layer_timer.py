"""Times of layers off real passes, on a model whose layers take the time they are told to."""

import copy
import json
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import wirebench.telemetry.timers
from wirebench.costmodel.piecewise import spans
from wirebench.errors import UserError
from wirebench.gradient.flat import FlatGradient
from wirebench.gradient.schedule import LayerCost
from wirebench.profiling import profile_files
from wirebench.profiling.layer_timer import LayerTimer, Profile, median
from wirebench.simulation import trace

CPU = torch.device("cpu")


class Clock:
    """Stands in for the time module: it passes while a layer works, and not otherwise."""

    now = 100.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


time = Clock()


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(wirebench.telemetry.timers, "time", time)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward_seconds, backward_seconds):
        time.sleep(forward_seconds)
        ctx.seconds = backward_seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None, None


class Sleeper(nn.Linear):
    """The backward pass of the layer above has ended when this one's sleep begins."""

    def __init__(self, forward_seconds, backward_seconds):
        super().__init__(2, 2, bias=False)
        self.times = forward_seconds, backward_seconds

    def forward(self, x):
        return Slow.apply(super().forward(x), *self.times)


def passes(model, timer, parts=1):
    timer.attach()
    for _ in range(parts):
        model(torch.ones(1, 2)).sum().backward()
    timer.keep()
    timer.detach()


def test_forward_and_ready_times_by_layer():
    model = nn.Sequential(Sleeper(0.02, 0.06), Sleeper(0.04, 0.03))
    timer = LayerTimer(model, ["1.weight", "0.weight"], CPU)
    for parts in (1, 2):
        passes(model, timer, parts)
    model(torch.ones(1, 2)).sum().backward()  # no hooks are left
    first, second = timer.take()
    for profile in (first, second):
        assert profile.ready == pytest.approx((0.03, 0.09))
        assert profile.forward == pytest.approx((0.04, 0.02))
    assert timer.take() == []


def test_hooks_stay_over_steps_and_are_attached_once():
    model = nn.Sequential(Sleeper(0, 0), Sleeper(1, 2))
    timer = LayerTimer(model, ["1.weight", "0.weight"], CPU)
    for _ in range(3):
        timer.attach()
        assert len(model._forward_pre_hooks) == 1
        model(torch.ones(1, 2)).sum().backward()
        timer.keep()
    timer.detach()
    assert not model._forward_pre_hooks
    assert [profile.ready for profile in timer.take()] == [pytest.approx((2.0, 2.0))] * 3


def test_a_layer_without_a_gradient_is_ready_with_the_one_before():
    model = nn.Sequential(Sleeper(0, 0), Sleeper(1, 2))
    timer = LayerTimer(model, ["1.weight", "0.weight"], CPU)
    model[0].weight.requires_grad_(False)
    passes(model, timer)
    [profile] = timer.take()
    assert profile.ready == pytest.approx((2.0, 2.0))


def test_the_median_of_profiles():
    found = median([Profile((1.0, 4.0), (1.0, 1.0)), Profile((2.0, 3.0), (1.0, 3.0)), Profile((3.0, 9.0), (5.0, 2.0))])
    assert found == Profile((2.0, 4.0), (1.0, 2.0))


ABOUT: dict[str, Any] = {
    "name": "run", "model": "toy", "hardware": "CPU", "batch_size": 4, "source": "a test", "torch": "2",
    "exchange": {"engine": "torch", "compressor": {"name": "topk"}, "collective": {"name": "ring"}, "workers": 2},
}  # fmt: skip


def saved(folder, points):
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    flat = FlatGradient(model, ["1.weight", "1.bias", "0.weight", "0.bias"])
    shapes = [(layer.name, tuple(p.shape)) for layer, p in zip(flat.layers, flat.parameters, strict=True)]
    profile = Profile((0.5, 0.5, 2.0, 3.0), (0.1, 0.2, 0.3, 0.4))
    profile_files.save(folder, ABOUT, shapes, profile, points)
    return [LayerCost(layer.name, layer.numel) for layer in flat.layers]


def test_a_profile_is_a_trace_and_comes_back(tmp_path):
    layers = saved(tmp_path, [(10, 0.1), (100, 0.2)])
    found = trace.load(tmp_path / "layers.json")
    assert [layer.name for layer in found.layers] == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert found.forward_seconds == pytest.approx(1.0)
    assert found.backward_seconds == pytest.approx(3.0)
    assert found.layers[1].shape == (2, 3)
    timed, points = profile_files.load(tmp_path, layers, {**ABOUT["exchange"], "engine": "horovod"})
    assert [layer.backward_seconds for layer in timed] == [0.5, 0.0, 1.5, 1.0]
    assert points == [(10, 0.1), (100, 0.2)]


def saved_points(folder, points):
    path = folder / "exchange.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "points": points}))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / "exchange.json").unlink(), "cannot be read"),
        (lambda folder: (folder / "exchange.json").write_text("{}"), "not what a run writes"),
        (lambda folder: saved_points(folder, []), "at least one"),
        (lambda folder: (folder / "layers.json").unlink(), "cannot be read"),
    ],
)
def test_a_damaged_profile_is_one_line(tmp_path, damage, says):
    layers = saved(tmp_path, [(10, 0.1)])
    damage(tmp_path)
    with pytest.raises(UserError, match=says):
        profile_files.load(tmp_path, layers, ABOUT["exchange"])


def test_a_profile_of_another_model_is_refused(tmp_path):
    layers = saved(tmp_path, [(10, 0.1)])
    with pytest.raises(UserError, match=r"scheduler\.profile: .* is of another model"):
        profile_files.load(tmp_path, layers[:-1], ABOUT["exchange"])


@pytest.mark.parametrize("key", ["compressor", "collective", "workers"])
def test_costs_of_another_exchange_are_refused(tmp_path, key):
    layers = saved(tmp_path, [(10, 0.1)])
    with pytest.raises(UserError, match=rf"is of another exchange: {key} was .*, here it is 'other'"):
        profile_files.load(tmp_path, layers, {**ABOUT["exchange"], key: "other"})


@pytest.mark.parametrize("points", [[(10, float("nan"))], [(10, -1.0)], [(0, 1.0)]])
def test_costs_that_no_message_has_are_refused(tmp_path, points):
    layers = saved(tmp_path, points)
    with pytest.raises(UserError, match="points: need sizes above 0 and seconds from 0 on"):
        profile_files.load(tmp_path, layers, ABOUT["exchange"])


@pytest.mark.parametrize("sizes", [[5], [300], [10, 20, 30], [64, 64, 4096, 64, 128, 1_000_000, 7], [1] * 3000])
def test_spans_of_layers_of_rising_size_up_to_all(sizes):
    found = spans(tuple(sizes))
    totals = [sum(sizes[i] for i in span) for span in found]
    assert found[-1] == range(len(sizes))
    assert totals == sorted(set(totals))
    if len(sizes) == 3000:
        assert totals == [256, 1024, 3000]


CALLS: dict[str, Any] = {
    "twice": (lambda model, x: model(x) + model(x), 2),
    "forward": (lambda model, x: model.forward(x), 1),
    "forward twice": (lambda model, x: model.forward(x) + model.forward(x), 2),
    "parts": (lambda model, x: model[1](model[0](x)), 1),
    "checkpointed": (lambda model, x: checkpoint(model, x, use_reentrant=False), 1),
}


@pytest.mark.parametrize("called", list(CALLS))
def test_a_pass_is_all_calls_before_its_backward_pass(called):
    call, times = CALLS[called]
    model = nn.Sequential(Sleeper(0.02, 0.06), Sleeper(0.04, 0.03))
    timer = LayerTimer(model, ["1.weight", "0.weight"], CPU)
    timer.attach()
    for _ in range(2):
        loss = call(model, torch.ones(1, 2)).sum()
        loss.backward()
        with torch.no_grad():
            model(torch.ones(1, 2))
        timer.keep()
        time.sleep(5)
    timer.detach()
    # Recomputation, which stops before the last layer, is part of the backward pass.
    again = 0.02 if called == "checkpointed" else 0.0
    for profile in timer.take():
        assert profile.forward == pytest.approx((0.04 * times, 0.02 * times))
        assert profile.ready[-1] == pytest.approx(0.09 * times + again)


def test_waiting_between_two_calls_of_the_model_is_no_forward_pass():
    model = nn.Sequential(Sleeper(0.02, 0.06), Sleeper(0.04, 0.03))
    timer = LayerTimer(model, ["1.weight", "0.weight"], CPU)
    timer.attach()
    first = model(torch.ones(1, 2))
    time.sleep(3)
    (first + model(torch.ones(1, 2))).sum().backward()
    timer.keep()
    first = model.forward(torch.ones(1, 2))
    time.sleep(3)
    (first + model.forward(torch.ones(1, 2))).sum().backward()
    timer.keep()
    for profile in timer.take():
        assert profile.forward == pytest.approx((0.08, 0.04))


def test_work_between_two_parts_is_the_former_ones():
    model = nn.Sequential(Sleeper(0.02, 0.06), Sleeper(0.04, 0.03))
    timer = LayerTimer(model, ["1.weight", "0.weight"], CPU)
    timer.attach()
    model[1](Slow.apply(model[0](torch.ones(1, 2)), 0.5, 0.0)).sum().backward()
    timer.keep()
    assert timer.take()[0].forward == pytest.approx((0.04, 0.52))


def test_a_step_without_a_backward_pass_or_without_a_call_takes_no_time():
    layer = Sleeper(0.02, 0.06)
    model = nn.Sequential(layer)
    timer = LayerTimer(model, ["0.weight"], CPU)
    timer.attach()
    timer.keep()
    layer.weight.sum().backward()
    timer.keep()
    assert timer.take() == [Profile((0.0,), (0.0,))] * 2


def test_a_copy_of_a_timed_model_and_a_saved_one_are_not_timed():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    timer = LayerTimer(model, ["1.weight", "1.bias", "0.weight", "0.bias"], CPU, every=True)
    timer.attach()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other(torch.ones(1, 2)).sum().backward()
    timer.keep()
    assert timer.take() == []


def test_a_timed_model_that_is_compiled_is_timed():
    model = nn.Sequential(Sleeper(0, 0), Sleeper(0, 0))
    timer = LayerTimer(model, ["1.weight", "0.weight"], CPU)
    timer.attach()
    torch.compile(model, backend="eager")(torch.ones(1, 2)).sum().backward()
    timer.keep()
    assert len(timer.take()) == 1
