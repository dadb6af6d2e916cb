"""Error feedback with a momentum: both memories in one launch."""

import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.kernels import APART, launching

TILE = 2048
"""Elements of a program."""


@launching
def accumulate(residual: Tensor, velocity: Tensor, grad: Tensor, momentum: float, nesterov: bool) -> None:
    """Add the gradient to the velocity, and the velocity to the residual; twin: `Feedback.accumulate`."""
    _accumulate[(triton.cdiv(grad.numel(), TILE),)](
        residual, velocity, grad, grad.numel(), momentum, NESTEROV=nesterov, TILE=TILE, **APART
    )


@triton.jit
def _accumulate(residual, velocity, grad, numel, momentum, NESTEROV: tl.constexpr, TILE: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    there = place < numel
    fresh = tl.load(grad + place, mask=there, other=0.0)
    moving, left = tl.load(velocity + place, mask=there, other=0.0), tl.load(residual + place, mask=there, other=0.0)
    if NESTEROV:
        moving = (moving + fresh) * momentum
        left += fresh
    else:
        moving = tl.fma(moving, tl.zeros_like(moving) + momentum, fresh)
    tl.store(velocity + place, moving, mask=there)
    tl.store(residual + place, left + moving, mask=there)
