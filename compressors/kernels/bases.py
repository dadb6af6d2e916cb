"""Rows of a bucket's factors, of any rank: bases of what they span, and rows of length 1. thin.py has few rows' bases.

A basis takes three phases, twice, in one launch whose programs meet between them: products of the rows, the inverse of
their Cholesky factor, and its product with the rows. All are in fp64, block by block.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.kernels import APART, launching, together
from wirebench.compressors.kernels.thin import DEFINITE, ROUNDING, TINY, inverse_of_cholesky
from wirebench.compressors.kernels.together import TOGETHER, meet

ROWS, SPAN = 32, 64
"""Rows of factors that a program holds at once, and elements of each."""
FEW = 16
"""Rows of a factor whose lengths a program finds."""
EPSILON = tl.constexpr(1e-8)


class FactorSizes(NamedTuple):
    """What programs look up, int64.

    factors  (3, factors): the place of each factor, its rank, the size of its rows
    columns  (2, programs): factor, and first column
    rank     the highest
    """

    factors: Tensor
    columns: Tensor
    rank: int


@launching
def orthonormal(packed: Tensor, sizes: FactorSizes, out: Tensor, drop: bool) -> None:
    """Write orthonormal rows that span what each factor's rows span; one launch.

    drop  a row that has nothing of its own becomes 0: the twin is `factors.orthonormalise`. Otherwise it is shorter:
          `factors.basis_by_cholesky`
    """
    count, tiles = sizes.factors.shape[1], triton.cdiv(sizes.rank, ROWS)
    side = tiles * ROWS
    products = torch.empty((count, side, side), dtype=torch.float64, device=packed.device)
    arrived = torch.zeros(1, dtype=torch.int32, device=packed.device)
    _by_blocks[(together.programs(packed.device),)](
        packed, torch.empty_like(packed), out, products, torch.empty_like(products), arrived, sizes.factors, count,
        sizes.columns, sizes.columns.shape[1], side, tiles, DROP=drop, ROWS=ROWS, SPAN=SPAN, **TOGETHER,
    )  # fmt: skip


@launching
def sound(
    packed: Tensor, instead: Tensor, sizes: FactorSizes, out: Tensor, *, unit: Tensor | None, divisor: float
) -> None:
    """Write the factors to `out`, with a row of `instead` for each that is zero, or not finite; one launch.

    unit  gets the rows over `divisor`, each divided by its norm, before any is replaced; `out` then is of these.
          None: nothing is divided

    The twins are `factors.normalise` and `Pack.mend`.
    """
    count = sizes.factors.shape[1]
    _sound[(count, triton.cdiv(sizes.rank, FEW))](
        packed, instead, sizes.factors, count, out, out if unit is None else unit, float(divisor),
        UNIT=unit is not None, ROWS=FEW, SPAN=SPAN, **APART,
    )  # fmt: skip


@triton.jit
def _factor(sizes, factors, factor):
    """A factor's place, its rank, the size of its rows."""
    at = sizes + factor
    return tl.load(at), tl.load(at + factors), tl.load(at + 2 * factors)


@triton.jit
def _rows(packed, place, rank, size, tile, start, ROWS: tl.constexpr, SPAN: tl.constexpr):
    """Places of a block of a factor, which of them are inside, and what is there."""
    row, column = tile * ROWS + tl.arange(0, ROWS)[:, None], start + tl.arange(0, SPAN)[None, :]
    inside = (row < rank) & (column < size)
    at = place + row * size + column
    return at, inside, tl.load(packed + at, mask=inside, other=0.0)


@triton.jit
def _square(matrices, factor, side, tile, other, ROWS: tl.constexpr):
    """Where a block of ROWS by ROWS lies in a factor's square matrix."""
    row, column = tile * ROWS + tl.arange(0, ROWS)[:, None], other * ROWS + tl.arange(0, ROWS)[None, :]
    return matrices + (tl.zeros([ROWS, ROWS], tl.int64) + factor) * side * side + row * side + column


