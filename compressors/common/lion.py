"""Lion's two moving averages of one memory, and signs that let what is not finite through."""

from typing import NamedTuple

import torch
from torch import Tensor

from wirebench.compressors import kernels


class Lion(NamedTuple):
    """A momentum, and the shares of it that stay: in the update, and in itself."""

    momentum: Tensor
    beta1: float
    beta2: float


def blend(grad: Tensor, momentum: Tensor, beta1: float, beta2: float) -> Tensor:
    """beta1 m + (1 - beta1) g, whose sign is Lion's update; then, in place, m <- beta2 m + (1 - beta2) g.

    Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023, arXiv 2302.06675, Algorithm 2. The
    result is a tensor of its own, of the gradient's shape.
    """
    if kernels.usable(grad):
        from wirebench.compressors.kernels import steps

        direction = torch.empty_like(grad)
        steps.blend(grad, momentum, direction, beta1, beta2)
        return direction
    direction = torch.lerp(grad, momentum, beta1)
    momentum.lerp_(grad, 1 - beta2)
    return direction


def signs(values: Tensor) -> Tensor:
    """-1, 0 or 1 by element, in place; what is NaN or infinite becomes NaN, so that every rank sees it."""
    nothing = values * 0
    return values.sign_().add_(nothing)


def betas(beta1: float, beta2: float) -> tuple[float, float]:
    """Return both unchanged; ValueError for one outside [0, 1)."""
    for name, beta in (("beta1", beta1), ("beta2", beta2)):
        if not 0 <= beta < 1:
            raise ValueError(f"{name} lies in [0, 1), got {beta:g}")
    return beta1, beta2
