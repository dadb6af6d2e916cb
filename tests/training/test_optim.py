"""SGD as PyTorch's, on flat and strided parameters, and learning rates computed by hand."""

import copy
import io

import pytest
import torch
from torch import nn

from wirebench.config.loader import OptimizerConfig
from wirebench.errors import UserError
from wirebench.gradient.flat import FlatGradient
from wirebench.training.optimizers.build import build_optimizer
from wirebench.training.optimizers.rates import apply_learning_rate, learning_rate

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
SECTION = OptimizerConfig(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)


def _network(device="cpu", channels_last=False):
    """Odd sizes, so that no slice of the flat vector but the first is aligned."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 7, 3), nn.BatchNorm2d(7), nn.Conv2d(7, 5, 1), nn.Flatten(), nn.Linear(5, 3))
    model = model.to(device)
    return model.to(memory_format=torch.channels_last) if channels_last else model


def _set_gradients(model, step):
    """Gradients that depend on the step alone, in each parameter's own strides; into `.grad` where there is one."""
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=generator).to(parameter.device)
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        parameter.grad.copy_(drawn)


def _flatten(model):
    flat = FlatGradient(model, [name for name, _ in model.named_parameters()][::-1])
    for parameter, view in zip(flat.parameters, flat.views, strict=True):
        parameter.grad = view
    return flat


def _train(model, optimizer, steps):
    for step in steps:
        _set_gradients(model, step)
        apply_learning_rate(optimizer, 0.1 / (step + 1))
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def _by_hand(model, section, steps):
    """Sutskever's momentum as PyTorch writes it, in fp64: the reference twin of the fused update."""
    weights = [p.detach().double() for p in model.parameters()]
    velocity = [torch.zeros_like(w) for w in weights]
    shadow = copy.deepcopy(model)
    for step in steps:
        _set_gradients(shadow, step)
        for w, v, p in zip(weights, velocity, shadow.parameters(), strict=True):
            decay = section.weight_decay if section.decay_norm or p.ndim > 1 else 0.0
            g = p.grad.double() + decay * w
            v.mul_(section.momentum).add_(g)
            w -= 0.1 / (step + 1) * (g + section.momentum * v if section.nesterov else v)
    return weights


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(
    "section",
    [
        SECTION,
        OptimizerConfig(momentum=0.0),
        OptimizerConfig(momentum=0.9, weight_decay=0.01, decay_norm=False),
    ],
)
def test_equals_the_plain_update_and_repeats_bit_by_bit(device, channels_last, flat, section):
    runs = []
    for _ in range(2):
        model = _network(device, channels_last)
        if flat:
            _flatten(model)
        runs.append(_train(model, build_optimizer(model, section), range(4)))
    expected = _by_hand(_network(device, channels_last), section, range(4))
    for first, second, reference in zip(*runs, expected, strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(first.double(), reference, rtol=1e-5, atol=1e-6)


def test_groups():
    model = _network()
    model[2].weight.requires_grad_(False)
    groups = build_optimizer(model, OptimizerConfig(weight_decay=0.1, decay_norm=False)).param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert [[p.ndim for p in group["params"]] for group in groups] == [[4, 2], [1, 1, 1, 1, 1]]
    assert len(build_optimizer(model, OptimizerConfig(weight_decay=0.1)).param_groups) == 1


def _stopped_and_resumed(saved_channels_last, resumed_channels_last):
    model = _network(channels_last=saved_channels_last)
    _flatten(model)
    optimizer = build_optimizer(model, SECTION)
    _train(model, optimizer, range(3))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)

    resumed = _network(channels_last=resumed_channels_last)
    _flatten(resumed)
    optimizer = build_optimizer(resumed, SECTION)
    resumed.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return _train(resumed, optimizer, range(3, 6))


