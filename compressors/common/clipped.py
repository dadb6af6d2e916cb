"""Each rank's own gradient, scaled down to a largest norm before a method gets it."""

from wirebench.compressors.common.wrappers import Wrapper
from wirebench.gradient.clipping import clip
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Method
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase


class Clipped(Wrapper):
    """For methods that return updates: an update's norm does not show the gradient's, and the average gradient is
    known to no rank. So each rank's own is clipped before, as DeepSpeed does before 1-bit Adam.

    most  largest norm of a rank's gradient, > 0; what is not finite stays so
    """

    def __init__(self, inner: Method, most: float) -> None:
        super().__init__(inner)
        self.most = most
        self.whole_model = inner.whole_model or "optimizer.clip scales each worker's gradient by the norm of all of it"

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """Clip the bucket's gradient to the norm `most`, then run the exchange of `inner`."""
        with phase("update"):
            clip([bucket.grad], self.most)
        return (yield from self.inner.exchange(bucket, world))
