"""Mixed precision with a GradScaler: what overflowed on one rank is exchanged by none, and residuals have no scale."""

import inspect
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from wirebench.comm.engine import Engine
from wirebench.errors import UserError
from wirebench.exchange.finite import all_finite
from wirebench.gradient.conformance import name_of
from wirebench.gradient.contract import Bare, Method


class Overflow:
    """Stands between a scaled gradient and a compressor that remembers.

    A compressor with a residual must not see an infinity, which would stay in it, nor the loss's scale, which changes
    between steps. So all ranks agree, before anything is exchanged, on whether any of them has overflowed. If so
    nothing is exchanged, and every rank's gradient becomes infinite: each scaler skips the step and lowers its scale.

    groups  of ranks that share a model: each has a part of the gradient, and all of them skip a step or none
    """

    def __init__(self, engine: Engine, scaler: torch.amp.GradScaler, groups: Sequence[dist.ProcessGroup] = ()) -> None:
        self.engine, self.scaler, self.groups = engine, scaler, groups

    def anywhere(self, gradients: Sequence[Tensor]) -> bool:
        """Whether a rank's gradient is not finite; then every rank's is not, from now on. Every rank calls it.

        gradients  all of this rank's, in one vector or several
        """
        finite = all(all_finite(each) for each in gradients)
        mine = torch.tensor([0.0 if finite else 1.0], device=gradients[0].device)
        total = self.engine.sum_over_ranks([mine])
        for group in self.groups:
            dist.all_reduce(total, group=group)
        found = bool(total.item())
        if found:
            for each in gradients:
                each.fill_(torch.inf)
        return found

    def unscale(self, gradients: Sequence[Tensor]) -> None:
        """Take the loss's scale out of the gradient, for its exchange."""
        self._multiply(gradients, 1.0 / self.scaler.get_scale())

    def rescale(self, gradients: Sequence[Tensor]) -> None:
        """Put it back, so that the scaler finds what it expects."""
        self._multiply(gradients, self.scaler.get_scale())

    def _multiply(self, gradients: Sequence[Tensor], factor: float) -> None:
        for each in gradients:
            each.mul_(factor)


def overflow_of(
    engine: Engine,
    compressor: Method,
    scaler: torch.amp.GradScaler | None,
    groups: Sequence[dist.ProcessGroup] = (),
) -> Overflow | None:
    """None where there is nothing to guard: no scaler, a disabled one, or a compressor that scales with the loss."""
    if scaler is None or not scaler.is_enabled() or not guarded(compressor):
        return None
    return Overflow(engine, scaler, groups)


def guarded(compressor: Method) -> bool:
    """Whether the loss's scale must not reach it: it changes between steps, and what has no scale is divided by it."""
    return compressor.scale_free or remembers(compressor)


def remembers(compressor: Method) -> bool:
    """Whether a step's gradient may affect a later step, or the result is an update, which has no scale."""
    if isinstance(compressor, Bare):
        return True  # it declares nothing, so it may
    if isinstance(compressor.inner, Method):
        return remembers(compressor.inner)
    return compressor.keeps != "nothing" or compressor.owns_momentum or compressor.makes_update


def refuse_unknown_scaler(compressor: Method, known: torch.amp.GradScaler | None) -> None:
    """UserError if a GradScaler other than `known` steps the optimizer, and the compressor remembers earlier steps.

    To be called within the optimizer's step.
    """
    steps = _scaler_that_steps()
    if steps is None or steps is known or not steps.is_enabled() or not guarded(compressor):
        return
    why = "remembers earlier steps" if remembers(compressor) else "returns signs, which have no scale"
    raise UserError(
        f"compressor {name_of(compressor)!r} {why}, and a GradScaler that it does not know scales "
        "the loss; pass it: scaler=scaler in synchronise, comm_hook or compress_replicas"
    )


def _scaler_that_steps() -> torch.amp.GradScaler | None:
    """The GradScaler whose `step` has called us; None where the loop steps its optimizer itself."""
    # The optimizer is not told who steps it. Trainers make the scaler themselves, deep inside, and nothing else shows
    # it; it is on the stack whatever they wrap around it.
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is torch.amp.GradScaler.step.__code__:
            scaler: torch.amp.GradScaler = frame.f_locals["self"]
            return scaler
        frame = frame.f_back
    return None
