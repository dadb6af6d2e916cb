"""Short chunks: the largest entries of each, and the cosine transform of each block; one launch for all of a bucket."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.kernels import APART, launching
from wirebench.compressors.kernels.entries import KINDS, _arriving

SIDE = 64
"""The longest side of a block."""


@launching
def choose(
    values: Tensor, starts: Tensor, lengths: Tensor, firsts: Tensor, size: int, total: int,
    kept: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    """Places within their chunks of the largest by magnitude, NaN first, int64 (total,): ascending within a chunk.

    starts, lengths  int64 (chunks,): a chunk's first place, and its entries, `size` at most
    firsts           int64 (chunks + 1,): where in the result a chunk's part begins, and where the last one's ends
    kept             fp32 or bf16: what is chosen stays in `values`, rounded to it, and all else there becomes 0

    Equal magnitudes are taken from the front. Twins: `Chunks.choose`, `Frequencies.choose`.
    """
    chosen = starts.new_empty(total)
    _choose[(starts.numel(),)](
        values, starts, lengths, firsts, chosen,
        KEPT="" if kept is None else KINDS[kept], SIZE=triton.next_power_of_2(size), **APART,
    )  # fmt: skip
    return chosen


@triton.jit
def _choose(values, starts, lengths, firsts, chosen, KEPT: tl.constexpr, SIZE: tl.constexpr):
    """A program a chunk: the k-th magnitude, found bit by bit, then what is above it, and as many that equal it."""
    chunk = tl.program_id(0)
    lane = tl.arange(0, SIZE)
    inside = lane < tl.load(lengths + chunk)
    found = tl.load(values + tl.load(starts + chunk) + lane, mask=inside, other=0.0)
    keys = tl.where(inside, found.to(tl.int32, bitcast=True) & 0x7FFFFFFF, -1)
    first = tl.load(firsts + chunk)
    count = (tl.load(firsts + chunk + 1) - first).to(tl.int32)
    kth = count * 0
    for bit in range(31):
        higher = kth | (1 << (30 - bit))
        kth = tl.where(tl.sum((keys >= higher).to(tl.int32), 0) >= count, higher, kth)
    above = (keys > kth).to(tl.int32)
    alike = (keys == kth).to(tl.int32)
    rank = tl.cumsum(alike, 0) - alike
    picked = above | (alike & (rank < count - tl.sum(above, 0)).to(tl.int32))
    tl.store(chosen + first + tl.cumsum(picked, 0) - picked, lane.to(tl.int64), mask=picked > 0)
    if KEPT != "":
        arriving = tl.where(picked > 0, _arriving(found, KEPT), 0.0)
        tl.store(values + tl.load(starts + chunk) + lane, arriving, mask=inside)


@launching
def transform(values: Tensor, out: Tensor, table: Tensor, cosines: Tensor, mode: str) -> None:
    """The cosine transform of every block; products are in fp32.

    table    int64 (5, blocks): of each block its place among elements, the distance of its rows there, its height, its
             width, and its place in the spectrum, where its coefficients lie row by row
    cosines  fp32 (65, 64, 64): the orthonormal DCT-II of each length, zero beyond it
    mode     forward: elements to a spectrum. Back to elements: write them; subtract them from `out`; write their signs,
             NaN where they are not finite
    """
    blocks = table.shape[1]
    _transform[(blocks,)](values, out, table, blocks, cosines, MODE=mode, SIDE=SIDE, **APART)


@triton.jit
def _transform(values, out, table, blocks, cosines, MODE: tl.constexpr, SIDE: tl.constexpr):
    table += tl.program_id(0)
    place, distance = tl.load(table), tl.load(table + blocks)
    height, width = tl.load(table + 2 * blocks), tl.load(table + 3 * blocks)
    first = tl.load(table + 4 * blocks)
    row, column = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    inside = (row < height) & (column < width)
    elements = place + row * distance + column
    coefficients = first + row * width + column
    source, target = (elements, coefficients) if MODE == "forward" else (coefficients, elements)
    block = tl.load(values + source, mask=inside, other=0.0)
    square = row * SIDE + column
    turned = column * SIDE + row
    left, right = (square, turned) if MODE == "forward" else (turned, square)
    down = tl.load(cosines + height * (SIDE * SIDE) + left)
    across = tl.load(cosines + width * (SIDE * SIDE) + right)
    block = tl.dot(tl.dot(down, block, input_precision="ieee"), across, input_precision="ieee")
    if MODE == "subtract":
        block = tl.load(out + target, mask=inside, other=0.0) - block
    if MODE == "signs":
        block = (block > 0).to(tl.float32) - (block < 0).to(tl.float32) + block * 0
    tl.store(out + target, block, mask=inside)
