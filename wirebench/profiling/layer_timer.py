"""When each layer's gradient is there, and how long its forward pass takes, measured in running steps.

Hooks take a mark and do nothing else: on a GPU an event on the stream, on a CPU the time. Nothing waits for the device,
so what is measured is not slowed. Hooks are attached only during the steps that are profiled.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from wirebench.telemetry.timers import timer_for


class Profile(NamedTuple):
    """One step's times in seconds, by layer in backward order.

    ready    from the end of the forward pass until the layer's gradient is there; never falls from one to the next
    forward  of the layer's part of the forward pass
    """

    ready: tuple[float, ...]
    forward: tuple[float, ...]


class LayerTimer:
    """Times the layers of one model, one step at a time.

    model   the model, whose trainable parameters `names` lists in backward order
    device  where it computes
    With several micro-batches the last one's passes count.
    """

    def __init__(self, model: nn.Module, names: Sequence[str], device: torch.device) -> None:
        self.model, self.names, self.device, self.timer = model, names, device, timer_for(device)
        self.steps: list[tuple[list[tuple[str, Any]], Any, list[tuple[str, Any]]]] = []
        self._entered: list[tuple[str, Any]] = []
        self._arrived: list[tuple[str, Any]] = []
        self._forward_end: Any = None
        self._detach: list[Callable[[], None]] = []

    def attach(self) -> None:
        """Before the first forward pass of a step: time it, and those that follow, until `detach`.

        Attaching hooks takes milliseconds on a deep model, so they stay from one timed step to the next.
        """
        if self._detach:
            return
        hooks = [
            self.model.register_forward_pre_hook(self._begin_forward, prepend=True),
            self.model.register_forward_hook(self._end_forward),
        ]
        for prefix, module in self.model.named_modules():
            for name, _ in list(module.named_parameters(prefix, recurse=False))[:1]:
                hooks.append(module.register_forward_pre_hook(lambda _module, _inputs, name=name: self._enter(name)))
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                hooks.append(parameter.register_post_accumulate_grad_hook(lambda _p, name=name: self._arrive(name)))
        self._detach = [hook.remove for hook in hooks]

    def keep(self) -> None:
        """After the last backward pass of a step: keep its marks."""
        self.steps.append((self._entered, self._forward_end, self._arrived))

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

    def _begin_forward(self, module: nn.Module, inputs: Any) -> None:
        self._entered, self._arrived = [("", self.timer.mark())], []

    def _end_forward(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._forward_end = self.timer.mark()

    def _enter(self, name: str) -> None:
        self._entered.append((name, self.timer.mark()))

    def _arrive(self, name: str) -> None:
        self._arrived.append((name, self.timer.mark()))

    def _resolve(self, entered: list[tuple[str, Any]], end: Any, arrived: list[tuple[str, Any]]) -> Profile:
        forward = dict.fromkeys(self.names, 0.0)
        times = [mark for _, mark in entered] + [end]
        # Time before the first layer with parameters is that layer's; time after a layer, until the next, is its own.
        first = entered[1][0] if len(entered) > 1 else self.names[-1]
        for (name, begin), stop in zip(entered, times[1:], strict=True):
            place = name or first
            if place in forward:  # a module whose first parameter is frozen has no place in the flat gradient
                forward[place] += self.timer.seconds(begin, stop)
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
