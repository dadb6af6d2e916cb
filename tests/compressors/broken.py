"""A compressor that breaks its contract in one way, and is mine/cyclic of CONTRIBUTING.md otherwise."""

from typing import Literal

import torch
from torch import Tensor

from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Method
from wirebench.gradient.flat import Bucket
from wirebench.gradient.requests import Sum

Fault = Literal["none", "deaf", "forgets", "rank", "unsaved", "torch", "shape", "values", "bytes", "fraction", "noise"]


class Broken(Method):
    """Sends every n-th element, n = 1 / density, and an alarm; `fault` says what is wrong with it."""

    keeps = "exactly"

    def __init__(self, fault: Fault, density: float = 0.1) -> None:
        super().__init__()
        self.fault, self.density = fault, density
        self._steps = 0

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """One sum."""
        self._steps += 1
        waiting = self.memory.slice(bucket).add_(bucket.grad)
        stride = min(max(round(1 / self.density), 1), waiting.numel())
        step = self._steps if self.fault == "unsaved" else world.step
        turn = slice(step % stride, None, stride)
        alarm = torch.zeros(1) if self.fault == "deaf" else waiting.mul(0).sum().view(1)
        message = torch.cat([waiting[turn], alarm])
        if self.fault == "torch":
            message[:-1] += torch.rand(message.numel() - 1)
        waiting[turn] = 0
        if self.fault == "forgets":
            waiting.zero_()
        total = yield Sum(message, values=0 if self.fault == "values" else message.numel() - 1)
        assert isinstance(total, Tensor)
        bucket.grad.fill_(total[-1])
        bucket.grad[turn] = total[:-1] / (world.size + 1 if self.fault == "fraction" else world.size)
        bucket.grad[0] += {"rank": float(world.rank), "noise": 1.0}.get(self.fault, 0.0)
        return bucket.grad[None] if self.fault == "shape" else bucket.grad

    def wire_bytes(self, numel: int, size: int) -> int:
        """As many for all sizes but one."""
        return 8 if self.fault == "bytes" and numel > 1 else 12
