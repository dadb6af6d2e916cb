"""Watch the loss and the averaged gradient of every step; name the layer when one is not finite.

Several are counted: a method that sums sketches cannot locate a NaN, and makes a whole bucket NaN.

The averaged gradient is the same on all ranks, so all of them stop at the same step. Where ranks train alone for a
while their drivers look at what they exchange, instead (exchange/outer.py, easgd.py). On a GPU the values are copied to
the host without waiting and looked at when the device has passed the step.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from wirebench.errors import Diverged
from wirebench.gradient.flat import FlatGradient


class _Note(NamedTuple):
    """Facts noted of a step; `norms` has one element for each of `layers`, or one for all of them.

    norms   None while the step's gradient is still to come
    passed  on a GPU, when what is noted has been copied to the host
    """

    step: int
    loss: Tensor
    layers: list[str]
    norms: Tensor | None = None
    passed: torch.cuda.Event | None = None


class Guard:
    """Watches one worker's steps.

    lag    steps after which a step is looked at: 0 on a CPU, 2 on a GPU, which has passed it by then or soon will
    alone  the gradient is this rank's own, and its loss means nothing to the others: neither raises an error
    """

    def __init__(self, flat: FlatGradient, alone: bool = False) -> None:
        self._flat, self.alone = flat, alone
        self.lag = 2 if flat.grad.device.type == "cuda" else 0
        self._notes: deque[_Note] = deque()

    @torch.no_grad()
    def note(self, step: int, loss: Tensor) -> None:
        """Remember the step's loss and whether its gradient is finite; call it before the optimizer's step.

        Where no parameter has a gradient yet, as with a split schedule, `note_gradient` has to follow.
        """
        on_gpu = loss.device.type == "cuda"
        self._notes.append(_Note(step, _to_host(loss.detach(), on_gpu), []))
        if self.alone:
            passed = torch.cuda.current_stream(loss.device).record_event() if on_gpu else None
            self._notes[-1] = self._notes[-1]._replace(norms=torch.zeros(()), passed=passed)
            return
        pairs = zip(self._flat.layers, self._flat.parameters, strict=True)
        gradients = {layer.name: parameter.grad for layer, parameter in pairs if parameter.grad is not None}
        if gradients:
            self._note_gradients(gradients)

    @torch.no_grad()
    def note_gradient(self, step: int) -> None:
        """Remember whether the flat gradient, which belongs to the step noted last, is finite.

        For a driver that has it only after `note`; call it once, before the next backward pass writes another one.
        """
        assert self._notes[-1].step == step, f"step {step} was not noted, or another one after it"
        names = [layer.name for layer in self._flat.layers]
        self._note_gradients(dict(zip(names, self._flat.views, strict=True)))

    def _note_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Complete the last note; on a CPU, where that costs no wait, raise Diverged at once."""
        note, tensors = self._notes.pop(), list(gradients.values())
        on_gpu = tensors[0].device.type == "cuda"
        if on_gpu:
            # One fused kernel for all layers: a late look could no longer tell which one it was.
            norms = torch.stack(torch._foreach_norm(tensors))
        elif self._is_flat(tensors):
            norms = self._flat.grad.sum()
        else:
            norms = torch.stack([gradient.sum() for gradient in tensors])
        host_norms = _to_host(norms, on_gpu)
        passed = torch.cuda.current_stream(norms.device).record_event() if on_gpu else None
        self._notes.append(note._replace(layers=list(gradients), norms=host_norms, passed=passed))
        if not on_gpu and not bool(norms.isfinite().all()):
            _look_closer(note.step, gradients)

    def parameters(self, step: int, workers: Sequence[Tensor], total: Callable[[Sequence[Tensor]], Tensor]) -> None:
        """Raise Diverged, on all ranks alike, where the update of `step` made a worker's parameter infinite.

        workers  flat parameters of those in this process; total: over ranks, of a number of each of them
        Call it before the parameters are kept: a checkpoint that cannot be trained on is not a good one. It waits for
        the device.
        """
        if not total([(~each.isfinite().all()).double().cpu().view(1) for each in workers]).item():
            return
        for layer, parameter in zip(self._flat.layers, self._flat.parameters, strict=True):
            if not bool(parameter.isfinite().all()):
                raise Diverged(f"step {step}: the update made layer {layer.name} infinite or NaN")
        raise Diverged(f"step {step}: the update made another worker's parameters infinite or NaN")

    def losses(self, up_to_step: int) -> list[tuple[int, float]]:
        """(step, loss) of the steps up to `up_to_step`, waiting for them; raises Diverged for a bad one."""
        known = []
        while self._notes and self._notes[0].step <= up_to_step:
            note = self._notes.popleft()
            assert note.norms is not None, f"step {note.step} is asked for before its gradient is there"
            if note.passed is not None:
                note.passed.synchronize()
            if note.passed is not None and not bool(note.norms.isfinite().all()):
                places = (~note.norms.isfinite()).nonzero().flatten().tolist()
                raise _not_finite(note.step, [note.layers[place] for place in places])
            if not self.alone and not bool(note.loss.isfinite()):
                raise Diverged(f"step {note.step}: the loss is {note.loss.item()}")
            known.append((note.step, note.loss.item()))
        return known

    def _is_flat(self, gradients: Sequence[Tensor]) -> bool:
        views = self._flat.views
        return len(gradients) == len(views) and all(map(torch.Tensor.is_set_to, gradients, views))


def seeded(loss: Tensor) -> Tensor:
    """The tensor to call `backward` of: the loss, whose own gradient is 1, or NaN if it is not finite.

    The gradient of a loss that is not finite may well be. So one rank's bad loss is in the average of all, and all
    ranks stop at the same step. (Given to `backward` itself, the factor would import sympy: half a second of a core.)
    """
    return loss * torch.ones_like(loss).masked_fill_(~loss.detach().isfinite(), torch.nan)


def _look_closer(step: int, gradients: Mapping[str, Tensor]) -> None:
    """Raise Diverged for such layers; a sum of large finite values may overflow, and that is no divergence yet."""
    bad = [layer for layer, gradient in gradients.items() if not bool(gradient.isfinite().all())]
    if bad:
        raise _not_finite(step, bad)


def _not_finite(step: int, layers: Sequence[str]) -> Diverged:
    """The error to raise for these layers, at least one."""
    if len(layers) == 1:
        return Diverged(f"step {step}: the gradient of layer {layers[0]} is not finite")
    return Diverged(f"step {step}: the gradient of layers {layers[0]} to {layers[-1]} ({len(layers)}) is not finite")


def _to_host(tensor: Tensor, on_gpu: bool) -> Tensor:
    if not on_gpu:
        return tensor.clone()
    kept = torch.empty_like(tensor, device="cpu", pin_memory=True)
    return kept.copy_(tensor, non_blocking=True)
