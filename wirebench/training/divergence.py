"""Watch the loss and the averaged gradient of every step; name the layer when one is not finite.

The averaged gradient is the same on all ranks, so all of them stop at the same step. On a GPU the values are copied to
the host without waiting and looked at when the device has passed the step.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from wirebench.errors import Diverged
from wirebench.gradient.flat import FlatGradient


class _Note(NamedTuple):
    """What is known of a step; `norms` has one element for each of `layers`, or one for all of them."""

    step: int
    layers: list[str]
    loss: Tensor
    norms: Tensor
    passed: torch.cuda.Event | None


class Guard:
    """Watches one worker's steps.

    lag  steps after which a step is looked at: 0 on a CPU, 2 on a GPU, which has passed it by then or soon will
    """

    def __init__(self, flat: FlatGradient) -> None:
        self._flat = flat
        self.lag = 2 if flat.grad.device.type == "cuda" else 0
        self._notes: deque[_Note] = deque()

    @torch.no_grad()
    def note(self, step: int, loss: Tensor) -> None:
        """Remember the step's loss and whether its gradient is finite; call it before the optimizer's step."""
        pairs = zip(self._flat.layers, self._flat.parameters, strict=True)
        found = {layer.name: parameter.grad for layer, parameter in pairs if parameter.grad is not None}
        layers, gradients = list(found), list(found.values())
        on_gpu = loss.device.type == "cuda"
        if not gradients:
            norms = torch.zeros_like(loss).view(1)  # a split schedule looks at them itself, when they are there
        elif on_gpu:
            # One fused kernel for all layers: a late look could no longer tell which one it was.
            norms = torch.stack(torch._foreach_norm(gradients))
        elif self._is_flat(gradients):
            norms = self._flat.grad.sum()
        else:
            norms = torch.stack([gradient.sum() for gradient in gradients])
        host_loss, host_norms = _to_host(loss.detach(), on_gpu), _to_host(norms, on_gpu)
        passed = torch.cuda.current_stream(loss.device).record_event() if on_gpu else None
        self._notes.append(_Note(step, layers, host_loss, host_norms, passed))
        if not on_gpu and not bool(norms.isfinite().all()):
            _look_closer(step, found)

    def parameters(self, step: int) -> None:
        """Raise Diverged where the update of step `step` made a parameter infinite; waits for the device.

        Call it before the parameters are kept: a checkpoint that cannot be trained on is not a good one.
        """
        if not bool(self._flat.param.isfinite().all()):
            for layer, parameter in zip(self._flat.layers, self._flat.parameters, strict=True):
                if not bool(parameter.isfinite().all()):
                    raise Diverged(f"step {step}: the update made layer {layer.name} infinite or NaN")

    def losses(self, up_to_step: int) -> list[tuple[int, float]]:
        """(step, loss) of the steps up to `up_to_step`, waiting for them; raises Diverged for a bad one."""
        known = []
        while self._notes and self._notes[0].step <= up_to_step:
            note = self._notes.popleft()
            if note.passed is not None:
                note.passed.synchronize()
            if note.passed is not None and not bool(note.norms.isfinite().all()):
                place = int((~note.norms.isfinite()).nonzero()[0])
                raise Diverged(f"step {note.step}: the gradient of layer {note.layers[place]} is not finite")
            if not bool(note.loss.isfinite()):
                raise Diverged(f"step {note.step}: the loss is {note.loss.item()}")
            known.append((note.step, note.loss.item()))
        return known

    def _is_flat(self, gradients: Sequence[Tensor]) -> bool:
        views = self._flat.views
        return len(gradients) == len(views) and all(map(torch.Tensor.is_set_to, gradients, views))


def seed_of_backward(loss: Tensor) -> Tensor:
    """What `loss.backward` takes: 1, or NaN for a loss that is not finite, since its gradient may well be.

    So one rank's bad loss is in the average of all, and all ranks stop at the same step.
    """
    return torch.ones_like(loss).masked_fill_(~loss.detach().isfinite(), torch.nan)


def _look_closer(step: int, gradients: Mapping[str, Tensor]) -> None:
    """Name the layer; a sum of large finite values may overflow, and that is no divergence yet."""
    for layer, gradient in gradients.items():
        if not bool(gradient.isfinite().all()):
            raise Diverged(f"step {step}: the gradient of layer {layer} is not finite")


def _to_host(tensor: Tensor, on_gpu: bool) -> Tensor:
    if not on_gpu:
        return tensor.clone()
    kept = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return kept.copy_(tensor, non_blocking=True)
