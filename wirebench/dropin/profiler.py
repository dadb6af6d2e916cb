"""`profile`: a trace of a model in a training loop of the user's own, as `wirebench simulate` and `advise` read it.

with wirebench.profile(model) as trace:
for inputs, labels in some(batches, 5): ...        the loop's own step
trace.save("mine.json")
"""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from wirebench.dropin.replicas import trainable
from wirebench.dropin.usage import refuse_no_module
from wirebench.errors import UserError
from wirebench.profiling.layer_timer import LayerTimer, median
from wirebench.profiling.profile_files import layers_of
from wirebench.simulation.trace import Trace
from wirebench.telemetry.environment import TORCH, hardware
from wirebench.utils.files import keeping

LEAST_PASSES = 2
"""The first pass warms up, and does not count."""
IMAGE_DIMENSIONS = 4
"""Batch, channels, height, width: what is called with such floats is called with images."""
TOKEN_DIMENSIONS = 2
"""Batch, length: what is called with such whole numbers is called with sequences of tokens."""
Unit = Literal["images", "samples", "tokens"]


class Profiler:
    """Times the layers of `model` within its `with` block; then `trace` has them, and `save` writes them.

    batch_size  samples of a pass; 0: seen in the first tensor that the model is called with. Of floats it is the first
                dimension, images if there are four dimensions; of whole numbers (batch, length) it is all of them,
                tokens
    """

    def __init__(self, model: nn.Module, batch_size: int = 0) -> None:
        refuse_no_module(model)
        if not isinstance(batch_size, int) or batch_size < 0:
            raise UserError(f"profile: batch_size: needs a number of samples, got {batch_size!r}")
        self.model = model.module if isinstance(model, DistributedDataParallel) else model
        self.batch_size, self._given = batch_size, batch_size
        self._parameters = trainable(self.model)
        self._timer = LayerTimer(self.model, [], next(iter(self._parameters.values())).device, every=True)
        self._order: list[str] = []
        self._unit: Unit = "samples"
        self._detach: list[Callable[[], None]] = []
        self._trace: Trace | None = None

    def __enter__(self) -> "Profiler":
        """Time every pass from here on."""
        self._timer.attach()
        hooks = [
            module.register_forward_pre_hook(self._begins, prepend=True, with_kwargs=True)
            for module in self.model.modules()
            if module is self.model or next(module.parameters(recurse=False), None) is not None
        ]
        for name, parameter in self._parameters.items():
            hooks.append(parameter.register_post_accumulate_grad_hook(lambda _p, name=name: self._comes(name)))
        self._detach = [hook.remove for hook in hooks]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Work the times out; UserError where there were too few passes."""
        self._timer.detach()
        for detach in self._detach:
            detach()
        if error is None:
            self._timer.keep()
            self._conclude()

    @property
    def trace(self) -> Trace:
        """The trace; after the `with` block."""
        if self._trace is None:
            raise UserError("profile: the trace is there after the with block")
        return self._trace

    def save(self, path: str | Path) -> None:
        """Write the trace to `path`, a .json file; Unwritable where that fails."""
        with keeping(Path(path)):
            self.trace.save(path)

    def _begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Count the batch: of what the model is called with, or its first part where the loop calls parts."""
        if not (self.model.training and torch.is_grad_enabled()) or (self.batch_size and module is not self.model):
            return
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor) and each.dim()]
        if tensors:
            seen, self._unit = _batch_of(tensors[0])
            self.batch_size = self._given or seen
            if self.batch_size != seen and self._unit == "tokens":
                self._unit = "samples"

    def _comes(self, name: str) -> None:
        if name not in self._order:
            self._order.append(name)

    def _conclude(self) -> None:
        self._timer.names = [*self._order, *(n for n in list(self._parameters)[::-1] if n not in set(self._order))]
        passes = self._timer.take()
        if len(passes) < LEAST_PASSES:
            raise UserError(
                f"profile: needs {LEAST_PASSES} forward and backward passes in its with block, of which the first "
                f"warms up; there were {len(passes)}"
            )
        if not self.batch_size:
            raise UserError("profile: cannot see the batch's size in what the model is called with; pass batch_size=")
        profile, names = median(passes[1:]), self._timer.names
        layers = layers_of(profile, [(name, tuple(self._parameters[name].shape)) for name in names])
        kind, device = type(self.model).__name__, self._timer.device
        numel = sum(layer.numel for layer in layers)
        self._trace = Trace(
            kind, f"{kind}, {numel:,} parameters", hardware(device), self.batch_size, False,
            f"wirebench.profile: medians of {len(passes) - 1} passes", TORCH, layers, self._unit,
        )  # fmt: skip


def _batch_of(first: Tensor) -> tuple[int, Unit]:
    """The batch size of a model's first tensor, and its unit."""
    if first.is_floating_point():
        return first.shape[0], "images" if first.dim() == IMAGE_DIMENSIONS else "samples"
    return (first.numel(), "tokens") if first.dim() == TOKEN_DIMENSIONS else (first.shape[0], "samples")


def profile(model: nn.Module, batch_size: int = 0) -> Profiler:
    """Time the layers of `model` in the passes of a `with` block; see Profiler."""
    return Profiler(model, batch_size)
