"""Quantisation to whole levels: values over their group's scale, rounded and packed; and the way back.

A group's scale s is the largest magnitude that it can send. Level q, from -levels to levels, stands for q s / levels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.bits.blocks import Block, Groups, Scales, cut
from wirebench.compressors.bits.fields import Fields
from wirebench.compressors.bits.noise import Noise, as_float, drawn

INSIDE = 1 - 2**-21
"""Factor on a limit that is also the scale: float32 rounds values / scale * levels by less, so none gets too high."""

LEAST_SCALE = 1e-36
"""A group with a smaller scale is sent as zeros, since levels / scale might overflow."""


class Levels:
    """The levels -levels .. levels, packed into fields of `width` bits, of the `groups` of a bucket.

    Groups whose scale is not finite are decoded as NaN or infinity; their fields on the wire have no meaning.
    """

    def __init__(self, levels: int, width: int, groups: Groups, device: torch.device) -> None:
        self.levels = levels
        # With 2^exponent >= levels added nothing is negative, and cutting off the fraction is rounding down.
        self.exponent = (levels - 1).bit_length()
        self.fields = Fields(width, device, base=1 << self.exponent)
        self.groups = groups

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The bucket's blocks."""
        return cut(self.groups, self.fields.block_numel)

    def encode(
        self,
        x: Tensor,
        scales: Tensor,
        generator: torch.Generator | None,
        feedback: bool = False,
        limits: Tensor | None = None,
    ) -> Tensor:
        """Words for `x`, rounded at random with `generator`, else to the nearest (halves up); clipped to the scales.

        feedback  leave in `x` what rounding and clipping cut off
        limits    clip to these instead, not above the scales, of groups that are one run each, and less than a
                  millionth inside them, so that nothing is rounded up beyond the highest level
        """
        if kernels.usable(x):
            return self._encode_at_once(x, scales, generator, feedback, limits)
        per_scale = Scales(torch.where(scales > LEAST_SCALE, self.levels / scales, 0.0))
        steps = Scales(scales / -self.levels)
        words = torch.empty(self.fields.words(x.numel()), dtype=torch.int32, device=x.device)
        size, shift = self.fields.block_numel, self.fields.base
        noise = generator and Noise(x.numel(), size, self.exponent, generator)
        numbers = self.fields.scratch(x.numel(), x.device)
        clip = None if limits is None else _Clip(limits, min(size, x.numel()))
        for block, values, packed in zip(self.blocks, x.split(size), self.fields.split(words), strict=True):
            y = noise.block(block.number, block.numel) if noise else torch.full_like(values, shift + 0.5)
            parts = clip.rows(block, values) if clip else block.rows(values)
            for rounded, rows, factor in zip(block.rows(y), parts, block.of(per_scale), strict=True):
                rounded.addcmul_(rows, factor)
            if not clip:
                y.clamp_(shift - self.levels, shift + self.levels + 0.5)
            self.fields.pack(y, packed, numbers)
            if feedback:
                y.floor_().sub_(shift)
                for rounded, rows, step in zip(block.rows(y), block.rows(values), block.of(steps), strict=True):
                    rows.addcmul_(rounded, step)
        return words

    def decode_sum(self, contributions: Sequence[Tensor], scales: Tensor, out: Tensor) -> Tensor:
        """Write the sum of the ranks' levels, times scales / levels, to `out`.

        `contributions` are words, added already or not; all ranks' groups have the same scales.
        """
        if kernels.usable(out):
            return self._decode_at_once(contributions, scales[None], out, each=False)
        numbers, more = (self.fields.scratch(out.numel(), out.device) for _ in range(2))
        steps, parts = Scales(scales / self.levels), [self.fields.split(words) for words in contributions]
        for block, values, (first, *others) in zip(
            self.blocks, out.split(self.fields.block_numel), zip(*parts, strict=True), strict=True
        ):
            total = self.fields.unpack(first, numbers)
            for words in others:
                total += self.fields.unpack(words, more)
            values.copy_(total[: block.numel])
            for rows, step in zip(block.rows(values), block.of(steps), strict=True):
                rows.mul_(step)
        return out

    def decode_each(self, contributions: Sequence[tuple[Tensor, Tensor]], out: Tensor) -> Tensor:
        """Write the average of all (words, scales), each decoded with its own scales, in their order, to `out`."""
        size = len(contributions)
        if kernels.usable(out):
            scales = kernels.stacked([each for _, each in contributions]) / size
            return self._decode_at_once([words for words, _ in contributions], scales, out, each=True)
        numbers, y = self.fields.scratch(out.numel(), out.device), torch.empty_like(out[: self.fields.block_numel])
        steps = [Scales(scales / size / self.levels) for _, scales in contributions]
        parts = [self.fields.split(words) for words, _ in contributions]
        for block, values, ranks in zip(
            self.blocks, out.split(self.fields.block_numel), zip(*parts, strict=True), strict=True
        ):
            values.zero_()
            for words, step in zip(ranks, steps, strict=True):
                read = y[: block.numel].copy_(self.fields.unpack(words, numbers)[: block.numel])
                for rows, levels, factor in zip(block.rows(values), block.rows(read), block.of(step), strict=True):
                    rows.addcmul_(levels, factor)
        return out

    def _encode_at_once(
        self,
        x: Tensor,
        scales: Tensor,
        generator: torch.Generator | None,
        feedback: bool,
        limits: Tensor | None,
    ) -> Tensor:
        from wirebench.compressors.kernels.fields import encode_levels, words_of_tile

        words = torch.empty(self.fields.words(x.numel()), dtype=torch.int32, device=x.device)
        tile = words_of_tile(self.fields.per_word) * self.fields.per_word
        noise = drawn(x.numel(), tile, self.exponent, generator) if generator else None
        encode_levels(
            x, self.groups, scales, words, levels=self.levels, least_scale=LEAST_SCALE, base=self.fields.base,
            width=self.fields.width, noise=noise, above=as_float(self.exponent), feedback=feedback, limits=limits,
            inside=INSIDE,
        )  # fmt: skip
        return words

    def _decode_at_once(self, words: Sequence[Tensor], scales: Tensor, out: Tensor, each: bool) -> Tensor:
        from wirebench.compressors.kernels.fields import decode_levels

        width = self.fields.width
        decode_levels(kernels.stacked(words), self.groups, scales, out, levels=self.levels, width=width, each=each)
        return out


class _Clip:
    """Blocks cut to a limit for every group, in scratch that stays in the cache."""

    def __init__(self, limits: Tensor, block_numel: int) -> None:
        # Two numbers are a faster operand than two tensors; a GPU would have to be waited for.
        inside = limits * INSIDE
        self.limits = inside.tolist() if inside.device.type == "cpu" else inside.unbind()
        self.scratch = limits.new_empty(block_numel)

    def rows(self, block: Block, values: Tensor) -> list[Tensor]:
        """The rows of `block.rows(values)`, clipped to the limits; valid until the next block."""
        assert all(piece.groups == 1 for piece in block.pieces), "a limit is for a group that is a run"
        parts = zip(values.split(block.lengths), self.scratch[: block.numel].split(block.lengths), strict=True)
        return [
            torch.clamp(part, -self.limits[piece.first], self.limits[piece.first], out=out)
            for (part, out), piece in zip(parts, block.pieces, strict=True)
        ]
