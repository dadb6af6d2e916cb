"""A look at this machine, for `wirebench advise --probe`: the times of a model's layers."""

import math
import time
from typing import Any

import torch

from wirebench.errors import UserError
from wirebench.gradient.flat import backward_order
from wirebench.profiling.layer_timer import LayerTimer, median
from wirebench.simulation.trace import Trace, TraceLayer
from wirebench.telemetry.environment import hardware
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
    shapes = {each: tuple(parameter.shape) for each, parameter in model.named_parameters()}
    before = (0.0, *profile.ready)
    pairs = zip(order.names, profile.forward, profile.ready, before, strict=False)
    layers = [
        TraceLayer(each, math.prod(shapes[each]), forward, ready - last, shapes[each])
        for each, forward, ready, last in pairs
    ]
    return Trace(
        f"{name}_probed", f"{name}, {given.words}", hardware(device), given.batch_size, False,
        f"wirebench advise --probe: medians of {steps - 1} steps", torch.__version__.partition("+")[0],
        tuple(layers[::-1]), given.unit,
    )  # fmt: skip
