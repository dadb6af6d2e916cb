"""Chosen places: what stays behind at them, and sums at places that all ranks know.

Such sums carry values only. A value that is not finite must reach all ranks from any place, also from one that is not
summed. A rank that has one therefore sends NaN everywhere, and one NaN in a sum makes the whole bucket NaN on every
rank.

`index_select` and its like take a third of the time of `x[index]` on a CPU.
"""

import torch
from torch import Tensor


def keep_rest(residual: Tensor, index: Tensor, arriving: Tensor) -> None:
    """Take what arrives out of the residual at `index`: left is 0, or what rounding cut off; 0 if it is not finite."""
    left = residual.index_select(0, index).sub_(arriving)
    residual.index_copy_(0, index, left.nan_to_num_(0.0, 0.0, 0.0))


def poisoned(values: Tensor, vector: Tensor) -> Tensor:
    """`values` unchanged if all of `vector` is finite, else NaN everywhere; reads `vector` once, without overflow."""
    low, high = vector.aminmax()  # both hand NaN on
    return torch.where(low.isfinite() & high.isfinite(), values, torch.full_like(values, torch.nan))


def write_average(grad: Tensor, index: Tensor, total: Tensor, divisor: float) -> Tensor:
    """`total` over `divisor` at the places `index` of `grad`, 0 elsewhere; all NaN where any of it is not finite."""
    total = total.to(grad.dtype).div_(divisor)
    # A number minus itself is 0; infinity and NaN give NaN. The host need not wait for a GPU.
    grad.fill_((total - total).sum())
    return grad.index_copy_(0, index, total)
