"""Steps of optimizers that live in a compressor, element by element; one launch each."""

import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.common.lion import Lion
from wirebench.compressors.kernels import APART, launching

TILE = 4096
"""Elements that a program reads."""


@launching
def blend(grad: Tensor, momentum: Tensor, out: Tensor, beta1: float, beta2: float) -> None:
    """Write beta1 m + (1 - beta1) g to `out`; then m <- beta2 m + (1 - beta2) g. The twin is `lion.blend`."""
    numel = grad.numel()
    _blend[(triton.cdiv(numel, TILE),)](grad, momentum, out, numel, float(beta1), 1.0 - beta2, TILE=TILE, **APART)


@launching
def settle(total: Tensor, places: Tensor, out: Tensor, divisor: float, lion: Lion | None) -> None:
    """Write the first numbers of `total` over `divisor` to these places of `out`, (n,) int64; or Lion's update.

    lion  its momentum is of these numbers, (n,): the twins are `lion.blend` and `lion.signs`
    """
    count = places.numel()
    momentum, beta1, beta2 = lion or Lion(total, 0.0, 0.0)
    if count:
        _settle[(triton.cdiv(count, TILE),)](
            total, places, out, momentum, count, float(divisor), float(beta1), 1.0 - beta2,
            LION=lion is not None, TILE=TILE, **APART,
        )  # fmt: skip


@launching
def begin(
    grad: Tensor, momentum: Tensor, waiting: Tensor, own: Tensor | None, beta1: float,
    served: Tensor | None, piece: slice,
) -> None:  # fmt: skip
    """0/1 Adam's step until it exchanges: m <- beta1 m; the residual grows by (1 - beta1) g, or by the average `own`.

    served  what was cut off of sums; outside `piece` it waits, too, and becomes 0; None: it stays
    """
    numel = grad.numel()
    _begin[(triton.cdiv(numel, TILE),)](
        grad, momentum, waiting, grad if own is None else own, grad if served is None else served, numel,
        float(beta1), 1.0 - beta1, piece.start, piece.stop, OWN=own is not None, HAND=served is not None,
        TILE=TILE, **APART,
    )  # fmt: skip


@launching
def finish(
    momentum: Tensor, variance: Tensor, fresh: Tensor | None, out: Tensor, unbiased: tuple[float, float], eps: float,
    factor: float, length: int, own: Tensor | None = None,
) -> None:  # fmt: skip
    """Write Adam's update of the momentum and what is fresh; then m <- (factor m + fresh) / length. Or of m alone.

    unbiased  what momentum and variance are divided by
    own       a vector that becomes 0
    """
    numel = out.numel()
    _finish[(triton.cdiv(numel, TILE),)](
        momentum, variance, momentum if fresh is None else fresh, out, momentum if own is None else own, numel,
        *map(float, unbiased), float(eps), float(factor), float(length), FRESH=fresh is not None, OWN=own is not None,
        TILE=TILE, **APART,
    )  # fmt: skip


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


@triton.jit
def _settle(total, places, out, momentum, count, divisor, beta1, share, LION: tl.constexpr, TILE: tl.constexpr):
    number = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    there = number < count
    at = tl.load(places + number, mask=there, other=0)
    values = tl.load(total + number, mask=there, other=0.0)
    values = tl.div_rn(values, tl.zeros_like(values) + divisor)
    if LION:
        kept = tl.load(momentum + number, mask=there, other=0.0)
        tl.store(momentum + number, lerp(kept, values, share), mask=there)
        update = lerp(values, kept, beta1)
        sign = (update > 0).to(tl.float32) - (update < 0).to(tl.float32)
        values = sign + update * 0.0
    tl.store(out + at, values, mask=there)


@triton.jit
def _begin(grad, momentum, waiting, own, served, numel, beta1, share, start, stop,
           OWN: tl.constexpr, HAND: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    places = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    there = places < numel
    fresh = tl.load(grad + places, mask=there, other=0.0) * share
    tl.store(momentum + places, tl.load(momentum + places, mask=there, other=0.0) * beta1, mask=there)
    if OWN:
        fresh += tl.load(own + places, mask=there, other=0.0) * beta1
        tl.store(own + places, fresh, mask=there)
    total = tl.load(waiting + places, mask=there, other=0.0) + fresh
    if HAND:
        outside = there & ((places < start) | (places >= stop))
        total += tl.load(served + places, mask=outside, other=0.0)
        tl.store(served + places, tl.zeros([TILE], tl.float32), mask=outside)
    tl.store(waiting + places, total, mask=there)


@triton.jit
def _finish(momentum, variance, fresh, out, own, numel, of_momentum, of_variance, eps, factor, length,
            FRESH: tl.constexpr, OWN: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    places = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    there = places < numel
    if OWN:
        tl.store(own + places, tl.zeros([TILE], tl.float32), mask=there)
    one = tl.full([TILE], 1.0, tl.float32)
    kept = tl.load(momentum + places, mask=there, other=0.0)
    total = kept
    if FRESH:
        more = tl.load(fresh + places, mask=there, other=0.0)
        total = kept + more
        tl.store(momentum + places, tl.div_rn(kept * factor + more, one * length), mask=there)
    squares = tl.load(variance + places, mask=there, other=0.0)
    root = tl.sqrt_rn(tl.div_rn(squares, one * of_variance)) + eps
    update = tl.div_rn(tl.div_rn(total, root), one * of_momentum)
    tl.store(out + places, tl.where(squares == 0.0, total * 0.0, update), mask=there)
