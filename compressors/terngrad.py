"""TernGrad: every gradient is rounded at random to -s, 0 or s, with one s per layer for all workers; unbiased.

Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning", NeurIPS 2017: ternary
gradients (equations 1 and 2), layer-wise ternarizing, scaler sharing, and clipping (equation 12). There is no memory.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.bits.blocks import SQUARES, Groups, block_numel, by_layer, largest, reduce, widths
from wirebench.compressors.bits.fields import WORD_BITS, WORD_BYTES, width_for
from wirebench.compressors.bits.levels import Levels
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Method
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Gather, Merge, Sum
from wirebench.utils.rng import generator

GATHER_BITS = 2


class TernGrad(Method):
    """Each rank sends s sign(g) b with b = 1 at probability |g| / s, 0 otherwise.

    clip_factor  every worker's gradients are cut to this many of its standard deviations, layer by layer; 0: they are
                 not. s is the largest magnitude after that, of all workers. The deviation is taken from 0, the mean
                 that the paper assumes: else a layer of one element, or of equal ones, would be cut to nothing
    form         sum: a field of ceil(log2(2 P + 1)) bits for every element, wide enough for the sum of P ranks, as many
                 to an int32 as fit (4 bits each for 4 to 7 ranks, 8 for 32 to 127), summed by the network.
                 gather: 2 bits for every element, 16 to an int32, all to all ranks. What arrives grows with P and
                 at 32 ranks is as much as a dense ring moves, so sum is the default

    A merge of one number per layer goes before: the maximum of s. Besides the words and two blocks there is no memory.
    Biases and normalisation go dense, of which the paper says nothing: 5 % more bytes on a small model, and more
    accurate (docs/compressors.md).
    """

    dense_below = 1
    uncaptured = "it rounds at random, by the step's number"

    def __init__(self, clip_factor: float = 2.5, form: Literal["sum", "gather"] = "sum") -> None:
        super().__init__()
        if clip_factor < 0:
            raise ValueError(f"clip_factor is a number of standard deviations, or 0 for none, got {clip_factor}")
        self.clip_factor, self.form = clip_factor, form

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """One merge of the scales, then one sum or gather of the ternary values."""
        grad, groups = bucket.grad, by_layer(bucket)
        with phase("select"):
            own = self._scales(grad, groups)
        scales = yield Merge(own, torch.maximum, values=0)
        with phase("encode"):
            code = Levels(1, self._width(world.size), groups, grad.device)
            rng = generator("terngrad", world.seed, world.rank, world.step, bucket.start, device=grad.device)
            words = code.encode(grad, scales, rng, limits=own if self.clip_factor else None)
        answer = yield Sum(words) if self.form == "sum" else Gather(words)
        with phase("decode"):
            contributions = [answer] if isinstance(answer, Tensor) else answer
            return code.decode_sum(contributions, scales / world.size, grad)

    def wire_bytes(self, numel: int, size: int) -> int:
        """The words, and one scale."""
        return WORD_BYTES * (-(-numel // (WORD_BITS // self._width(size))) + 1)

    def _width(self, size: int) -> int:
        return width_for(size) if self.form == "sum" else GATHER_BITS

    def _scales(self, grad: Tensor, groups: Groups) -> Tensor:
        """The largest magnitude of every layer after clipping, (layers,)."""
        if not self.clip_factor:
            return largest(grad, groups)
        if kernels.usable(grad):
            from wirebench.compressors.kernels.segments import limited

            return limited(grad, groups, self.clip_factor)
        squares = reduce(grad, groups, SQUARES)[0]
        limits = self.clip_factor * (squares / widths(groups, grad.device)).sqrt_()
        peaks = _peaks(grad, groups, limits) if grad.device.type == "cpu" else largest(grad, groups)
        # Squares of very small gradients are 0, and no limit.
        return torch.where(limits > 0, torch.minimum(peaks, limits), peaks)


def _peaks(grad: Tensor, groups: Groups, limits: Tensor) -> Tensor:
    """The largest magnitude of every layer, or the first that is found to reach the layer's limit: mostly at once."""
    peaks = limits.clone()
    layers = grad.split([run.width for run in groups])
    for number, (layer, limit) in enumerate(zip(layers, limits.tolist(), strict=True)):
        peak = 0.0
        for part in layer.split(block_numel(grad.device)):
            low, high = part.aminmax()
            peak = max(peak, high.item(), -low.item())
            if peak >= limit > 0:
                break
        if not math.isnan(limit):
            peaks[number] = peak
    return peaks
