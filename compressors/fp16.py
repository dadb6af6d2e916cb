"""Half precision on the wire: half of the bytes, 11 significant bits, and a small range.

As Horovod's Compression.fp16 and torch's fp16_compress_hook do. What lies below 3e-8 is lost. A gradient, or a sum over
ranks, beyond 65504 becomes infinite on every rank, and the run ends as diverged: scale the loss, or use bf16.
"""

from typing import ClassVar

import torch

from wirebench.compressors.bits.cast import Cast


class Fp16(Cast):
    """Summed in float16."""

    dtype: ClassVar[torch.dtype] = torch.float16
