"""Which coordinates are important: the gradient weighed by the weight, against a threshold, and some luck.

Cheng and Xu, arXiv 1901.01544: I = |v| / |w|, chosen where I > threshold, or where U < rho I / threshold with U uniform
in (0, 1). Both are one comparison: |v| > threshold max(|w|, least) min(1, U / rho), which needs no division.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from wirebench.compressors.sparse.encoding import BITS
from wirebench.compressors.sparse.mask_code import pack

FLOOR = 1e-8  # of `least`, for layers that are 0
_BLOCK = {"cpu": 1 << 18, "cuda": 1 << 22}  # a core's cache holds its scratch; a GPU's launches are few

_MANTISSA = 23
_ONE = 0x3F800000  # 1.0 as bits; with random mantissa bits, uniform in [1, 2)


class Piece(NamedTuple):
    """A layer's part [start, stop) of a vector, its weights, threshold, and the `least` that they count as."""

    start: int
    stop: int
    weights: Tensor
    threshold: float
    least: float

    def within(self, low: int, high: int) -> "Piece":
        """The part of this piece that lies in [low, high)."""
        start, stop = max(self.start, low), min(self.stop, high)
        return self._replace(start=start, stop=stop, weights=self.weights[start - self.start : stop - self.start])


FIRST_DECADE, LAST_DECADE, BINS_A_DECADE = -6, 2, 4
LOWS = (
    0.0,
    *(10.0 ** (FIRST_DECADE + n / BINS_A_DECADE) for n in range((LAST_DECADE - FIRST_DECADE) * BINS_A_DECADE + 1)),
)
"""The lower bounds of a histogram's bins of importance; the last bin has no upper bound."""


class Moments(NamedTuple):
    """Mean and variance of a layer's importance; `shares` of its coordinates by LOWS, () where they are not wanted."""

    mean: float
    variance: float
    shares: tuple[float, ...] = ()

    @property
    def ratio(self) -> float:
        """Variance over mean; not finite for a layer without importance."""
        return self.variance / self.mean if self.mean else math.nan


