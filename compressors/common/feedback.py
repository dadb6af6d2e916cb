"""Error feedback with momentum correction: what was not sent yet, and the momentum of what comes in."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Keeps, Method
from wirebench.gradient.error_memory import RESIDUAL, VELOCITY, ErrorMemory
from wirebench.gradient.flat import Bucket
from wirebench.gradient.metrics import Measures
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Sum


def decayed(memory: Tensor, beta: float, grad: Tensor) -> Tensor:
    """Write beta times `memory` plus `grad` to `memory`; returns it."""
    if kernels.usable(memory):  # one launch, which rounds once where two round twice
        return torch.add(grad, memory, alpha=beta, out=memory)
    if beta < 1:
        memory.mul_(beta)
    return memory.add_(grad)


@contextmanager
def kept_energy(measures: Measures, waiting: Tensor, measuring: bool) -> Iterator[None]:
    """Around the encoding of `waiting`, from which what is sent goes: measure the squares of what stays over before."""
    before = torch.dot(waiting, waiting) if measuring else 0.0
    yield
    if measuring:
        measures.ratio("kept_energy", torch.dot(waiting, waiting), before)


class Feedback(ErrorMemory):
    """Error feedback with DGC's momentum correction: v, what was not sent yet, and u, the momentum of what comes in.

    Lin et al., "Deep Gradient Compression", ICLR 2018, section 3; gs-SGD (arXiv 2108.06004), Algorithm 1.
      u <- m u + g,  v <- v + u                      Nesterov: u <- m (u + g),  v <- v + u + g
      where it was sent: v <- 0, u <- 0 (momentum factor masking)
    With everything sent this is dense momentum SGD. Masking is of entries chosen among others: clearing u where all is
    sent would take the momentum away from a dense warm-up.

    momentum  m in [0, 1); 0: plain error feedback, no u
    clip      largest Euclidean norm of the gradient of P ranks: each clips its own to clip / sqrt(P); 0: off. It is of
              the whole gradient, which must come in one bucket; layers that a wrapper sends dense are no part of it
    masking   false: u is kept where v was sent
    """

    def __init__(self, momentum: float = 0.0, nesterov: bool = False, clip: float = 0.0, masking: bool = True) -> None:
        super().__init__(*([RESIDUAL, VELOCITY] if momentum else [RESIDUAL]))
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum lies in [0, 1), got {momentum}")
        if nesterov and not momentum:
            raise ValueError("nesterov needs a momentum above 0")
        if not masking and not momentum:
            raise ValueError("masking = false needs a momentum above 0: without one there is none to mask")
        if clip < 0:
            raise ValueError(f"clip is a norm, or 0 for none, got {clip}")
        self.momentum, self.nesterov, self.clip, self.masking = momentum, nesterov, clip, masking

    @property
    def whole_model(self) -> str:
        """See Method.whole_model, of the method that has this memory."""
        return "clip limits the norm of the whole gradient" if self.clip else ""

    def accumulate(self, bucket: Bucket, world: ExchangeContext) -> Tensor:
        """Add the gradient of `bucket`, which only clipping may change, to the memory; returns v, a view (numel,)."""
        grad, residual = bucket.grad, self.slice(bucket)
        velocity = self.slice(bucket, VELOCITY) if self.momentum else None
        if self.clip:
            limit = self._limit(bucket, world.size)
            if kernels.usable(grad):
                from wirebench.compressors.kernels.momentum import accumulate_clipped

                accumulate_clipped(residual, velocity, grad, self.momentum, self.nesterov, limit)
                return residual
            self._clip(grad, limit)
        if velocity is None:
            return residual.add_(grad)
        if kernels.usable(grad):
            from wirebench.compressors.kernels.momentum import accumulate

            accumulate(residual, velocity, grad, self.momentum, self.nesterov)
            return residual
        if self.nesterov:
            velocity.add_(grad).mul_(self.momentum)
            residual.add_(grad)
        else:
            torch.add(grad, velocity, alpha=self.momentum, out=velocity)
        return residual.add_(velocity)

    def sent(self, bucket: Bucket, index: Tensor, kept: Tensor | None = None) -> None:
        """The places `index` (int64) of v were sent; `kept` is what rounding left of them, if anything."""
        residual = self.slice(bucket)
        if kept is None:
            residual.index_fill_(0, index, 0)
        else:
            residual.index_copy_(0, index, kept)
        velocity = self.masked(bucket)
        if velocity is not None:
            velocity.index_fill_(0, index, 0)

    def masked(self, bucket: Bucket) -> Tensor | None:
        """u, where an entry of it is to become 0 when it is sent."""
        return self.slice(bucket, VELOCITY) if self.momentum and self.masking else None

    def sent_narrow(self, bucket: Bucket, index: Tensor) -> None:
        """The places `index` (int64) of v were sent in the wire's dtype (Bucket.narrow)."""
        kept = None
        if bucket.wire_dtype is not None:
            exact = self.slice(bucket).index_select(0, index)
            kept = (exact - bucket.arriving(exact)).nan_to_num_(0.0, 0.0, 0.0)
        self.sent(bucket, index, kept)

    def sent_all(self, bucket: Bucket) -> None:
        """Clear v after a step that sent all of it. u is kept, also with masking: the step was dense momentum SGD."""
        self.slice(bucket).zero_()

    def exchange_all(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """One sum of all of v, which is the average then; what rounding to the wire's dtype cuts off stays in v."""
        with phase("encode"):
            residual = self.slice(bucket)
            if bucket.wire_dtype is None:
                message = bucket.grad.copy_(residual)
                self.sent_all(bucket)
            else:
                message = bucket.narrow(residual)
                residual.sub_(message).nan_to_num_(0.0, 0.0, 0.0)
        total = yield Sum(message)
        assert isinstance(total, Tensor)
        return total.to(bucket.grad.dtype).div_(world.size)

    def _limit(self, bucket: Bucket, size: int) -> float:
        """The norm of the gradient of one of `size` ranks, at most."""
        model = bucket.model or bucket.layers
        assert bucket.numel == sum(layer.numel for layer in model), "clip needs the whole model in one bucket"
        return self.clip / size**0.5

    @staticmethod
    def _clip(grad: Tensor, limit: float) -> None:
        """Scale a gradient down to the norm `limit`."""
        norm = torch.linalg.vector_norm(grad)
        # A tensor, so that the host need not wait for a GPU. A gradient that is not finite is not scaled: its infinity
        # would become NaN and all else 0.
        scale = (limit / norm).clamp(max=1.0)
        grad.mul_(torch.where(norm.isfinite(), scale, torch.ones_like(scale)))


class Rounding(Method):
    """Base of methods that round values, whose error feedback is an option: without it what is cut off is lost."""

    keeps: Keeps = "rounded"
    uncaptured = ""

    def __init__(self, feedback: bool, rounding: str = "nearest") -> None:
        super().__init__()
        self.rounding = rounding
        if rounding == "stochastic":
            self.uncaptured = "rounding = stochastic draws by the step's number, rounding = nearest does not"
        self.feedback = Feedback() if feedback else None
        if self.feedback:
            self.memory = self.feedback
        else:
            self.keeps, self.bounded_by = "nothing", ""

    def accumulated(self, bucket: Bucket, world: ExchangeContext) -> Tensor:
        """The gradient plus the residual, if there is one: what is to be sent."""
        with phase("update"):
            return self.feedback.accumulate(bucket, world) if self.feedback else bucket.grad
