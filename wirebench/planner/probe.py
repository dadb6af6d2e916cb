"""A look at this machine, for `wirebench advise --probe`: the times of a model's layers."""

import time
from typing import Any

import torch

from wirebench.errors import UserError
from wirebench.gradient.flat import backward_order
from wirebench.profiling.layer_timer import LayerTimer, median
from wirebench.profiling.profile_files import layers_of
from wirebench.simulation.trace import Trace
from wirebench.telemetry.environment import TORCH, hardware
from wirebench.traces.inputs import NOT_TRAINED, Inputs
from wirebench.training.loss import cross_entropy

LEAST_STEPS = 3


def probe(name: str, options: dict[str, Any], given: Inputs, seconds: float) -> Trace:
    """Train `name` for about `seconds`; return the medians of its layers' times. UserError if it refuses the input."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = given.model(name, options).to(device)
    batch, labels = given.real(device)
    try:
        order = backward_order(model, lambda module: cross_entropy(module(batch), labels))
    except (UserError, torch.OutOfMemoryError):
        raise
    except NOT_TRAINED as error:
        raise given.refused(name, error) from error
    timer = LayerTimer(model, order.names, device)
    timer.attach()
    begin, steps = time.perf_counter(), 0
    while steps < LEAST_STEPS or time.perf_counter() - begin < seconds:
        model.zero_grad(set_to_none=True)
        cross_entropy(model(batch), labels).backward()
        timer.keep()
        steps += 1
    timer.detach()
    profile = median(timer.take()[1:])
    parameters = dict(model.named_parameters())
    layers = layers_of(profile, [(each, tuple(parameters[each].shape)) for each in order.names])
    return Trace(
        f"{name}_probed", f"{name}, {given.words}", hardware(device), given.batch_size, False,
        f"wirebench advise --probe: medians of {steps - 1} steps", TORCH, layers, given.unit,
    )  # fmt: skip