class Luck:
    """U of the coordinates for which it can matter: of one in `stride`, where the first is drawn for each block.

    rho  in (0, 1]. A coordinate is among them with the probability 1 / stride >= rho, and then min(1, U / rho) is as
         likely as otherwise. Each block's U are the same draws, whose mantissa bits are flipped by a pattern drawn for
         the block: independent within a block, and independent in pairs between blocks. So counts over blocks have the
         same means and variances as with fresh draws. The flips cost one op on a vector 1 / stride as long.
    """

    def __init__(self, rho: float, rng: torch.Generator, blocks: int, block: int) -> None:
        self.stride = max(int(1 / rho), 1)
        self.share = rho * self.stride
        self._firsts = torch.randint(self.stride, (blocks,), generator=rng, device=rng.device).tolist()
        self._patterns = torch.randint(1 << _MANTISSA, (blocks,), generator=rng, device=rng.device).tolist()
        draws = -(-block // self.stride)
        self._draws = torch.randint(1 << _MANTISSA, (draws,), generator=rng, device=rng.device, dtype=torch.int32)
        self._draws |= _ONE
        self._flipped = torch.empty_like(self._draws)

    def lower(self, bar: Tensor) -> None:
        """Multiply a block, which has to be exceeded, by min(1, U / rho)."""
        some = bar[self._firsts.pop() :: self.stride]
        draws = self._flipped[: some.numel()]
        torch.bitwise_xor(self._draws[: some.numel()], self._patterns.pop(), out=draws)
        factors = draws.view(torch.float32).sub_(1)
        if self.share < 1:
            factors.div_(self.share).clamp_(max=1)
        some.mul_(factors)


class Chooser:
    """Makes masks and moments of a vector v and the weights w, in blocks that stay in cache.

    like   a vector, for dtype and device
    numel  length of the longest part
    """

    def __init__(self, like: Tensor, numel: int) -> None:
        self.block = min(_BLOCK[like.device.type], -(-numel // BITS) * BITS)
        self._bar, self._size = like.new_empty(self.block), like.new_empty(self.block)
        self._flags = torch.empty(self.block, dtype=torch.bool, device=like.device)

    def blocks(self, pieces: Sequence[Piece]) -> int:
        """No fewer than the blocks that `pieces` are cut into."""
        return sum((piece.stop - piece.start) // self.block + 2 for piece in pieces)

    def mask(self, v: Tensor, pieces: Sequence[Piece], luck: Luck | None) -> Tensor:
        """The bits of the places in neighbouring `pieces` of v that are chosen, from the byte of the first one on.

        What is not a number is chosen, so that all ranks come to know.
        """
        start = pieces[0].start // BITS * BITS
        # A gap between pieces may be longer than a block, and stays 0.
        bits = torch.zeros(-(-pieces[-1].stop // BITS) - start // BITS, dtype=torch.uint8, device=v.device)
        for low, parts in _in_blocks(pieces, start, self.block):
            flags = self._flags[: -(-(parts[-1].stop - low) // BITS) * BITS].zero_()
            for part in parts:
                self._choose(v[part.start : part.stop], part, luck, flags[part.start - low : part.stop - low])
            code = pack(flags)
            first = (low - start) // BITS
            bits[first : first + code.numel()] = code
        return bits

    def moments(self, v: Tensor, w: Tensor, least: float) -> Moments:
        """Mean and variance of the importance over all of `v`."""
        total = torch.zeros(2, dtype=torch.float64, device=v.device)
        for start in range(0, v.numel(), self.block):
            place = slice(start, min(start + self.block, v.numel()))
            count = place.stop - start
            divisor = torch.abs(w[place], out=self._bar[:count]).clamp_(min=least)
            importance = torch.abs(v[place], out=self._size[:count]).div_(divisor)
            total += torch.stack([importance.sum(), torch.dot(importance, importance)])
        of_all, squares = total.tolist()
        return moments_of(of_all, squares, v.numel())

    def shares(self, v: Tensor, w: Tensor, least: float) -> tuple[float, ...]:
        """Which share of v has an importance in each bin of LOWS; what is not a number is in the last one."""
        edges = torch.tensor(LOWS[1:], dtype=v.dtype, device=v.device)
        counts = torch.zeros(len(LOWS), dtype=torch.int64, device=v.device)
        for start in range(0, v.numel(), self.block):
            place = slice(start, min(start + self.block, v.numel()))
            count = place.stop - start
            divisor = torch.abs(w[place], out=self._bar[:count]).clamp_(min=least)
            importance = torch.abs(v[place], out=self._size[:count]).div_(divisor).nan_to_num_(nan=torch.inf)
            counts += torch.bincount(torch.bucketize(importance, edges, right=True), minlength=len(LOWS))
        return tuple((counts / v.numel()).tolist())

    def _choose(self, v: Tensor, part: Piece, luck: Luck | None, flags: Tensor) -> None:
        bar = torch.mul(part.weights, part.threshold, out=self._bar[: v.numel()]).abs_()
        if part.least:
            bar.clamp_(min=part.threshold * part.least)
        if luck is not None:
            luck.lower(bar)
        size = torch.abs(v, out=self._size[: v.numel()])
        if v.device.type == "cpu":  # PyTorch writes flags at a fifth of the speed
            np.less_equal(size.numpy(), bar.numpy(), out=flags.numpy())
        else:
            torch.le(size, bar, out=flags)
        flags.logical_not_()


def _in_blocks(pieces: Sequence[Piece], start: int, block: int) -> Iterator[tuple[int, list[Piece]]]:
    """(beginning, parts of pieces) of each block, counted from `start`; the pieces are neighbours."""
    parts: dict[int, list[Piece]] = {}
    for piece in pieces:
        for low in range(start + (piece.start - start) // block * block, piece.stop, block):
            parts.setdefault(low, []).append(piece.within(low, low + block))
    yield from parts.items()


def moments_of(total: float, squares: float, numel: int) -> Moments:
    """Mean and variance of `numel` numbers, of which these are the sum and that of squares."""
    mean = total / numel
    return Moments(mean, max(squares / numel - mean * mean, 0.0))


def least_divisors(weights: Sequence[Tensor], epsilon: float) -> list[float]:
    """The least value that |w| counts as, for each layer: max(epsilon rms(w), 1e-8), or 0 if epsilon is 0."""
    if not epsilon or not weights:
        return [0.0] * len(weights)
    norms = torch.stack([torch.linalg.vector_norm(w) for w in weights]).tolist()  # the host waits for a GPU once
    rms = [norm / math.sqrt(w.numel()) for norm, w in zip(norms, weights, strict=True)]
    return [max(epsilon * each, FLOOR) if math.isfinite(each) else FLOOR for each in rms]


def all_finite(parts: Sequence[Tensor]) -> bool:
    """Whether all elements are; one reading, if they are."""
    if not parts or bool(torch.stack([part.sum() for part in parts]).isfinite().all()):
        return True
    return all(bool(part.isfinite().all()) for part in parts)  # a sum may overflow
