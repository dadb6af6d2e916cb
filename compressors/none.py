"""No compression: the dense fp32 sum that every method is compared with."""

from torch import Tensor

from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Method
from wirebench.gradient.flat import Bucket
from wirebench.gradient.requests import Sum

BYTES_PER_ELEMENT = 4


class NoCompression(Method):
    """The whole gradient, uncompressed, in its own dtype."""

    any_dtype = True
    uncaptured = ""

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """One sum, in place."""
        total = yield Sum(bucket.grad)
        assert isinstance(total, Tensor)
        return total.div_(world.size)

    def wire_bytes(self, numel: int, size: int) -> int:
        """Four bytes per element."""
        return BYTES_PER_ELEMENT * numel
