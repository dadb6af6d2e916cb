"""When each layer's gradient is there, and how long its forward pass takes, measured in running steps.

Hooks take a mark and do nothing else: on a GPU an event on the stream, on a CPU the time. Nothing waits for the device,
so what is measured is not slowed. Hooks are attached only during the steps that are profiled.

A pass is all forward calls since the last backward pass, and the backward pass after them. A model may be called twice
before a backward pass, and its parts or its `forward` may be called instead of the model.
"""

import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from wirebench.telemetry.timers import timer_for
from wirebench.utils.hooks import WeakHook


class Profile(NamedTuple):
    """One step's times in seconds, by layer in backward order.

    ready    from the end of the forward pass until the layer's gradient is there; never falls from one to the next
    forward  of the layer's part of the forward pass
    """

    ready: tuple[float, ...]
    forward: tuple[float, ...]


class _Marks(NamedTuple):
    """A pass: (layer, mark) where each begins, "" before the first; (None, mark) where a call ends; the gradients."""

    entered: list[tuple[str | None, Any]]
    arrived: list[tuple[str, Any]]


class _Hook:
    """Calls a timer's method with `name` while there is that timer; copies of the model, saved or not, have none."""

    def __init__(self, method: Callable[[str], None] | None = None, name: str = "") -> None:
        self._method = None if method is None else weakref.WeakMethod(method)
        self._name = name

    def __call__(self, *_given: Any) -> None:
        if torch.compiler.is_compiling():
            self._outside()
        else:  # and not through `_outside`, which loads a compiler: seconds of the first step, anew after each restart
            self._call()

    def _call(self) -> None:
        method = None if self._method is None else self._method()
        if method is not None:
            method(self._name)

    _outside = torch._disable_dynamo(_call)
    __reduce__ = WeakHook.__reduce__


class LayerTimer:
    """Times the layers of one model, one step at a time.

    model   the model, whose trainable parameters `names` lists in backward order
    device  where it computes
    every   keep each pass when the next one begins; else the caller calls `keep`, and with several micro-batches the
            last one's passes count
    """

    def __init__(self, model: nn.Module, names: Sequence[str], device: torch.device, every: bool = False) -> None:
        self.model, self.names, self.device, self.timer = model, names, device, timer_for(device)
        self.every = every
        self.steps: list[_Marks] = []
        self._marks, self._last = _Marks([], []), _Marks([], [])
        self._within, self._left, self._called = False, False, set[str]()
        self._training = model.training
        self._detach: list[Callable[[], None]] = []

    def attach(self) -> None:
        """Before the first forward pass of a step: time it, and those that follow, until `detach`.

        Attaching hooks takes milliseconds on a deep model, so they stay from one timed step to the next.
        """
        if self._detach:
            return
        self._training = self.model.training
        hooks = [
            self.model.register_forward_pre_hook(_Hook(self._begin_forward), prepend=True),
            self.model.register_forward_hook(_Hook(self._end_forward), always_call=True),
        ]
        for prefix, module in self.model.named_modules():
            for name, _ in list(module.named_parameters(prefix, recurse=False))[:1]:
                hooks.append(module.register_forward_pre_hook(_Hook(self._enter, name)))
                hooks.append(module.register_forward_hook(_Hook(self._leave, name)))
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                hooks.append(parameter.register_post_accumulate_grad_hook(_Hook(self._arrive, name)))
        self._detach = [hook.remove for hook in hooks]

    def keep(self) -> None:
        """After the last backward pass of a step: keep its marks."""
        whole = self._marks if self._marks.arrived else self._last
        if whole.arrived or not self.every:
            self.steps.append(whole)
        self._marks, self._last = _Marks([], []), _Marks([], [])

    def detach(self) -> None:
        """Remove the hooks."""
        for detach in self._detach:
            detach()
        self._detach = []

    def take(self) -> list[Profile]:
        """Profiles of the steps that were kept since the last call; waits for the device."""
        self.timer.synchronize()
        steps, self.steps = self.steps, []
        return [self._resolve(*step) for step in steps]

    def _starts(self) -> bool:
        """Whether the forward pass that begins or continues now is timed; recomputing counts as the backward pass."""
        if not torch.is_grad_enabled() or self.model.training != self._training:
            return False
        if torch._C._current_graph_task_id() != -1:
            return False
        if self._marks.arrived:
            if self.every:
                self.keep()
            self._last, self._marks = self._marks, _Marks([], [])
        if not self._marks.entered:
            self._left, self._called = False, set()
        return True

    def _begin_forward(self, _name: str) -> None:
        if self._starts():
            self._within, self._left = True, False
            self._marks.entered.append(("", self.timer.mark()))

    def _end_forward(self, _name: str) -> None:
        if self._within:
            self._within, self._called = False, set()
            self._marks.entered.append((None, self.timer.mark()))

    def _enter(self, name: str) -> None:
        if not self._starts():
            return
        if self._left and name not in self._called:
            # The call continues: time between two parts belongs to the former one.
            self._marks.entered.pop()
        if self._left and name in self._called:
            self._called = set()
        self._left = False
        self._called.add(name)
        self._marks.entered.append((name, self.timer.mark()))

    def _leave(self, _name: str) -> None:
        """The end of a part that was called without the model, and of the call, if none of its other parts follows."""
        if self._within or not self._marks.entered or self._marks.arrived or not self._starts():
            return
        if self._left:
            self._marks.entered.pop()
        self._left = True
        self._marks.entered.append((None, self.timer.mark()))

    def _arrive(self, name: str) -> None:
        self._marks.arrived.append((name, self.timer.mark()))

    def _resolve(self, entered: list[tuple[str | None, Any]], arrived: list[tuple[str, Any]]) -> Profile:
        forward = dict.fromkeys(self.names, 0.0)
        # Time before the first layer with parameters is that layer's; time after a layer, until the next, is its own.
        first = next((name for name, _ in entered if name), self.names[-1])
        for (name, begin), (_, stop) in pairwise(entered):
            place = name or first
            # A module whose first parameter is frozen has no place in the flat gradient.
            if name is not None and place in forward:
                forward[place] += self.timer.seconds(begin, stop)
        # Without a forward call that is seen, the backward pass begins no later than its first gradient is there.
        end = entered[-1][1] if entered else next((mark for _, mark in arrived), None)
        at = {name: self.timer.seconds(end, mark) for name, mark in arrived}
        ready, latest = [], 0.0
        for name in self.names:
            latest = max(latest, at.get(name, 0.0))
            ready.append(latest)
        return Profile(tuple(ready), tuple(forward[name] for name in self.names))


def median(profiles: Sequence[Profile]) -> Profile:
    """The median of each layer's times, over steps or ranks; at least one profile."""
    ready = np.median([profile.ready for profile in profiles], axis=0)
    forward = np.median([profile.forward for profile in profiles], axis=0)
    return Profile(tuple(np.maximum.accumulate(ready).tolist()), tuple(forward.tolist()))
