"""Mixed precision with a GradScaler: what overflowed on one rank is exchanged by none, and residuals have no scale."""

import torch
from torch import Tensor

from wirebench.comm.engine import Engine
from wirebench.gradient.flat import FlatGradient


class Overflow:
    """Stands between a scaled gradient and a compressor that remembers.

    A compressor with a residual must not see an infinity, which would stay in it, nor the loss's scale, which changes
    between steps. So all ranks agree, before anything is exchanged, on whether any of them has overflowed. If so
    nothing is exchanged, and every rank's gradient becomes infinite: each scaler skips the step and lowers its scale.
    """

    def __init__(self, engine: Engine, scaler: torch.amp.GradScaler, flat: FlatGradient) -> None:
        self.engine, self.scaler, self.flat = engine, scaler, flat

    def anywhere(self) -> bool:
        """Whether a rank's gradient is not finite; then every rank's is not, from now on. Every rank calls it."""
        mine = torch.tensor([0.0 if _finite(self.flat.grad) else 1.0], device=self.flat.grad.device)
        found = bool(self.engine.sum_over_ranks([mine]).item())
        if found:
            self.flat.grad.fill_(torch.inf)
        return found

    def unscale(self) -> None:
        """Take the loss's scale out of the gradient, for its exchange."""
        self.flat.grad.mul_(1.0 / self.scaler.get_scale())

    def rescale(self) -> None:
        """Put it back, so that the scaler finds what it expects."""
        self.flat.grad.mul_(self.scaler.get_scale())


def _finite(vector: Tensor) -> bool:
    # A sum may overflow although all values are finite, so a bad one calls for a closer look.
    return bool(vector.sum().isfinite()) or bool(vector.isfinite().all())
