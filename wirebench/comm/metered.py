"""A communicator that keeps count: bytes sent, calls made, seconds waited."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wirebench.comm.base import Communicator, Handle, Receive


class Count(NamedTuple):
    """Totals so far: bytes this rank sent, calls it made, seconds from a call's start to its completion."""

    wire_bytes: int = 0
    calls: int = 0
    seconds: float = 0.0

    def since(self, before: "Count") -> "Count":
        """What was added after `before`."""
        return Count(self.wire_bytes - before.wire_bytes, self.calls - before.calls, self.seconds - before.seconds)


class Metered:
    """Wraps `communicator` and counts what passes through; `count` holds the totals."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.rank, self.size = communicator.rank, communicator.size
        self.count = Count()

    def exchange(
        self,
        sends: Sequence[tuple[int, Tensor]],
        receives: Sequence[Receive],
        dtype: torch.dtype | None = None,
        lengths_travel: bool = False,
        device: torch.device | None = None,
    ) -> Handle:
        """One counted round."""
        return _MeteredHandle(self, self.communicator.exchange(sends, receives, dtype, lengths_travel, device))

    def all_reduce(self, tensor: Tensor) -> Handle:
        """Counted sum."""
        return _MeteredHandle(self, self.communicator.all_reduce(tensor))

    def all_gather(self, tensor: Tensor) -> Handle:
        """Counted gather."""
        return _MeteredHandle(self, self.communicator.all_gather(tensor))

    def broadcast(self, tensors: Sequence[Tensor], root: int = 0) -> Handle:
        """Counted broadcast."""
        return _MeteredHandle(self, self.communicator.broadcast(tensors, root))


class _MeteredHandle:
    wire_bytes = 0

    def __init__(self, meter: Metered, handle: Handle) -> None:
        self.meter, self.handle, self.begin = meter, handle, time.perf_counter()

    def wait(self) -> Any:
        result = self.handle.wait()
        self.wire_bytes = self.handle.wire_bytes
        total, seconds = self.meter.count, time.perf_counter() - self.begin
        self.meter.count = Count(total.wire_bytes + self.wire_bytes, total.calls + 1, total.seconds + seconds)
        return result
