"""The block-shift Count-Sketch of a vector, the estimates of its elements, and the largest of them: one launch each.

Wherever a hash is wanted, it is three tensors of `BlockHash`: shift and sign, (rows, blocks), and place_sign.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.kernels import APART, launching, together
from wirebench.compressors.kernels.selection import _keys
from wirebench.compressors.kernels.together import (
    ARRIVED,
    BINS,
    EXPONENT,
    TOGETHER,
    UNSOUND,
    chosen_among,
    first_bits,
    meet,
    tally,
    threshold,
    tiles_of,
)

BLOCK = 1024
"""Cells, or elements, of a program."""
HEAD = tl.constexpr(0x01010101)
"""What a message of places begins with: four bytes of 1."""
Hash = tuple[Tensor, Tensor, Tensor]


@launching
def sketch(x: Tensor, hash: Hash, columns: int) -> Tensor:
    """The sketch of `x`, (rows, columns); each cell's additions are in the order of the blocks.

    Twin: `BlockHash.add`.
    """
    rows, blocks = hash[0].shape
    table = x.new_empty(rows, columns)
    _sketch[(triton.cdiv(columns, BLOCK), rows)](x, table, *hash, x.numel(), columns, blocks, BLOCK=BLOCK, **APART)
    return table


@launching
def estimates(table: Tensor, hash: Hash, numel: int, agree: bool) -> Tensor:
    """Every element's estimate, (numel,), 0 where a row's is NaN: the median of its rows'; or, with `agree`, the
    smallest magnitude where all have the same sign, else 0. Twin: `CountSketch.estimate` of all places.
    """
    rows, columns = table.shape
    out = table.new_empty(numel)
    _estimate[(triton.cdiv(numel, BLOCK // 4),)](
        table, *hash, out, numel, columns, hash[0].shape[1],
        ROWS=rows, WIDE=triton.next_power_of_2(rows), AGREE=agree, BLOCK=BLOCK // 4, **APART,
    )  # fmt: skip
    return out


@launching
def find(
    table: Tensor, hash: Hash, numel: int, agree: bool, gaps: Tensor, k: int, values: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Places of the `k` largest estimates by magnitude, int32 (1 + k,), ascending, behind `HEAD`; and int32 (3,): how
    many were found, 1 where the table is not finite, and a 0. None lies in `gaps`. Twin: `heavy_hitters.largest`.

    values  gets the estimates there, fp32 (k,)
    """
    found, counts = table.new_empty(1 + k, dtype=torch.int32), together.zeros(table.device, 3)
    _find[(together.programs(table.device),)](
        table, *hash, gaps, table.new_empty(numel), counts, found, counts[-3:], table if values is None else values,
        numel, gaps.numel(), k, table.shape[1], hash[0].shape[1], AGREE=agree, VALUES=values is not None,
        **_sizes(table), **TOGETHER,
    )  # fmt: skip
    return found, counts[-3:]


@launching
def apply(table: Tensor, hash: Hash, grad: Tensor, gaps: Tensor, k: int, size: int, velocity: Tensor | None) -> None:
    """Write the `k` largest estimates over `size` into `grad`, and 0 elsewhere. With a `velocity`, a table, too, the
    cells of what was chosen become 0 in both tables. A table that is not finite stays, and `grad` becomes NaN.

    Twin: what `FetchSgd` does.
    """
    _apply_found[(together.programs(table.device),)](
        table, *hash, gaps, torch.empty_like(grad), together.zeros(table.device), grad,
        table if velocity is None else velocity, grad.numel(), gaps.numel(), k, table.shape[1], hash[0].shape[1],
        float(size), CLEAR=velocity is not None, AGREE=False, **_sizes(table), **TOGETHER,
    )  # fmt: skip


