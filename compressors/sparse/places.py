"""Chosen places: what stays behind at them, and sums at places that all ranks know.

Such sums carry values only. A value that is not finite must reach all ranks from any place, also from one that is not
summed. A rank that has one therefore sends NaN everywhere, and one NaN in a sum makes the whole bucket NaN on every
rank.

`index_select` and its like take a third of the time of `x[index]` on a CPU.
"""

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.sparse.encoding import SparseCode


def keep_rest(residual: Tensor, index: Tensor, arriving: Tensor) -> None:
    """Take what arrives out of the residual at `index`: left is 0, or what rounding cut off; 0 if it is not finite."""
    left = residual.index_select(0, index).sub_(arriving)
    residual.index_copy_(0, index, left.nan_to_num_(0.0, 0.0, 0.0))


def values_at(
    vector: Tensor, index: Tensor, code: SparseCode, residual: Tensor | None, largest: bool = False
) -> Tensor:
    """Values of `vector`, fp32, at `index` in the dtype of `code`; NaN everywhere if any of `vector` is not finite.

    What arrives of them is taken out of `residual`, if there is one.
    largest  the largest of `vector` are among them: kernels leave it at the one that is not finite
    """
    if kernels.usable(vector):
        from wirebench.compressors.kernels.entries import take, unsound

        values = torch.empty(index.numel(), dtype=code.dtype, device=index.device)
        take(vector, index, values, rest=residual, flags=None if largest else unsound(vector))
        return values
    arriving = code.rounded(vector.index_select(0, index))
    low, high = vector.aminmax()  # both hand NaN on, and do not overflow
    values = torch.where(low.isfinite() & high.isfinite(), arriving, torch.full_like(arriving, torch.nan))
    if residual is not None:
        keep_rest(residual, index, arriving)
    return values.to(code.dtype)


def write_average(grad: Tensor, index: Tensor, total: Tensor, divisor: float) -> Tensor:
    """`total` over `divisor` at the ascending places `index` of `grad`, 0 elsewhere; all NaN where any is not finite.

    index  int64; int32 where `kernels.usable`
    """
    if kernels.usable(grad):
        from wirebench.compressors.kernels.entries import place

        place(grad, index, total, divisor)
        return grad
    total = total.to(grad.dtype).div_(divisor)
    # A number minus itself is 0; infinity and NaN give NaN. The host need not wait for a GPU.
    grad.fill_((total - total).sum())
    return grad.index_copy_(0, index, total)
