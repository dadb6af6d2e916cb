"""The compressors' kernels for a GPU: one launch covers a whole bucket, whatever the number of layers.

Each stands beside a function of PyTorch, its twin, which is what a CPU runs and what tests compare it with. Triton is
imported when a kernel is first wanted. Kernels repeat their bits on every run: no sum depends on the order of threads.
"""

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

INTERPRETED = False
"""Whether vectors on the CPU go to the kernels, too, which Triton then interprets; tests set it."""


def usable(x: Tensor) -> bool:
    """Whether the kernels are for this vector: it is on a GPU, and Triton is installed."""
    return (x.is_cuda or INTERPRETED) and _installed()


@cache
def _installed() -> bool:
    return find_spec("triton") is not None


def stacked(vectors: Sequence[Tensor]) -> Tensor:
    """Vectors of one length and dtype as a matrix whose rows may lie apart; copied where they lie anyhow."""
    first = vectors[0]
    if len(vectors) == 1:
        return first[None]
    distance = vectors[1].storage_offset() - first.storage_offset()
    storage = first.untyped_storage().data_ptr()
    for number, each in enumerate(vectors):
        place = first.storage_offset() + number * distance
        if each.untyped_storage().data_ptr() != storage or each.storage_offset() != place or distance <= 0:
            return torch.stack(list(vectors))
    return first.as_strided((len(vectors), first.numel()), (distance, 1))
