"""Top-k with error feedback: each rank sends its largest entries, all ranks gather them.

Lin et al., "Deep Gradient Compression", ICLR 2018 (the selection); Stich et al., "Sparsified SGD with Memory",
NeurIPS 2018 (the memory). Nothing is merged on the way, so what a rank receives grows with the number of ranks.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from compressors.base import Exchange
from compressors.feedback import ErrorMemory
from compressors.selection import top_k
from wirebench.layout import Bucket
from wirebench.requests import Gather
from wirebench.world import World

BYTES_PER_PAIR = 8  # an fp32 value and an int32 index


class TopK:
    """Each rank sends the `density` of its entries (at least one per bucket) that are largest by magnitude.

    What it does not send stays in its residual and is added to its next gradient. Entries are fp32 values with int32
    places in the bucket, so a bucket has at most 2^31 - 1 elements.
    """

    owns_momentum: ClassVar[bool] = False

    def __init__(self, density: float = 0.001) -> None:
        if not 0 < density <= 1:
            raise ValueError(f"density lies in (0, 1], got {density}")
        self.density = density
        self.memory = ErrorMemory()

    def exchange(self, bucket: Bucket, world: World) -> Exchange:
        """One gather of values and indices.

        Passes over the whole bucket: reading both and writing one for the sum with the residual, two readings for the
        selection, one writing to clear the gradient. All else touches chosen entries only, the division too.
        """
        grad = bucket.grad
        assert grad.dtype == torch.float32 and grad.numel() < 2**31, "top-k takes fp32 buckets below 2^31 elements"
        residual = self.memory.slice(bucket).add_(grad)
        index = top_k(residual, self._count(grad.numel()))
        values = residual[index]
        residual[index] = 0
        messages = yield Gather(torch.cat([values.view(torch.int32), index.int()]), values=index.numel())
        assert isinstance(messages, list)
        return _average(grad.zero_(), messages, world.size)

    def _count(self, numel: int) -> int:
        return max(int(numel * self.density), 1)

    def wire_bytes(self, numel: int, size: int) -> int:
        """A value and an index for each chosen entry."""
        return BYTES_PER_PAIR * self._count(numel)

    def state_dict(self) -> dict[str, Tensor]:
        """The residual, once there is one."""
        return self.memory.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the residual."""
        self.memory.load_state_dict(state)


def _average(grad: Tensor, messages: list[Tensor], size: int) -> Tensor:
    """Add all ranks' entries into the zeros of `grad`, in rank order, and divide what was touched."""
    places = []
    for message in messages:
        values, index = message.chunk(2)
        # No index comes twice in one message, so the order of additions is the order of ranks on any device.
        grad.index_add_(0, index, values.view(torch.float32))
        places.append(index)
    # A place that several ranks sent comes up once for each, but all are read before any is written: the same quotient.
    touched = torch.cat(places).long()
    grad[touched] = grad[touched] / size
    return grad
