"""Short chunks: the largest entries of each; one launch for all of a bucket."""

import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.kernels import APART, launching


@launching
def choose(values: Tensor, starts: Tensor, lengths: Tensor, firsts: Tensor, size: int, total: int) -> Tensor:
    """Places within their chunks of the largest by magnitude, NaN first, int64 (total,): ascending within a chunk.

    starts, lengths  int64 (chunks,): a chunk's first place, and its entries, `size` at most
    firsts           int64 (chunks + 1,): where in the result a chunk's part begins, and where the last one's ends

    Equal magnitudes are taken from the front. Twin: `Chunks.choose`.
    """
    chosen = starts.new_empty(total)
    _choose[(starts.numel(),)](values, starts, lengths, firsts, chosen, SIZE=triton.next_power_of_2(size), **APART)
    return chosen


@triton.jit
def picked_of(keys, count):
    """Which of the magnitudes' bits are among the `count` largest, 1 or 0; of equal ones the first. Bit by bit."""
    kth = count * 0
    for bit in range(31):
        higher = kth | (1 << (30 - bit))
        kth = tl.where(tl.sum((keys >= higher).to(tl.int32), 0) >= count, higher, kth)
    above = (keys > kth).to(tl.int32)
    alike = (keys == kth).to(tl.int32)
    rank = tl.cumsum(alike, 0) - alike
    return above | (alike & (rank < count - tl.sum(above, 0)).to(tl.int32))


@triton.jit
def _choose(values, starts, lengths, firsts, chosen, SIZE: tl.constexpr):
    """A program a chunk: the k-th magnitude, found bit by bit, then what is above it, and as many that equal it."""
    chunk = tl.program_id(0)
    lane = tl.arange(0, SIZE)
    inside = lane < tl.load(lengths + chunk)
    found = tl.load(values + tl.load(starts + chunk) + lane, mask=inside, other=0.0)
    keys = tl.where(inside, found.to(tl.int32, bitcast=True) & 0x7FFFFFFF, -1)
    first = tl.load(firsts + chunk)
    count = (tl.load(firsts + chunk + 1) - first).to(tl.int32)
    picked = picked_of(keys, count)
    tl.store(chosen + first + tl.cumsum(picked, 0) - picked, lane.to(tl.int64), mask=picked > 0)
