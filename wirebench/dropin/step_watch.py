"""The phases of a training loop that knows nothing of phases, seen through hooks of its model and its optimizers."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from wirebench.dropin.usage import holds
from wirebench.telemetry.clock import Clock
from wirebench.utils.hooks import WeakHook


class StepWatch:
    """Opens and closes the clock's phases.

    forward   while the model's own forward runs, in training mode
    backward  from its end until `close_phase`, so with the loss, and with whatever the loop does there
    update    while an optimizer of the model's parameters steps
    data      from there, or from `open_phase`, until the next forward

    on_forward  called before each forward pass that trains; on_pause: before one that does not; on_update: before an
                optimizer of the model's parameters steps
    A model that torch.compile has compiled is seen by its gradients and its optimizer alone: `forward` is in `data`.
    updates     whether updates are timed here; not under a split schedule, whose driver updates within the forward pass
    """

    def __init__(
        self,
        model: nn.Module,
        clock: Clock,
        on_forward: Callable[[], None],
        on_pause: Callable[[], None],
        on_update: Callable[[], None],
        updates: bool = True,
    ) -> None:
        self._model, self._clock = model, clock
        self._on_forward, self._on_pause, self._on_update = on_forward, on_pause, on_update
        self._mine = {id(parameter) for parameter in model.parameters()}
        self._timed = updates
        self._open: AbstractContextManager[None] | None = None
        self._name = ""
        hooks = [
            model.register_forward_pre_hook(WeakHook(self._forward_begins), prepend=True),
            model.register_forward_hook(WeakHook(self._forward_ends)),
            register_optimizer_step_pre_hook(WeakHook(self._update_begins)),
            register_optimizer_step_post_hook(WeakHook(self._update_ends)),
        ]
        self._detach: Iterable[Callable[[], None]] = [hook.remove for hook in hooks]

    def open_phase(self, name: str) -> None:
        """Close the open phase, and open another."""
        self.close_phase()
        self._open, self._name = self._clock.phase(name), name
        self._open.__enter__()

    def close_phase(self) -> None:
        """Close the open phase, if there is one."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open, self._name = None, ""

    def drop_phase(self) -> None:
        """Forget the open phase: its time is no step's."""
        self._open, self._name = None, ""

    def holds(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer holds a parameter of the model."""
        return holds(optimizer, self._mine)

    def close(self) -> None:
        """Detach from model and optimizers."""
        for detach in self._detach:
            detach()

    def _trains(self) -> bool:
        return self._model.training and torch.is_grad_enabled()

    def _forward_begins(self, model: nn.Module, inputs: Any) -> None:
        if not self._trains():
            self._on_pause()
            return
        self._on_forward()
        self.open_phase("forward")

    def _forward_ends(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if self._name == "forward":
            self.open_phase("backward")

    def _update_begins(self, optimizer: Optimizer, *_: Any) -> None:
        if self.holds(optimizer):
            self._on_update()
            if self._timed:
                self.open_phase("update")

    def _update_ends(self, optimizer: Optimizer, *_: Any) -> None:
        if self._name == "update":
            self.open_phase("data")
