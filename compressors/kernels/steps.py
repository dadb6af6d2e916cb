"""Steps of optimizers that live in a compressor, element by element; one launch each."""

import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.kernels import APART, launching

TILE = 4096
"""Elements that a program reads."""


@launching
def blend(grad: Tensor, momentum: Tensor, out: Tensor, beta1: float, beta2: float) -> None:
    """Write beta1 m + (1 - beta1) g to `out`; then m <- beta2 m + (1 - beta2) g. The twin is `lion.blend`."""
    numel = grad.numel()
    _blend[(triton.cdiv(numel, TILE),)](grad, momentum, out, numel, float(beta1), 1.0 - beta2, TILE=TILE, **APART)


@triton.jit
def lerp(start, end, weight):
    """As PyTorch's: from the end that is nearer."""
    return tl.where(weight < 0.5, start + weight * (end - start), end - (end - start) * (1.0 - weight))


@triton.jit
def _blend(grad, momentum, out, numel, beta1, share, TILE: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    values = tl.load(grad + places, mask=places < numel, other=0.0)
    kept = tl.load(momentum + places, mask=places < numel, other=0.0)
    tl.store(out + places, lerp(values, kept, beta1), mask=places < numel)
    tl.store(momentum + places, lerp(kept, values, share), mask=places < numel)
