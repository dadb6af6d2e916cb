"""An optimizer's whole state by layer names: nothing of it is lost, and what a config changes counts."""

import copy

import pytest
import torch
from torch import nn

from wirebench.config.loader import OptimizerConfig
from wirebench.gradient.flat import FlatGradient
from wirebench.gradient.optimizer_state import OptimizerState
from wirebench.training.optimizers.build import build_optimizer
from wirebench.utils.tensor_tree import pack, unpack

SECTION = OptimizerConfig(lr=0.1, momentum=0.9, weight_decay=0.1)


def replica(make, channels_last=False):
    """A small model in flat form, its optimizer, and the optimizer's state."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3, 2))
    model = model.to(memory_format=torch.channels_last) if channels_last else model
    flat = FlatGradient(model, [name for name, _ in model.named_parameters()][::-1])
    optimizer = make(model)
    return model, optimizer, OptimizerState(optimizer, flat)


def train(model, optimizer, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter).copy_(torch.randn(parameter.shape, generator=generator))
        optimizer.step()


def resumed(make, remake, channels_last=False):
    """Three steps with what `make` builds, saved, and restored into what `remake` builds."""
    model, optimizer, state = replica(make)
    train(model, optimizer, range(3))
    other, again, into = replica(remake, channels_last)
    with torch.no_grad():
        for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
            mine.copy_(theirs)
    into.load_state_dict(unpack(pack(state.state_dict())))
    return other, again


def of(kind, **options):
    return lambda model: kind(model.parameters(), lr=0.1, **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda model: build_optimizer(model, SECTION),
        of(torch.optim.AdamW, amsgrad=True),
        of(torch.optim.AdamW, fused=True),
        of(torch.optim.ASGD),
    ],
    ids=["sgd", "amsgrad", "fused-adam", "asgd"],
)
def test_what_is_resumed_goes_on_as_if_it_had_not_stopped(make):
    whole, optimizer, _ = replica(make)
    train(whole, optimizer, range(6))
    parts, optimizer = resumed(make, make)
    train(parts, optimizer, range(3, 6))
    assert all(map(torch.equal, whole.parameters(), parts.parameters()))


def test_a_saved_state_is_not_shared():
    """Virtual workers load the same tree; one's steps must not move another's momentum."""
    model, optimizer, state = replica(of(torch.optim.SGD, momentum=0.9))
    train(model, optimizer, range(2))
    saved = copy.deepcopy(state.state_dict())
    pairs = [replica(of(torch.optim.SGD, momentum=0.9)) for _ in range(2)]
    for _, _, each in pairs:
        each.load_state_dict(saved)
    train(pairs[0][0], pairs[0][1], range(2))
    momentum = pairs[1][2].state_dict()["state"]["0.weight"]["momentum_buffer"]
    assert torch.equal(momentum, state.state_dict()["state"]["0.weight"]["momentum_buffer"])


def test_what_the_config_changes_counts_and_nothing_else():
    def changed(model):
        optimizer = of(torch.optim.AdamW, weight_decay=0.5)(model)
        optimizer.param_groups[0]["seen"] = 0
        return optimizer

    def counting(model):
        optimizer = of(torch.optim.AdamW, weight_decay=0.1)(model)
        optimizer.param_groups[0]["seen"] = 0
        optimizer.register_step_post_hook(
            lambda opt, *_: opt.param_groups[0].update(seen=opt.param_groups[0]["seen"] + 1)
        )
        return optimizer

    _, optimizer = resumed(counting, changed)
    assert optimizer.param_groups[0]["weight_decay"] == 0.5, "as this run's config has it"
    assert optimizer.param_groups[0]["seen"] == 3, "what the optimizer itself has changed is a state"


def test_another_grouping_keeps_every_layers_state():
    _, optimizer = resumed(
        lambda model: build_optimizer(model, SECTION),
        lambda model: build_optimizer(model, OptimizerConfig(momentum=0.9, weight_decay=0.1, decay_norm=False)),
    )
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert all(state["momentum_buffer"].shape == p.shape for p, state in optimizer.state.items())
    assert len(optimizer.state) == 4


def test_state_has_its_parameters_strides():
    for make in (of(torch.optim.Adam), lambda model: build_optimizer(model, SECTION)):
        _, optimizer = resumed(make, make, channels_last=True)
        for parameter, state in optimizer.state.items():
            shaped = [value for value in state.values() if value is not None and value.shape == parameter.shape]
            assert shaped
            assert all(value.stride() == parameter.stride() for value in shaped)
