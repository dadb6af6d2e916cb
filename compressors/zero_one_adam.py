"""0/1 Adam: Adam of which the variance is seldom updated, and the momentum summed with one bit, or not in every step.

Lu, Li, Zhang, De Sa and He, "Maximizing Communication Efficiency for Large-scale Training via 0/1 Adam", ICLR 2023,
arXiv 2202.06009, Algorithm 1; constants and details of its authors' code (DeepSpeed, `zoadam.py`). It covers 1-bit Adam
(Tang et al., ICML 2021, arXiv 2102.02888), whose variance is updated up to one step and never again.
"""

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.bits.blocks import by_layer
from wirebench.compressors.bits.onebit_sum import SERVED, onebit_average, onebit_bytes, shares_of
from wirebench.compressors.common.dense import dense_average
from wirebench.compressors.common.intervals import Intervals
from wirebench.compressors.common.lion import betas
from wirebench.compressors.common.own_steps import OwnSteps
from wirebench.compressors.common.shared import shared_slice
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange
from wirebench.gradient.error_memory import RESIDUAL, ErrorMemory
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Sum

OWN = "fresh"


class ZeroOneAdam(OwnSteps):
    """Dense steps, which update the variance, become rare; the others sum one bit; late in a run few steps sum at all.

    beta1, beta2, eps  Adam's
    kappa              dense steps at each distance: the first kappa + 1 follow each other, then they come two steps
                       apart, four, and so on, `kappa` at each distance
    freeze_step        no dense step from this one on: the variance is frozen
    double_every       steps after `freeze_step` until the interval between sums grows from one step to two, then four
    longest            steps of the longest interval; 1: every step ends with a sum

    What it returns is Adam's update, both averages without bias, for plain SGD (makes_update), whose weight decay is
    decoupled as AdamW's is. An element whose variance is 0 stays.

    What is the authors': the algorithm and its constants, meant for runs of 100,000 steps and more. What is the
    contract's: weights are the same on all ranks at every step, so within an interval they move by the part of the
    momentum that all ranks share, decaying; what a rank's own gradients would add in between (the authors' local steps)
    waits in its residual, and is applied for all when the interval ends. Only that fresh part is sent with one bit, as
    in DeepSpeed's code before its freeze; the paper sends the shared part with it. Where a step sums nothing, one
    number travels, by which all ranks learn of a NaN.

    Memory: two residuals, of what is sent and of what this rank adds up, 2 d, momentum and variance, 2 d; with
    intervals above one step 1 d more.
    """

    owns_momentum = True
    makes_update = True
    uncaptured = "what a step does depends on its number"

    def __init__(
        self,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        kappa: int = 16,
        freeze_step: int = 100_000,
        double_every: int = 32_678,
        longest: int = 16,
    ) -> None:
        super().__init__()
        self.beta1, self.beta2 = betas(beta1, beta2)
        if not eps > 0:
            raise ValueError(f"eps is positive, got {eps:g}")
        self.eps, self.intervals = eps, Intervals(kappa, freeze_step, double_every, longest)
        self.intervals.check()
        if not beta1 and longest > 1:
            raise ValueError("beta1 = 0 leaves nothing to move by within an interval; set longest = 1")
        self.usual_step = min(kappa + 1, freeze_step)
        self.memory = ErrorMemory(RESIDUAL, SERVED, OWN)

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """A sum of the gradient; or a route and a gather of bits; or a sum of one number."""
        momentum, variance = (shared_slice(self.shared, name, bucket) for name in ("momentum", "variance"))
        step = self.own_step(world.step)
        if self.intervals.is_dense(step):
            average = yield from dense_average(bucket, bucket.grad, world.size)
            with phase("decode"):
                variance.mul_(self.beta2).addcmul_(average, average, value=1 - self.beta2)
                momentum.lerp_(average, 1 - self.beta1)
            return self._update(momentum, variance, step, bucket.grad)
        begin, length = self.intervals.around(step)
        done = step - begin + 1
        with phase("update"):
            waiting = self.memory.slice(bucket)
            if kernels.usable(bucket.grad):
                self._begin(bucket, world, momentum, length, exchanges=done == length)
            elif length == 1:
                waiting.add_(bucket.grad, alpha=1 - self.beta1)
            else:
                own = self.memory.slice(bucket, OWN)
                waiting.add_(own.mul_(self.beta1).add_(bucket.grad, alpha=1 - self.beta1))
            if not kernels.usable(bucket.grad):
                momentum.mul_(self.beta1)
        if done < length:
            alarm = yield Sum(bucket.grad.mul_(0).sum().view(1), values=0)
            return self._update(momentum + alarm, variance, step, bucket.grad)
        fresh = yield from onebit_average(self.memory, bucket, world, bucket.grad)
        with phase("decode"):
            # Of all the interval's steps, of which the last is momentum itself.
            steps_of_all = sum(self.beta1**-back for back in range(length))
            sent = self.memory.slice(bucket, OWN) if length > 1 else None
            if kernels.usable(bucket.grad):
                from wirebench.compressors.kernels import steps

                biases = self._biases(step)
                steps.finish(momentum, variance, fresh, bucket.grad, biases, self.eps, steps_of_all, length, sent)
                return bucket.grad
            if sent is not None:
                sent.zero_()
            total = momentum + fresh
            momentum.mul_(steps_of_all).add_(fresh).div_(length)
            return self._update(total, variance, step, bucket.grad)

    def wire_bytes(self, numel: int, size: int) -> int:
        """The bits of a step after the dense ones, before the intervals grow."""
        return onebit_bytes(numel, size)

    def _update(self, momentum: Tensor, variance: Tensor, step: int, out: Tensor) -> Tensor:
        of_momentum, of_variance = self._biases(step)
        if kernels.usable(out):
            from wirebench.compressors.kernels import steps

            steps.finish(momentum, variance, None, out, (of_momentum, of_variance), self.eps, 1.0, 1)
            return out
        unbiased = (variance / of_variance).sqrt_().add_(self.eps)
        torch.div(momentum, unbiased, out=out).div_(of_momentum)
        # What has no variance has no update, but is NaN where the momentum is.
        return torch.where(variance == 0, momentum * 0, out, out=out)

    def _biases(self, step: int) -> tuple[float, float]:
        """What momentum and variance are divided by, so that they are without bias."""
        return 1 - self.beta1 ** (step + 1), 1 - self.beta2 ** self.intervals.dense_steps(step)

    def _begin(self, bucket: Bucket, world: ExchangeContext, momentum: Tensor, length: int, exchanges: bool) -> None:
        """Momentum and what waits, by one kernel; and what this rank kept of sums, if it `exchanges`."""
        from wirebench.compressors.kernels import steps

        served = self.memory.slice(bucket, SERVED) if exchanges else None
        own = self.memory.slice(bucket, OWN) if length > 1 else None
        piece = shares_of(by_layer(bucket), world.size)[world.rank].piece
        steps.begin(bucket.grad, momentum, self.memory.slice(bucket), own, self.beta1, served, piece)
