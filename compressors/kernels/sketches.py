"""The block-shift Count-Sketch of a vector, and the estimates of all of its elements: one launch each."""

import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.kernels import APART, launching

BLOCK = 1024
"""Cells, or elements, of a program."""


@launching
def add(x: Tensor, table: Tensor, shift: Tensor, sign: Tensor, place_sign: Tensor) -> None:
    """Add the sketch of `x` to `table`, (rows, columns); each cell's additions are in the order of the blocks.

    shift, sign  (rows, blocks), of `BlockHash`; place_sign  (columns,). Twin: `BlockHash.add`.
    """
    rows, columns = table.shape
    grid = (triton.cdiv(columns, BLOCK), rows)
    _add[grid](x, table, shift, sign, place_sign, x.numel(), columns, shift.shape[1], BLOCK=BLOCK, **APART)


@launching
def estimates(table: Tensor, shift: Tensor, sign: Tensor, place_sign: Tensor, numel: int, agree: bool) -> Tensor:
    """Every element's estimate, (numel,), 0 where a row's is NaN: the median of its rows'; or, with `agree`, the
    smallest magnitude where all have the same sign, else 0. Twin: `CountSketch.estimate` of all places.
    """
    rows, columns = table.shape
    out = table.new_empty(numel)
    _estimate[(triton.cdiv(numel, BLOCK // 4),)](
        table, shift, sign, place_sign, out, numel, columns, shift.shape[1],
        ROWS=rows, POWER=triton.next_power_of_2(rows), AGREE=agree, BLOCK=BLOCK // 4, **APART,
    )  # fmt: skip
    return out


@triton.jit
def _add(x, table, shifts, signs, place_signs, numel, columns, blocks, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = cell < columns
    total = tl.zeros([BLOCK], tl.float32)
    begin = tl.zeros([BLOCK], tl.int64)
    for block in range(blocks):
        place = cell - tl.load(shifts + row * blocks + block).to(tl.int32)
        place = tl.where(place < 0, place + columns, place)
        at = begin + place
        begin += columns
        values = tl.load(x + at, mask=inside & (at < numel), other=0.0)
        signed = values * tl.load(place_signs + place, mask=inside & (at < numel), other=0.0)
        total += signed * tl.load(signs + row * blocks + block)
    at = table + row * columns + cell
    tl.store(at, tl.load(at, mask=inside, other=0.0) + total, mask=inside)


@triton.jit
def _estimate(table, shifts, signs, place_signs, out, numel, columns, blocks,
              ROWS: tl.constexpr, POWER: tl.constexpr, AGREE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < numel
    block = (at // columns).to(tl.int32)
    place = (at % columns).to(tl.int32)
    row = tl.arange(0, POWER)[None, :]
    there = inside[:, None] & (row < ROWS)
    cell = place[:, None] + tl.load(shifts + row * blocks + block[:, None], mask=there, other=0).to(tl.int32)
    cell = tl.where(cell >= columns, cell - columns, cell)
    sign = tl.load(signs + row * blocks + block[:, None], mask=there, other=0.0)
    sign *= tl.load(place_signs + place, mask=inside, other=0.0)[:, None]
    rows = tl.load(table + row * columns + cell, mask=there, other=0.0) * sign
    unsound = tl.sum((rows != rows).to(tl.int32), 1) > 0
    infinity = float("inf")
    if AGREE:
        low = tl.min(tl.where(row < ROWS, rows, infinity), 1)
        high = tl.max(tl.where(row < ROWS, rows, -infinity), 1)
        found = tl.maximum(low, 0.0) + tl.minimum(high, 0.0)
    else:
        before = tl.zeros([BLOCK, POWER], tl.int32)
        for other in tl.static_range(ROWS):
            its = tl.sum(tl.where(row == other, rows, 0.0), 1)[:, None]
            before += ((its < rows) | ((its == rows) & (other < row))).to(tl.int32)
        found = tl.sum(tl.where((row < ROWS) & (before == ROWS // 2), rows, 0.0), 1)
    tl.store(out + at, tl.where(unsound, 0.0, found), mask=inside)
