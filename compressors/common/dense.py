"""Values that go dense: one sum, in the dtype of the model's own gradient."""

from torch import Tensor

from wirebench.gradient.contract import Exchange
from wirebench.gradient.flat import Bucket
from wirebench.gradient.requests import Sum


def dense_average(bucket: Bucket, values: Tensor, size: int) -> Exchange:
    """The average over `size` ranks of `values` of the bucket's own gradient, in their dtype; may overwrite them."""
    total = yield Sum(bucket.narrow(values))
    assert isinstance(total, Tensor)
    return total.to(values.dtype).div_(size)
