"""PowerSGD: each layer's gradient as a product of two thin matrices, found by one step of power iteration.

Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", NeurIPS 2019
(arXiv 1905.13727), Algorithms 1 and 2. For a layer's matrix M (n, m), its gradient and its residual:
  P <- sum over ranks of M Q,  P^ <- an orthonormal basis of P,  Q <- average of M^T P^
  applied: P^ Q^T;  residual: M - P^ (M^T P^)^T
Q is the start of the next step. Sums are all that is exchanged: no more bytes with more ranks.
"""

from wirebench.compressors.common.dense import dense_average
from wirebench.compressors.lowrank.base import LowRank
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Sum


class PowerSGD(LowRank):
    """Two sums for a bucket: all layers' P with what goes dense (vectors, small layers), then all Q.

    rank                  columns of P and Q; the paper has 2 for ResNet-18, 4 for its LSTM; 1 is PyTorch's default
    warm_start            Q of the last step is the start; false: a new random one at each step
    error_feedback        see LowRank; without it nothing is kept of what is not sent
    min_compression_rate  see LowRank: rank (n + m) times this is less than n m; the authors' code and PyTorch have 2
    start_step            see LowRank; 0 is the paper's. The authors' code has 100, PyTorch 1000, which would let short
                          runs send everything dense
    Before its use Q is orthonormalised too, as PyTorch does: the same P^ in exact arithmetic, but nothing overflows or
    underflows. Extra memory: a residual of d, and 4 rank (n + m) of each layer, small beside it.
    """

    sides = 2
    uncaptured = ""

    def __init__(
        self,
        rank: int = 2,
        warm_start: bool = True,
        error_feedback: bool = True,
        min_compression_rate: float = 2.0,
        start_step: int = 0,
    ) -> None:
        super().__init__(rank, min_compression_rate, error_feedback, start_step)
        self.warm_start = warm_start

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """Two sums. Passes over the whole bucket: M is made, read twice, lessened, and the result written."""
        grad, plan = bucket.grad, self.plan(bucket, world)
        if plan is None:
            return (yield from dense_average(bucket, grad, world.size))
        memory = self.memory_of(bucket)
        with phase("update"):
            basis = self.basis(plan.right, world, grad.device)
            message, lefts = plan.message(grad, plan.left)
            plan.factors(memory, basis, lefts, to_left=True, added=grad if self.error_feedback else None)
        total = yield Sum(bucket.narrow(message))
        with phase("select"):
            lefts = plan.left.orthonormal(plan.settle(total.to(grad.dtype), grad, world.size))
            packed = grad.new_empty(plan.right.numel)
            self.factors(plan, bucket, world, lefts, plan.right.of(packed), to_left=False, add=False)
        total = yield Sum(bucket.narrow(packed))
        with phase("decode"):
            average = total.to(grad.dtype).div_(world.size)
            self.keep(plan.right, average)
            plan.write(grad, lefts, plan.right.of(average))
        return grad
