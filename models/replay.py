"""A replayed model: waits for a trace's times instead of computing, and makes gradients of its sizes.

Real hooks, real tensors, real communication, with the compute time of any hardware. Backward order is the reverse of
the trace's layers, as in the model that was traced. Gradients are random numbers: their average means nothing, and the
loss stays at log(num_classes). docs/traces.md describes how traces are made, and the limits of a replay.
"""

import functools
import math
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from wirebench.errors import UserError
from wirebench.simulation import trace as traces
from wirebench.utils.rng import generator

# Standard deviations of the noise that gradients and parameters are made of.
GRADIENT_DEVIATION = 1e-4
PARAMETER_DEVIATION = 0.05
SHIFTS = 2**16
"""Places at which a step may begin to read the noise that its gradients are made of."""

OVERSLEEP_SECONDS = 60e-6
"""About how late Linux wakes a sleeper."""


class Replay(nn.Module):
    """Images (N, ...) -> logits (N, num_classes), all zero, after the trace's time for N images.

    trace     name of a trace in configs/traces, or a path to one (.json)
    dilation  factor on all times; network.dilation sets it
    The host waits, also for a model on a GPU; its gradients are ready on the device's stream when the hooks fire.
    """

    dilation: float = 1.0

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int], trace: str = "resnet20_gtx1080ti") -> None:
        super().__init__()
        path = traces.find(trace)
        self._trace = traces.load(path)
        self._num_classes = num_classes
        self._stops: list[_Stop] = []
        start = 0
        for layer in self._trace.layers:
            self._stops.append(_Stop(layer, start, first=not self._stops))
            start += layer.numel
            if layer.numel:
                shape = (layer.numel,) if layer.shape is None else layer.shape
                parameter = nn.Parameter(PARAMETER_DEVIATION * torch.randn(shape))
                _register(self, layer.name, parameter, f"{path}: layer {layer.name}: name")

    def backward_seconds(self, name: str, images: int) -> float:
        """Seconds of the backward pass of the layer `name`, for `images` images."""
        layer = next(stop.layer for stop in self._stops if stop.layer.name == name)
        return layer.backward_seconds * self.dilation * images / self._trace.batch_size

    def forward(self, images: Tensor) -> Tensor:
        """Zeros, after the trace's time; the backward pass takes the trace's time too."""
        # A leaf that wants a gradient keeps layers without parameters in the graph.
        token = images.new_zeros(len(images), self._num_classes).requires_grad_(torch.is_grad_enabled())
        passing = _Pass(self.dilation * len(images) / self._trace.batch_size)
        if torch.is_grad_enabled():
            # From torch's generator, as dropout draws: the suite seeds it by rank and step, so both differ in it.
            passing.draw(self._trace.numel, images.device)
        parameters = dict(self.named_parameters())
        for stop in self._stops:
            part, _, leaf = stop.layer.name.rpartition(".")
            if part and stop.layer.numel:
                module = self.get_submodule(part)
                passing.enter_hooks(waits=bool(module._forward_pre_hooks))
                token = module(token, leaf, stop, passing)
            else:
                token = _Wait.apply(token, parameters.get(stop.layer.name), stop, passing)
        passing.reach()
        return token


class _Part(nn.Module):
    """A layer's place in the model: it is called, so that hooks on modules see the layer begin."""

    def forward(self, token: Tensor, leaf: str, stop: "_Stop", passing: "_Pass") -> Tensor:
        """Pass the token on when the time of the parameter `leaf` is over."""
        passing.leave_hooks()
        waited: Tensor = _Wait.apply(token, getattr(self, leaf), stop, passing)
        return waited


class _Stop(NamedTuple):
    """A layer of the trace; `start` is its place in the flat parameters, and the backward pass ends at the `first`."""

    layer: traces.TraceLayer
    start: int
    first: bool


class _Pass:
    """A forward pass and the backward pass that follows, on one clock.

    Layers end at absolute times, counted from the start of the forward pass. So neither overhead nor oversleep adds up:
    a late layer makes the next wait shorter. Work between the two passes (the loss) is included. But hooks that wait
    before a layer delay that layer, as in `dear`, whose all-gathers overlap with the forward pass. `factor` multiplies
    the trace's times.
    """

    def __init__(self, factor: float) -> None:
        self._deadline = time.perf_counter()
        self._factor = factor
        self._noise = torch.empty(0)
        self._shift = 0
        self._hooks_began = self._deadline

    def draw(self, numel: int, device: torch.device) -> None:
        """Choose the gradients of this pass, for a model of `numel` parameters."""
        self._noise = _noise(numel + SHIFTS, device)
        self._shift = int(torch.randint(SHIFTS, ()))

    def wait(self, seconds: float) -> None:
        """Sleep until about `seconds` of the trace after the layer before; spinning would take communication's core."""
        self._deadline += seconds * self._factor
        remaining = self._deadline - time.perf_counter() - OVERSLEEP_SECONDS
        if remaining > 0:
            time.sleep(remaining)

    def enter_hooks(self, waits: bool) -> None:
        """The next layer's module is about to be called; `waits`: it has hooks, which may wait."""
        self._hooks_began = time.perf_counter() if waits else math.inf

    def leave_hooks(self) -> None:
        """The hooks are done: where they waited, the layer begins now; lateness from before is still made up for."""
        if math.isinf(self._hooks_began):
            return
        early = max(0.0, self._deadline - self._hooks_began)
        waited = time.perf_counter() - self._hooks_began - early
        if waited > OVERSLEEP_SECONDS:
            self._deadline += waited

    def reach(self) -> None:
        """Wait for the rest of the time that the layers took: the end of a pass is exact."""
        while time.perf_counter() < self._deadline:
            continue

    def gradient(self, start: int, parameter: Tensor) -> Tensor:
        """A fresh gradient with the parameter's shape and strides, from the noise at `start`."""
        begin = self._shift + start
        made = torch.empty_like(parameter)
        made.as_strided((made.numel(),), (1,)).copy_(self._noise[begin : begin + made.numel()])
        return made


class _Wait(torch.autograd.Function):
    """One layer: passes the token on when the layer's time is over, in both directions."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, parameter: Tensor | None, stop: _Stop, passing: _Pass) -> Tensor:
        ctx.parameter, ctx.stop, ctx.passing = parameter, stop, passing
        passing.wait(stop.layer.forward_seconds)
        return token.view_as(token)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # Made before the wait, which hides its cost, unless the cost is longer.
        made = None if ctx.parameter is None else ctx.passing.gradient(ctx.stop.start, ctx.parameter)
        ctx.passing.wait(ctx.stop.layer.backward_seconds)
        if ctx.stop.first:
            ctx.passing.reach()
        return gradients[0], made, None, None


@functools.lru_cache(maxsize=4)
def _noise(numel: int, device: torch.device) -> Tensor:
    """Random gradients, shape (numel,), the same in every process; all workers of a process read the same tensor.

    Not a buffer of the model: a checkpoint would keep a copy for every rank.
    """
    return GRADIENT_DEVIATION * torch.randn(numel, generator=generator("replay")).to(device)


def _register(model: nn.Module, name: str, parameter: nn.Parameter, where: str) -> None:
    """Register the parameter under its dotted name, so that it has the same name as in the model that was traced."""
    *path, leaf = name.split(".")
    holder = model
    try:
        for part in path:
            if part not in dict(holder.named_children()):
                holder.add_module(part, _Part())
            holder = holder.get_submodule(part)
        holder.register_parameter(leaf, parameter)
    except KeyError as error:
        raise UserError(f"{where}: cannot be a parameter's: {error.args[0]}") from error
