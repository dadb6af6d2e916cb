"""ACP-SGD: PowerSGD that sends P in one step and Q in the next, so that a step needs one sum, known at once.

Zhang et al., "Evaluation and Optimization of Gradient Compression for Distributed Deep Learning", ICDCS 2023
(arXiv 2306.08881). For a layer's matrix M (n, m), its gradient and its residual:
  even steps: Q^ <- an orthonormal basis of Q,  P <- average of M Q^,    applied: P Q^^T;  residual: M - M Q^ Q^^T
  odd steps:  P^ <- an orthonormal basis of P,  Q <- average of M^T P^,  applied: P^ Q^T;  residual: M - P^ P^^T M
"""

from wirebench.compressors.common.dense import dense_average
from wirebench.compressors.lowrank.base import LowRank
from wirebench.compressors.lowrank.factors import PackedFactors
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Sum


class ACPSGD(LowRank):
    """One sum for a bucket: all layers' P, or all Q, with what goes dense (vectors).

    rank                  columns of P and Q; 4 is the authors'
    error_feedback        see LowRank; without it nothing is kept of what is not sent
    min_compression_rate  see LowRank: rank (n + m) / 2 times this is less than n m. At 1, as in the authors' code, all
                          matrices are sent as factors that are larger than those
    start_step            see LowRank; 0 is the authors'
    Even steps send P, odd ones Q. Extra memory: a residual of d, and 4 rank (n + m) of each layer, small beside it.
    """

    sides = 1
    uncaptured = "even steps send other factors than odd ones"

    def __init__(
        self,
        rank: int = 4,
        error_feedback: bool = True,
        min_compression_rate: float = 1.0,
        start_step: int = 0,
    ) -> None:
        super().__init__(rank, min_compression_rate, error_feedback, start_step)

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """One sum. Passes over the whole bucket: M is made, read, lessened, and the result written."""
        grad, plan = bucket.grad, self.plan(bucket, world)
        if plan is None:
            return (yield from dense_average(bucket, grad, world.size))
        sends_left = world.step % 2 == 0
        sent, fixed = (plan.left, plan.right) if sends_left else (plan.right, plan.left)
        with phase("update"):
            basis = self.basis(fixed, world, grad.device)
            message, factors = plan.message(grad, sent)
            self.factors(plan, bucket, world, basis, factors, sends_left, add=True)
        total = yield Sum(bucket.narrow(message))
        with phase("decode"):
            average = plan.settle(total.to(grad.dtype), grad, world.size).div_(world.size)
            self.keep(sent, average)
            plan.write(grad, *_ordered(sent.of(average), basis, sends_left))
        return grad


def _ordered(sent: PackedFactors, basis: PackedFactors, sends_left: bool) -> tuple[PackedFactors, PackedFactors]:
    """(left factor, right factor), one of which was sent and the other one was the basis."""
    return (sent, basis) if sends_left else (basis, sent)