@triton.jit
def _by_blocks(packed, middle, out, products, inverses, arrived, sizes, factors, columns, stretches, side, tiles,
               DROP: tl.constexpr, ROWS: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    """Programs take turns at blocks of products, then at factors, then at `columns`: SPAN columns of a factor."""
    program, many = tl.program_id(0), tl.num_programs(0)
    for turn in tl.static_range(2):
        source, target = packed if turn == 0 else middle, middle if turn == 0 else out
        for number in range(program, factors * tiles * tiles, many):
            block = number % (tiles * tiles)
            _product(source, sizes, factors, products, side, number // (tiles * tiles), block // tiles, block % tiles,
                     ROWS, SPAN)  # fmt: skip
        meet(arrived, 3 * turn + 1)
        for factor in range(program, factors, many):
            _inverse(products, inverses, sizes, factors, side, factor, DROP and turn == 0, ROWS)
        meet(arrived, 3 * turn + 2)
        for number in range(program, stretches, many):
            _basis(source, inverses, sizes, factors, columns, stretches, target, side, number, ROWS, SPAN)
        if turn == 0:
            meet(arrived, 3)


@triton.jit
def _product(packed, sizes, factors, products, side, factor, tile, other, ROWS: tl.constexpr, SPAN: tl.constexpr):
    """A block of a factor's rows by rows, on or below the diagonal; beyond the rank it is the unit matrix."""
    place, rank, size = _factor(sizes, factors, factor)
    if (other <= tile) & (tile * ROWS < rank):
        total = tl.zeros([ROWS, ROWS], tl.float64)
        for start in range(0, size, SPAN):
            _, _, left = _rows(packed, place, rank, size, tile, start, ROWS, SPAN)
            _, _, right = _rows(packed, place, rank, size, other, start, ROWS, SPAN)
            total += tl.dot(left.to(tl.float64), tl.trans(right.to(tl.float64)), out_dtype=tl.float64)
        row, column = tile * ROWS + tl.arange(0, ROWS)[:, None], other * ROWS + tl.arange(0, ROWS)[None, :]
        total = tl.where((row < rank) & (column < rank), total, (row == column).to(tl.float64))
        tl.store(_square(products, factor, side, tile, other, ROWS), total)


@triton.jit
def _diagonal(products, factor, side, tile, rank, ROWS: tl.constexpr):
    """The squares of a tile's rows; 0 beyond the rank."""
    row = tl.arange(0, ROWS)
    block = tl.load(_square(products, factor, side, tile, tile, ROWS))
    squares = tl.sum(tl.where(row[:, None] == row[None, :], block, 0.0), 1)
    return tl.where(tile * ROWS + row < rank, squares, 0.0)


@triton.jit
def _inverse(products, inverses, sizes, factors, side, factor, DROP: tl.constexpr, ROWS: tl.constexpr):
    """L^-1 of a factor's products L L^T, row after row of blocks; L takes the products' place."""
    _, rank, _ = _factor(sizes, factors, factor)
    tiles = (rank + ROWS - 1) // ROWS
    longest = tl.full((), 0.0, tl.float64)
    trace = tl.full((), 0.0, tl.float64)
    for tile in range(tiles):
        squares = _diagonal(products, factor, side, tile, rank, ROWS)
        longest = tl.maximum(longest, tl.max(squares, 0))
        trace += tl.sum(squares, 0)
    for tile in range(tiles):
        block = tl.load(_square(products, factor, side, tile, tile, ROWS))
        row = tl.arange(0, ROWS)
        least = tl.full([ROWS], -1.0, tl.float64)
        if DROP:
            squares = _diagonal(products, factor, side, tile, rank, ROWS)
            empty = squares <= ROUNDING * ROUNDING * longest
            least = tl.where(empty, float("inf"), ROUNDING * ROUNDING * squares)
            least = tl.where(tile * ROWS + row < rank, least, -1.0)
        else:
            block += tl.where(row[:, None] == row[None, :], trace * DEFINITE + TINY, 0.0)
        for other in range(tile):
            rest = tl.load(_square(products, factor, side, tile, other, ROWS))
            for before in range(other):
                known = tl.load(_square(products, factor, side, tile, before, ROWS))
                theirs = tl.load(_square(products, factor, side, other, before, ROWS))
                rest -= tl.dot(known, tl.trans(theirs), out_dtype=tl.float64)
            inverse = tl.load(_square(inverses, factor, side, other, other, ROWS))
            lower = tl.dot(rest, tl.trans(inverse), out_dtype=tl.float64)
            tl.store(_square(products, factor, side, tile, other, ROWS), lower)
            block -= tl.dot(lower, tl.trans(lower), out_dtype=tl.float64)
            tl.debug_barrier()
        inverse = inverse_of_cholesky(block, least, ROWS)
        tl.store(_square(inverses, factor, side, tile, tile, ROWS), inverse)
        for other in range(tile):
            total = tl.zeros([ROWS, ROWS], tl.float64)
            for between in range(other, tile):
                lower = tl.load(_square(products, factor, side, tile, between, ROWS))
                found = tl.load(_square(inverses, factor, side, between, other, ROWS))
                total += tl.dot(lower, found, out_dtype=tl.float64)
            total = -tl.dot(inverse, total, out_dtype=tl.float64)
            tl.store(_square(inverses, factor, side, tile, other, ROWS), total)
        tl.debug_barrier()


@triton.jit
def _basis(packed, inverses, sizes, factors, columns, stretches, out, side, number,
           ROWS: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    """SPAN columns of a factor: the inverse times its rows."""
    factor, start = tl.load(columns + number), tl.load(columns + stretches + number)
    place, rank, size = _factor(sizes, factors, factor)
    for tile in range((rank + ROWS - 1) // ROWS):
        total = tl.zeros([ROWS, SPAN], tl.float64)
        for other in range(tile + 1):
            inverse = tl.load(_square(inverses, factor, side, tile, other, ROWS))
            _, _, values = _rows(packed, place, rank, size, other, start, ROWS, SPAN)
            total += tl.dot(inverse, values.to(tl.float64), out_dtype=tl.float64)
        at, inside, _ = _rows(packed, place, rank, size, tile, start, ROWS, SPAN)
        tl.store(out + at, total.to(tl.float32), mask=inside)


@triton.jit
def _sound(packed, instead, sizes, factors, out, unit, divisor,
           UNIT: tl.constexpr, ROWS: tl.constexpr, SPAN: tl.constexpr):  # fmt: skip
    place, rank, size = _factor(sizes, factors, tl.program_id(0))
    tile = tl.program_id(1)
    if tile * ROWS < rank:
        highest = tl.zeros([ROWS], tl.int32)
        squares = tl.zeros([ROWS], tl.float32)
        whole = tl.zeros([ROWS, SPAN], tl.float32)
        for start in range(0, size, SPAN):
            _, _, values = _rows(packed, place, rank, size, tile, start, ROWS, SPAN)
            highest = tl.maximum(highest, tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1))
            if UNIT:
                values = tl.div_rn(values, whole + divisor)
                squares += tl.sum(values * values, 1)
        keep = (highest > 0) & (highest < 0x7F800000)
        norms = tl.sqrt_rn(squares) + EPSILON
        if UNIT:
            keep = keep & (norms < float("inf"))
        for start in range(0, size, SPAN):
            at, inside, values = _rows(packed, place, rank, size, tile, start, ROWS, SPAN)
            if UNIT:
                values = tl.div_rn(tl.div_rn(values, whole + divisor), whole + norms[:, None])
                tl.store(unit + at, values, mask=inside)
            other = tl.load(instead + at, mask=inside, other=0.0)
            tl.store(out + at, tl.where(keep[:, None], values, other), mask=inside)
