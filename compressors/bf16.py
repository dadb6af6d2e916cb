"""bfloat16 on the wire: half of the bytes, the range of fp32, 8 significant bits.

As torch's bf16_compress_hook does. The sum over ranks is rounded to 8 bits at every addition, so its error grows with
the number of ranks; it overflows only where fp32 would.
"""

from typing import ClassVar

import torch

from wirebench.compressors.bits.cast import Cast


class Bf16(Cast):
    """Summed in bfloat16."""

    dtype: ClassVar[torch.dtype] = torch.bfloat16