def _sizes(table: Tensor) -> dict[str, int]:
    wide, power = (triton.next_power_of_2(each) for each in (len(table), together.programs(table.device)))
    # As many elements at once as their rows leave registers for: a program waits for memory at every block.
    block = min(max(4 * BLOCK // wide, 1), together.TILE)
    return {"ROWS": len(table), "WIDE": wide, "BLOCK": block, "TILE": together.TILE, "POWER": power}


@triton.jit
def _sketch(x, table, shifts, signs, place_signs, numel, columns, blocks, BLOCK: tl.constexpr):
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
    tl.store(table + row * columns + cell, total, mask=inside)


@triton.jit
def cells_of(place, row, inside, shifts, signs, place_signs, columns, blocks):
    """Cells, within their rows, and signs of the elements `place`, int64."""
    block = (place // columns).to(tl.int32)
    return _cells(block, (place % columns).to(tl.int32), row, inside, shifts, signs, place_signs, columns, blocks)


@triton.jit
def _cells(block, place, row, inside, shifts, signs, place_signs, columns, blocks):
    cell = place + tl.load(shifts + row * blocks + block, mask=inside, other=0).to(tl.int32)
    sign = tl.load(signs + row * blocks + block, mask=inside, other=0.0)
    return tl.where(cell >= columns, cell - columns, cell), sign * tl.load(place_signs + place, mask=inside, other=0.0)


@triton.jit
def _neighbours(start, columns, BLOCK: tl.constexpr):
    """Blocks of the elements from `start`, int64, on, and places within them; one division of 64 bits for all."""
    block = start // columns
    place = (start - block * columns).to(tl.int32) + tl.arange(0, BLOCK)
    further = place // columns
    return block.to(tl.int32) + further, place - further * columns


@triton.jit
def estimate_of(start, numel, table, shifts, signs, place_signs, columns, blocks,
                ROWS: tl.constexpr, WIDE: tl.constexpr, AGREE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Estimates of BLOCK elements from `start`, int64, on, and whether one of their cells is not finite, 1 or 0.

    Rows are the first dimension, which a thread has for itself, so that threads exchange nothing.
    """
    inside = start + tl.arange(0, BLOCK) < numel
    block, place = _neighbours(start, columns, BLOCK)
    row = tl.arange(0, WIDE)[:, None]
    there = inside[None, :] & (row < ROWS)
    cell = place[None, :] + tl.load(shifts + row * blocks + block[None, :], mask=there, other=0).to(tl.int32)
    cell = tl.where(cell >= columns, cell - columns, cell)
    sign = tl.load(signs + row * blocks + block[None, :], mask=there, other=0.0)
    sign *= tl.load(place_signs + place, mask=inside, other=0.0)[None, :]
    rows = tl.load(table + row * columns + cell, mask=there, other=0.0) * sign
    nan = tl.sum((rows != rows).to(tl.int32), 0) > 0
    infinity = float("inf")
    sound = tl.min((tl.abs(rows) < infinity).to(tl.int32), 0)
    if AGREE:
        low = tl.min(tl.where(row < ROWS, rows, infinity), 0)
        high = tl.max(tl.where(row < ROWS, rows, -infinity), 0)
        found = tl.maximum(low, 0.0) + tl.minimum(high, 0.0)
    else:
        before = tl.zeros([WIDE, BLOCK], tl.int32)
        for other in tl.static_range(ROWS):
            its = tl.sum(tl.where(row == other, rows, 0.0), 0)[None, :]
            before += ((its < rows) | ((its == rows) & (other < row))).to(tl.int32)
        found = tl.sum(tl.where((row < ROWS) & (before == ROWS // 2), rows, 0.0), 0)
    return tl.where(nan, 0.0, found), 1 - tl.min(sound, 0)


@triton.jit
def _estimate(table, shifts, signs, place_signs, out, numel, columns, blocks,
              ROWS: tl.constexpr, WIDE: tl.constexpr, AGREE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = start + tl.arange(0, BLOCK)
    found, _unsound = estimate_of(
        start, numel, table, shifts, signs, place_signs, columns, blocks, ROWS, WIDE, AGREE, BLOCK
    )
    tl.store(out + at, found, mask=at < numel)


@triton.jit
def _estimate_all(table, shifts, signs, place_signs, gaps, out, counts, numel, in_gaps, columns, blocks,
                  ROWS: tl.constexpr, WIDE: tl.constexpr, AGREE: tl.constexpr, BLOCK: tl.constexpr,
                  TILE: tl.constexpr):  # fmt: skip
    """Estimates of the program's elements to `out`, 0 in gaps, and their first bits to `counts`, with what else
    `threshold` wants; returns how often programs have met.
    """
    program = tl.program_id(0)
    tiles = tiles_of(numel, TILE)
    many = tl.zeros([BINS], tl.int32)
    unsound = 0
    for number in range(tiles):
        for part in range(TILE // BLOCK):
            start = (program * tiles + number).to(tl.int64) * TILE + part * BLOCK
            at = start + tl.arange(0, BLOCK)
            found, bad = estimate_of(
                start, numel, table, shifts, signs, place_signs, columns, blocks, ROWS, WIDE, AGREE, BLOCK
            )
            tl.store(out + at, found, mask=at < numel)
            unsound = tl.maximum(unsound, bad)
        tl.debug_barrier()
        _, keys = _keys(out, program * tiles + number, numel, TILE)
        many += first_bits(keys)
    tally(counts, many)
    tl.atomic_max(counts + UNSOUND, unsound, sem="relaxed")
    meet(counts + ARRIVED, 1)
    met = 1
    if in_gaps > 0:
        for start in range(program * BLOCK, in_gaps, tl.num_programs(0) * BLOCK):
            inside = start + tl.arange(0, BLOCK) < in_gaps
            place = tl.load(gaps + start + tl.arange(0, BLOCK), mask=inside, other=0)
            bits = tl.load(out + place, mask=inside, other=0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
            tl.atomic_add(counts + (bits >> EXPONENT), -1, mask=bits > 0, sem="relaxed")
            tl.store(out + place, tl.zeros([BLOCK], tl.float32), mask=inside)
        meet(counts + ARRIVED, 2)
        met = 2
    return met


@triton.jit
def _find(table, shifts, signs, place_signs, gaps, estimates, counts, out, state, values, numel, in_gaps, k, columns,
          blocks, ROWS: tl.constexpr, WIDE: tl.constexpr, AGREE: tl.constexpr, VALUES: tl.constexpr,
          BLOCK: tl.constexpr, TILE: tl.constexpr, POWER: tl.constexpr):  # fmt: skip
    met = _estimate_all(table, shifts, signs, place_signs, gaps, estimates, counts, numel, in_gaps, columns, blocks,
                        ROWS, WIDE, AGREE, BLOCK, TILE)  # fmt: skip
    kth, wanted, equal_before, begin, total = threshold(estimates, counts, numel, k, met, TILE, POWER)
    program = tl.program_id(0)
    if program == 0:
        tl.store(out, HEAD)
        tl.store(state, total)
        tl.store(state + 1, tl.load(counts + UNSOUND))
    tiles = tiles_of(numel, TILE)
    for number in range(tiles):
        places, keys = _keys(estimates, program * tiles + number, numel, TILE)
        chosen, alike = chosen_among(keys, kth, wanted, equal_before)
        at = begin + tl.cumsum(chosen, 0) - chosen
        tl.store(out + 1 + at, places.to(tl.int32), mask=chosen > 0)
        if VALUES:
            tl.store(values + at, tl.load(estimates + places, mask=chosen > 0, other=0.0), mask=chosen > 0)
        equal_before += alike
        begin += tl.sum(chosen, 0)


@triton.jit
def _apply_found(table, shifts, signs, place_signs, gaps, estimates, counts, grad, velocity, numel, in_gaps, k,
                 columns, blocks, size, CLEAR: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
                 AGREE: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, POWER: tl.constexpr):  # fmt: skip
    met = _estimate_all(table, shifts, signs, place_signs, gaps, estimates, counts, numel, in_gaps, columns, blocks,
                        ROWS, WIDE, AGREE, BLOCK, TILE)  # fmt: skip
    kth, wanted, equal_before, _begin, _total = threshold(estimates, counts, numel, k, met, TILE, POWER)
    sound = tl.load(counts + UNSOUND) == 0
    rest = tl.where(sound, 0.0, float("nan"))
    program = tl.program_id(0)
    tiles = tiles_of(numel, TILE)
    for number in range(tiles):
        places, keys = _keys(estimates, program * tiles + number, numel, TILE)
        chosen, alike = chosen_among(keys, kth, wanted, equal_before)
        equal_before += alike
        here = tl.where(sound, chosen, 0) > 0
        values = tl.load(estimates + places, mask=here, other=0.0)
        values = tl.where(here, tl.div_rn(values, tl.zeros_like(values) + size), rest)
        tl.store(grad + places, values, mask=places < numel)
        if CLEAR:
            block, place = _neighbours((program * tiles + number).to(tl.int64) * TILE, columns, TILE)
            for row in tl.static_range(ROWS):
                cell, _sign = _cells(block, place, row, here, shifts, signs, place_signs, columns, blocks)
                tl.store(table + row * columns + cell, tl.zeros([TILE], tl.float32), mask=here)
                tl.store(velocity + row * columns + cell, tl.zeros([TILE], tl.float32), mask=here)
