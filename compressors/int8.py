"""Quantised all-reduce: gradients as whole numbers of one scale for all workers, added by the network as integers.

The sum of P numbers of 8 bits does not fit into 8 bits: either each has fewer levels, so that the sum fits, or the sum
travels wider. Both are here; the scale is shared because sums of numbers of different scales mean nothing.
"""

from typing import Literal

import torch

from wirebench.compressors.bits.blocks import by_chunk, by_layer, largest
from wirebench.compressors.bits.fields import WORD_BITS, WORD_BYTES
from wirebench.compressors.bits.levels import Levels
from wirebench.compressors.common.feedback import Rounding, kept_energy
from wirebench.errors import UserError
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Merge, Sum
from wirebench.utils.rng import generator

MOST_LEVELS = 127


class Int8(Rounding):
    """Each rank sends round(v / s x levels) of its gradient plus residual v; s is the largest |v| of all workers.

    sum_bits  bits of an element's sum on the wire: 8, 16 or 32, packed into int32. Each rank has as many levels on
              either side of 0 as leave room for all ranks, (2^(sum_bits - 1) - 1) / P, at most 127: with 8 bits 31 at
              4 ranks, 15 at 8, none beyond 127 ranks; with 16 bits 127 up to 258 ranks, but as many bytes as fp16
    rounding  stochastic: up or down at random, right on average; nearest: less error, but without feedback what is
              small against s is never sent
    feedback  what rounding cuts off is added to the next gradient
    chunk     neighbouring elements that share a scale; 0: one scale per layer. A merge of the scales precedes the sum:
              4 bytes each

    Memory: with feedback the residual, 1 d. Measures, with feedback: kept_energy, the squares of what stays in the
    residual over the squares of what was to be sent.
    """

    bounded_by = "sum_bits"

    def __init__(
        self,
        sum_bits: Literal[8, 16, 32] = 8,
        rounding: Literal["stochastic", "nearest"] = "stochastic",
        feedback: bool = True,
        chunk: int = 0,
    ) -> None:
        super().__init__(feedback, rounding)
        if chunk < 0:
            raise ValueError(f"chunk is a number of elements, or 0 for a layer's, got {chunk}")
        self.sum_bits, self.chunk = sum_bits, chunk

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """One merge of the scales, then one sum of the numbers."""
        grad, levels = bucket.grad, self._levels(world.size)
        groups = by_chunk(bucket, self.chunk) if self.chunk else by_layer(bucket)
        x, keeps = self.accumulated(bucket, world), self.feedback is not None
        with phase("select"):
            own = largest(x, groups)
        scales = yield Merge(own, torch.maximum, values=0)
        with kept_energy(self.measures, x, world.measuring and keeps), phase("encode"):
            code, rng = Levels(levels, self.sum_bits, groups, grad.device), None
            if self.rounding == "stochastic":
                rng = generator("int8", world.seed, world.rank, world.step, bucket.start, device=grad.device)
            words = code.encode(x, scales, rng, feedback=keeps)
        total = yield Sum(words)
        with phase("decode"):
            return code.decode_sum([total], scales / world.size, grad)

    def wire_bytes(self, numel: int, size: int) -> int:
        """The words, and the scales: one, or one for each chunk."""
        words = -(-numel // (WORD_BITS // self.sum_bits))
        return WORD_BYTES * (words + (-(-numel // self.chunk) if self.chunk else 1))

    def _levels(self, size: int) -> int:
        room = (1 << (self.sum_bits - 1)) - 1
        if size > room:
            raise UserError(f"compressor.sum_bits: {self.sum_bits} bits hold the sum of {room} ranks, not of {size}")
        return min(room // size, MOST_LEVELS)