@pytest.mark.parametrize(("saved", "resumed"), [(False, False), (True, True), (False, True), (True, False)])
def test_resumes_bit_by_bit_and_in_another_memory_format(saved, resumed):
    """There equal up to rounding: the vector loop's tail falls on other elements."""
    whole = _train(model := _network(channels_last=saved), build_optimizer(model, SECTION), range(6))
    tolerance = {"rtol": 0, "atol": 0} if saved == resumed else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(whole, _stopped_and_resumed(saved, resumed), **tolerance)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"nesterov": True, "momentum": 0.0}, "optimizer.nesterov: .*optimizer.momentum above 0"),
        ({"schedule": "step"}, "optimizer.milestones: .*'step' needs"),
        ({"schedule": "cosine", "milestones": (3.0,)}, "optimizer.schedule: 'cosine' takes no milestones"),
        ({"gamma": 0.5}, "optimizer.schedule: 'constant' takes .* no gamma"),
        ({"name": "adamw", "nesterov": True}, "optimizer.nesterov: goes with sgd and muon, not with adamw"),
        ({"name": "muon", "fraction": 0.5}, "optimizer.fraction: goes with dion2, not with muon"),
        ({"name": "dion2", "fraction": 0.0}, r"optimizer.fraction: lies in \(0, 1\], got 0"),
        ({"name": "dion2", "nesterov": True}, "optimizer.nesterov: goes with sgd and muon, not with dion2"),
        ({"beta2": 0.9}, "optimizer.beta2, optimizer.eps: belong to adamw, muon and dion2"),
        ({"name": "adamw", "momentum": 1.0}, r"lie in \[0, 1\) with adamw"),
        ({"name": "muon"}, r"optimizer\.name: 'muon' is for models with linear layers inside"),
    ],
)
def test_settings_that_do_not_go_together(section, words):
    model = nn.Linear(3, 3) if section.get("name") == "muon" else _network()
    with pytest.raises(UserError, match=f"^[^\n]*{words}[^\n]*$"):
        build_optimizer(model, OptimizerConfig(**section))


STEP, COSINE, CYCLE = {"schedule": "step"}, {"schedule": "cosine"}, {"schedule": "one_cycle"}
RATES = [
    (10, 4, {"lr": 0.2}, {0: 0.2, 3.7: 0.2, 10: 0.2}),
    (10, 4, {"lr": 0.2, "scale_lr": True}, {0: 0.8, 9.9: 0.8}),
    (8, 1, {"lr": 0.1, **STEP, "milestones": (4.0, 6.5), "gamma": 0.5}, {0: 0.1, 3.99: 0.1, 4: 0.05, 6.5: 0.025}),
    # (1 + cos) / 2 at 0, 60, 90, 120 and 180 degrees, also behind a warm-up.
    (6, 1, {"lr": 0.4, **COSINE}, {0: 0.4, 2: 0.3, 3: 0.2, 4: 0.1, 6: 0.0}),
    (8, 1, {"lr": 0.4, **COSINE, "warmup_epochs": 2.0}, {0: 0.0, 1: 0.2, 2: 0.4, 4: 0.3, 5: 0.2, 6: 0.1, 8: 0.0}),
    (9, 4, {"lr": 0.4, "warmup_epochs": 3.0}, {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4, 9: 0.4}),
    # From one worker's 0.4 to 1.6, as Goyal et al. do: 0.24 an epoch; of one worker from zero.
    (9, 4, {"lr": 0.4, "warmup_epochs": 5.0, "scale_lr": True}, {0: 0.4, 1: 0.64, 2.5: 1.0, 5: 1.6}),
    (9, 1, {"lr": 0.4, "warmup_epochs": 4.0}, {0: 0.0, 1: 0.1, 4: 0.4}),
    # Milestones count from the start of the run.
    (9, 4, {"lr": 0.4, **STEP, "milestones": (3.0,), "warmup_epochs": 2.0}, {0: 0.1, 2: 0.4, 2.9: 0.4, 3: 0.04}),
    # Rises over 3 of 10 epochs from 0.02, then falls over 7; with a rise of its own and scaling.
    (10, 8, {"lr": 0.5, **CYCLE}, {0: 0.02, 1.5: 0.26, 3: 0.5, 6.5: 0.25, 10: 0.0}),
    (10, 2, {"lr": 0.5, **CYCLE, "warmup_epochs": 5.0, "scale_lr": True}, {0: 0.04, 2.5: 0.52, 5: 1.0, 7.5: 0.5}),
]


@pytest.mark.parametrize(("epochs", "workers", "section", "wanted"), RATES)
def test_learning_rates_by_hand(epochs, workers, section, wanted):
    found = {epoch: learning_rate(OptimizerConfig(**section), epoch, epochs, workers) for epoch in wanted}
    assert found == pytest.approx(wanted)


@pytest.mark.parametrize("schedule", ["cosine", "one_cycle"])
def test_a_rise_as_long_as_the_run(schedule):
    section = OptimizerConfig(lr=0.5, schedule=schedule, warmup_epochs=2.0)
    assert learning_rate(section, 1.999, 2, 1) == pytest.approx(0.5, rel=1e-2)
    assert learning_rate(section, 2.0, 2, 1) == 0.0
