"""The compressors' kernels for a GPU: one launch covers a whole bucket, whatever the number of layers.

Each stands beside a function of PyTorch, its twin, which is what a CPU runs and what tests compare it with. Triton is
imported when a kernel is first wanted. Kernels repeat their bits on every run: no sum depends on the order of threads.
A number that differs from step to step is never specialised: Triton would compile a kernel anew in the middle of a run
where it is 1, or a multiple of 16.
For a CPU `native` has loops in C in place of functions that PyTorch runs in many passes.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import cache, wraps
from importlib.util import find_spec
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
APART = {"enable_fp_fusion": False}
"""The option of every launch: a product is rounded before it is added, so that what stays and what arrives add up."""

INTERPRETED = False
"""Whether vectors on the CPU go to the kernels, too, which Triton then interprets; tests set it."""


def usable(x: Tensor) -> bool:
    """Whether the kernels are for this vector: it is on a GPU, and Triton is installed."""
    return (x.is_cuda or INTERPRETED) and _installed()


@cache
def _installed() -> bool:
    """Whether Triton can start a kernel: it builds its launcher with a C compiler, which a machine may lack."""
    if find_spec("triton") is None:
        return False
    if INTERPRETED or not torch.cuda.is_available():
        return True
    from wirebench.compressors.bits.blocks import Run
    from wirebench.compressors.kernels.segments import PIECE, reduced

    try:
        reduced(torch.zeros(PIECE, device="cuda"), (Run(PIECE, 1),), "largest")
    except Exception as error:  # of several kinds: no compiler, no headers of Python, a GPU that is too old
        warnings.warn(f"compressors run without Triton's kernels, and slower: {error}", stacklevel=2)
        return False
    return True


def launching(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function launch kernels on the device of its first argument, a tensor, as PyTorch's own do."""

    @wraps(function)
    def on_its_device(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.cuda.device_of(args[0]):
            return function(*args, **kwargs)

    return on_its_device


def on(device: torch.device, numbers: Tensor) -> Tensor:
    """Numbers of the host on a device, for which the host does not wait."""
    return numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers.to(device)


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
