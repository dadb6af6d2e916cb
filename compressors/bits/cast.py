"""Dense sums in a narrower float type: what fp16 and bf16 share."""

from typing import ClassVar

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Method
from wirebench.gradient.flat import Bucket
from wirebench.gradient.requests import Sum


class Cast(Method):
    """The gradient cast to `dtype`, summed in it on the wire, divided in the gradient's own type."""

    any_dtype = True
    uncaptured = ""
    dtype: ClassVar[torch.dtype]

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """One sum of the cast gradient, written back into `bucket.grad`."""
        grad = bucket.grad
        total = yield Sum(grad.to(self.dtype))
        assert isinstance(total, Tensor)
        if kernels.usable(grad) and grad.dtype == torch.float32:
            # A divisor that is a vector makes the quotient fp32, in one kernel, with the bits of the two below.
            return torch.div(total, grad.new_full((1,), world.size), out=grad)
        return grad.copy_(total).div_(world.size)

    def wire_bytes(self, numel: int, size: int) -> int:
        """The bytes of `dtype` per element."""
        return self.dtype.itemsize * numel
