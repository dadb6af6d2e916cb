"""Scale a gradient down to a largest norm."""

from collections.abc import Sequence

import torch
from torch import Tensor


def clip(gradients: Sequence[Tensor], most: float) -> None:
    """Scale a gradient down to the norm `most`, in place, where it is longer; 0: leave it.

    Elements that are not finite stay so. If the sum of squares overflows, all elements keep their values. It does not
    wait for a GPU.

    gradients  its parts: the flat gradient, or one for each parameter
    """
    if most and gradients:
        norms = [gradient.norm() for gradient in gradients]
        norm = norms[0] if len(norms) == 1 else torch.stack(norms).norm()
        # Of an infinite norm the scale is 0, with which nothing but NaN would be left.
        scale = torch.where(norm.isfinite(), (most / (norm + 1e-6)).clamp(max=1.0), torch.ones_like(norm))
        torch._foreach_mul_(list(gradients), scale)
