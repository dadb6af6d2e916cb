"""1-bit SGD: the sign of every element, and for each row of a layer two numbers that the signs stand for.

Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of Speech
DNNs", Interspeech 2014, section 3. The threshold is 0; the two numbers are the means of the values on either side of
it. The quantisation error is added to the next gradient (error feedback); without it training does not converge.
"""

from typing import Literal

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.bits.blocks import Groups, by_layer, by_row, reduce, widths
from wirebench.compressors.bits.fields import WORD_BYTES
from wirebench.compressors.bits.signs import SIGN_PLACE, Signs
from wirebench.compressors.common.feedback import Rounding, kept_energy
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Gather

LEAST_ROW = 64
"""Elements of a row below which its two numbers would take more than its bits."""


class OneBit(Rounding):
    """Each rank sends a bit for every element of its gradient plus residual, and the two means of each group.

    values_per  row: a group is what one output unit receives, a row of the layer's matrix (a column in the paper, which
                uses the transpose). Layers of one dimension and of rows shorter than 64 elements are one group.
                layer: a group is a layer

    One gather: an int32 for 32 elements, and 8 bytes for each group. What a rank receives grows with the number of
    ranks. Memory: the residual, 1 d. Measures: kept_energy, the squares of what stays in the residual over the squares
    of what was to be sent.
    """

    bounded_by = "values_per"

    def __init__(self, values_per: Literal["row", "layer"] = "row") -> None:
        super().__init__(feedback=True)
        self.values_per = values_per

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """One gather of means and bits."""
        grad = bucket.grad
        groups = by_row(bucket, LEAST_ROW) if self.values_per == "row" else by_layer(bucket)
        residual = self.accumulated(bucket, world)
        with phase("select"):
            high, low = means(residual, groups)
        with kept_energy(self.measures, residual, world.measuring), phase("encode"):
            code = Signs(groups, grad.device)
            words = code.encode(residual, (high, low))
            message = torch.cat([high.view(torch.int32), low.view(torch.int32), words])
        messages = yield Gather(message, values=words.numel())
        with phase("decode"):
            sizes = [high.numel(), low.numel(), words.numel()]
            parts = (
                (w, h.view(torch.float32), b.view(torch.float32)) for h, b, w in (m.split(sizes) for m in messages)
            )
            return code.decode(list(parts), grad)

    def wire_bytes(self, numel: int, size: int) -> int:
        """The bits, and one pair of means."""
        return WORD_BYTES * (-(-numel // 32) + 2)


def means(x: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    """The means of every group's numbers without and with a minus, fp32; 0 where there are none."""
    if kernels.usable(x):
        from wirebench.compressors.kernels.segments import reduced

        above, below, count = reduced(x, groups, "sides")
        positive = widths(groups, x.device) - count.view(torch.int32)
        return above / positive.clamp_(min=1), below / count.view(torch.int32).clamp(min=1)
    above, below, negative = reduce(x, groups, (_above, torch.add), (_below, torch.add), (_negative, torch.add))
    positive = widths(groups, x.device) + negative  # counted as -1 each
    return above / positive.clamp_(min=1), below / negative.neg_().clamp_(min=1)


def _above(rows: Tensor) -> Tensor:
    return rows.clamp(min=0).sum(-1)


def _below(rows: Tensor) -> Tensor:
    return rows.clamp(max=0).sum(-1)


def _negative(rows: Tensor) -> Tensor:
    return (rows.view(torch.int32) >> SIGN_PLACE).sum(-1, dtype=torch.int32)
