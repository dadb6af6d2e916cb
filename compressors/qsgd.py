"""QSGD: every chunk of the gradient as its norm and small whole numbers, rounded at random; unbiased.

Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS 2017: the quantiser
(section 3.1, equation 4), on chunks of the gradient (its "buckets", section 4). Norms differ between ranks, so all
ranks gather all messages. Numbers have a fixed width; the paper's Elias code of them is not here.
"""

from typing import Literal

import torch
from torch import Tensor

from wirebench.compressors.bits.blocks import SQUARES, Groups, by_chunk, largest, reduce
from wirebench.compressors.bits.fields import WORD_BITS, WORD_BYTES
from wirebench.compressors.bits.levels import Levels
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Method
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Gather
from wirebench.utils.rng import generator


class QSGD(Method):
    """Each rank sends q of every element: |g| / norm x levels, rounded up or down at random, with g's sign.

    bits    of each number: 2, 4 or 8, in int32 words
    levels  the largest number, the paper's s; 0: what the bits can hold, 1, 7 or 127
    chunk   neighbouring elements that share a norm, across layers, as in the paper, whose d' is 512 with 4 bits
    norm    max: the largest magnitude, which the paper's experiments use; l2: the Euclidean norm, which its analysis
            uses: of 512 alike elements each is then 1/23 of the norm, and most of them become 0

    One gather: bits / 8 bytes for each element and 4 for each chunk; what a rank receives grows with the number of
    ranks. There is no memory.
    """

    uncaptured = "it rounds at random, by the step's number"

    def __init__(
        self,
        bits: Literal[2, 4, 8] = 4,
        levels: int = 0,
        chunk: int = 512,
        norm: Literal["max", "l2"] = "max",
    ) -> None:
        super().__init__()
        most = (1 << (bits - 1)) - 1
        if not 0 <= levels <= most:
            raise ValueError(f"levels lies in [1, {most}] with {bits} bits, or is 0 for all of them, got {levels}")
        if chunk < 1:
            raise ValueError(f"chunk is a number of elements, at least 1, got {chunk}")
        self.bits, self.levels, self.chunk, self.norm = bits, levels or most, chunk, norm

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """One gather of norms and numbers."""
        grad, groups = bucket.grad, by_chunk(bucket, self.chunk)
        with phase("select"):
            norms = self._norms(grad, groups)
        with phase("encode"):
            code = Levels(self.levels, self.bits, groups, grad.device)
            rng = generator("qsgd", world.seed, world.rank, world.step, bucket.start, device=grad.device)
            words = code.encode(grad, norms, rng)
            message = torch.cat([norms.view(torch.int32), words])
        messages = yield Gather(message, values=words.numel())
        with phase("decode"):
            parts = [each.split([norms.numel(), words.numel()]) for each in messages]
            return code.decode_each([(w, n.view(torch.float32)) for n, w in parts], grad)

    def wire_bytes(self, numel: int, size: int) -> int:
        """The words, and a norm for each chunk."""
        return WORD_BYTES * (-(-numel // (WORD_BITS // self.bits)) + -(-numel // self.chunk))

    def _norms(self, grad: Tensor, groups: Groups) -> Tensor:
        """Every chunk's norm, (chunks,)."""
        return largest(grad, groups) if self.norm == "max" else reduce(grad, groups, SQUARES)[0].sqrt_()
