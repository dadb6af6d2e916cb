"""One bit for every element: its sign, packed, and the two values that it stands for in each group of neighbours.

The bit is set where a number is negative. A set bit is decoded to the group's `low`, a cleared bit to its `high`. A
zero has the sign of its float, mostly plus, and is decoded like any other number.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.bits.blocks import Block, Groups, Scales, cut
from wirebench.compressors.bits.fields import Fields

SIGN_PLACE = 31

Pair = tuple[Tensor, Tensor | None]
"""The values of all groups, (groups,) each: high, and low; None: minus the high ones."""


class Signs:
    """The signs of a bucket with these `groups`, packed into fields of `width` bits.

    width   bits of a field; the sum of all fields that are added must fit
    raised  send 0 and 1 in place of -1 and 0; if every second rank does, sums lie around 0 and fit their fields
    """

    def __init__(self, groups: Groups, device: torch.device, width: int = 1, raised: bool = False) -> None:
        self.fields = Fields(width, device, base=-1 if raised else 0)
        self.groups = groups

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The bucket's blocks."""
        return cut(self.groups, self.fields.block_numel)

    def encode(self, x: Tensor, pair: Pair | None = None, zeros_are_negative: bool = False) -> Tensor:
        """Words for the signs of `x`.

        pair                each group's (high, low), which are subtracted from `x` by sign
        zeros_are_negative  +0 counts as negative, and -0 as positive
        """
        fields, words = self.fields, torch.empty(self.fields.words(x.numel()), dtype=torch.int32, device=x.device)
        if kernels.usable(x):
            from wirebench.compressors.kernels.fields import encode_signs

            base, below = fields.base, zeros_are_negative
            encode_signs(x, self.groups, words, pair=pair, zeros_are_negative=below, width=fields.width, base=base)
            return words
        numbers, y = fields.scratch(x.numel(), x.device), torch.empty_like(x[: fields.block_numel])
        high, gap = (Scales(pair[0]), Scales(_low(*pair) - pair[0])) if pair else (None, None)
        for block, values, packed in zip(self.blocks, x.split(fields.block_numel), fields.split(words), strict=True):
            signs, bits = numbers[: block.numel], values.view(torch.int32)
            if zeros_are_negative:  # one below its integer, +0 is negative; all but the zeros keep their signs
                bits = torch.sub(bits, 1, out=signs)
            torch.bitwise_right_shift(bits, SIGN_PLACE, out=signs)  # -1 and 0
            if high and gap:
                read = y[: block.numel].copy_(signs)
                steps, levels = block.of(gap), block.of(high)
                for rows, sign, step, level in zip(block.rows(values), block.rows(read), steps, levels, strict=True):
                    rows.addcmul_(sign, step).sub_(level)
            fields.pack(signs, packed, numbers)
        return words

    def decode(self, contributions: Sequence[tuple[Tensor, Tensor, Tensor | None]], out: Tensor) -> Tensor:
        """Write the average of what all ranks' (words, high, low) stand for, in their order, to `out`."""
        size, fields = len(contributions), self.fields
        if kernels.usable(out):
            from wirebench.compressors.kernels.fields import decode_signs

            words = kernels.stacked([each for each, _, _ in contributions])
            highs = kernels.stacked([high for _, high, _ in contributions])
            lows = [low for _, _, low in contributions if low is not None]
            decode_signs(words, self.groups, highs, kernels.stacked(lows) if lows else None, out)
            return out
        numbers, y = fields.scratch(out.numel(), out.device), torch.empty_like(out[: fields.block_numel])
        base = Scales(torch.stack([high / size for _, high, _ in contributions]).sum(0))
        gaps = [Scales((high - _low(high, low)) / size) for _, high, low in contributions]
        parts = zip(*(fields.split(words) for words, _, _ in contributions), strict=True)
        for block, values, ranks in zip(self.blocks, out.split(fields.block_numel), parts, strict=True):
            for rows, level in zip(block.rows(values), block.of(base), strict=True):
                rows.copy_(level)
            read = y[: block.numel]
            for words, gap in zip(ranks, gaps, strict=True):
                read.copy_(fields.unpack(words, numbers)[: block.numel])
                for rows, sign, step in zip(block.rows(values), block.rows(read), block.of(gap), strict=True):
                    rows.addcmul_(sign, step)
        return out

    def decode_vote(self, contributions: Sequence[Tensor], plus: float, scales: Tensor, out: Tensor) -> Tensor:
        """Write the sign of (the sum of all words' numbers, plus `plus`) times the group's scale to `out`."""
        fields, factors = self.fields, Scales(scales)
        if kernels.usable(out):
            from wirebench.compressors.kernels.fields import decode_vote

            decode_vote(kernels.stacked(contributions), self.groups, scales, out, plus=plus, width=fields.width)
            return out
        numbers, more = (fields.scratch(out.numel(), out.device) for _ in range(2))
        parts = zip(*(fields.split(words) for words in contributions), strict=True)
        for block, values, ranks in zip(self.blocks, out.split(fields.block_numel), parts, strict=True):
            total = fields.unpack(ranks[0], numbers)
            for words in ranks[1:]:
                total += fields.unpack(words, more)
            values.copy_(total[: block.numel]).add_(plus).sign_()
            for rows, factor in zip(block.rows(values), block.of(factors), strict=True):
                rows.mul_(factor)
        return out


def _low(high: Tensor, low: Tensor | None) -> Tensor:
    return -high if low is None else low
