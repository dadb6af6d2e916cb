"""Products of all matrices of a bucket with thin factors, and bases of the factors' rows: one launch each.

A factor of rank r of a matrix (rows, columns) lies as r rows in a packed vector: `left` (r, rows), `right`
(r, columns), so that M ~ left^T right.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.kernels import APART, launching

MOST = 16
"""The highest rank that these kernels take: they hold a block of a factor at once."""
BLOCK = 64
"""Rows and columns of a matrix that a program holds at once."""


class Table(NamedTuple):
    """What programs look up, int64, by matrix and by program.

    matrices  (7, matrices): place in the bucket, rows, columns, rank, place of the left factor, of the right one, and 0
    rows      (2, programs): matrix, and first row; columns (2, programs): matrix, and first column
    both      (3, programs): matrix, first row, first column
    """

    matrices: Tensor
    rows: Tensor
    columns: Tensor
    both: Tensor


@launching
def to_left(flat: Tensor, right: Tensor, left: Tensor, table: Table, added: Tensor | None) -> None:
    """Left = right M^T of every matrix M of `flat`, to which `added` is added first, where given."""
    source = flat if added is None else added
    count, programs = table.matrices.shape[1], table.rows.shape[1]
    _to_left[(programs,)](
        flat, source, right, left, table.matrices, count, table.rows, programs,
        ADD=added is not None, RANKS=MOST, BLOCK=BLOCK, **APART,
    )  # fmt: skip


@launching
def to_right(flat: Tensor, left: Tensor, right: Tensor, table: Table, added: Tensor | None) -> None:
    """Right = left M of every matrix M of `flat`, to which `added` is added first, where given."""
    source = flat if added is None else added
    count, programs = table.matrices.shape[1], table.columns.shape[1]
    _to_right[(programs,)](
        flat, source, left, right, table.matrices, count, table.columns, programs,
        ADD=added is not None, RANKS=MOST, BLOCK=BLOCK, **APART,
    )  # fmt: skip


@launching
def product(flat: Tensor, left: Tensor, right: Tensor, table: Table, subtract: bool) -> None:
    """Write left^T right to every matrix of `flat`, or subtract it from each."""
    count, programs = table.matrices.shape[1], table.both.shape[1]
    _product[(programs,)](
        flat,
        left,
        right,
        table.matrices,
        count,
        table.both,
        programs,
        SUBTRACT=subtract,
        RANKS=MOST,
        BLOCK=BLOCK,
        **APART,
    )


@launching
def orthonormal(packed: Tensor, instead: Tensor | None, sizes: Tensor, out: Tensor) -> None:
    """Write orthonormal rows that span what each factor's rows span; one that depends on others is shorter.

    packed   the factors; instead: another vector, from which a row is taken that is zero or not finite; None: none is
    sizes    int64 (3, factors): the place of each factor, its rank, the size of its rows

    Cholesky's basis twice, in fp64 (`factors.basis_by_cholesky`, which is the twin).
    """
    factors = sizes.shape[1]
    _orthonormal[(factors,)](
        packed, packed if instead is None else instead, sizes, factors, out,
        MEND=instead is not None, RANKS=MOST, BLOCK=BLOCK // 2, **APART,
    )  # fmt: skip


@triton.jit
def _matrix(matrices, count, matrix):
    """A matrix's place, rows, columns, rank, and its factors' places."""
    at = matrices + matrix
    return (tl.load(at), tl.load(at + count), tl.load(at + 2 * count), tl.load(at + 3 * count),
            tl.load(at + 4 * count), tl.load(at + 5 * count))  # fmt: skip


@triton.jit
def _block(flat, added, place, columns, row, column, inside, ADD: tl.constexpr):
    """A block of a matrix; with ADD another one is added to it, in memory too."""
    at = place + row * columns + column
    values = tl.load(flat + at, mask=inside, other=0.0)
    if ADD:
        values += tl.load(added + at, mask=inside, other=0.0)
        tl.store(flat + at, values, mask=inside)
    return values


@triton.jit
def _to_left(flat, added, right, left, matrices, count, programs_rows, programs,
             ADD: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    matrix, begin = tl.load(programs_rows + tl.program_id(0)), tl.load(programs_rows + programs + tl.program_id(0))
    place, rows, columns, rank, at_left, at_right = _matrix(matrices, count, matrix)
    row = begin + tl.arange(0, BLOCK)
    of_rank = tl.arange(0, RANKS)
    total = tl.zeros([BLOCK, RANKS], tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        values = _block(flat, added, place, columns, row[:, None], column[None, :], inside, ADD)
        there = (column[:, None] < columns) & (of_rank[None, :] < rank)
        factor = tl.load(right + at_right + of_rank[None, :] * columns + column[:, None], mask=there, other=0.0)
        total += tl.dot(values, factor, input_precision="ieee")
    there = (row[:, None] < rows) & (of_rank[None, :] < rank)
    tl.store(left + at_left + of_rank[None, :] * rows + row[:, None], total, mask=there)


@triton.jit
def _to_right(flat, added, left, right, matrices, count, programs_columns, programs,
              ADD: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    matrix = tl.load(programs_columns + tl.program_id(0))
    begin = tl.load(programs_columns + programs + tl.program_id(0))
    place, rows, columns, rank, at_left, at_right = _matrix(matrices, count, matrix)
    column = begin + tl.arange(0, BLOCK)
    of_rank = tl.arange(0, RANKS)
    total = tl.zeros([RANKS, BLOCK], tl.float32)
    for start in range(0, rows, BLOCK):
        row = start + tl.arange(0, BLOCK)
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        values = _block(flat, added, place, columns, row[:, None], column[None, :], inside, ADD)
        there = (row[None, :] < rows) & (of_rank[:, None] < rank)
        factor = tl.load(left + at_left + of_rank[:, None] * rows + row[None, :], mask=there, other=0.0)
        total += tl.dot(factor, values, input_precision="ieee")
    there = (column[None, :] < columns) & (of_rank[:, None] < rank)
    tl.store(right + at_right + of_rank[:, None] * columns + column[None, :], total, mask=there)


@triton.jit
def _product(flat, left, right, matrices, count, programs_both, programs,
             SUBTRACT: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    at = programs_both + tl.program_id(0)
    matrix, row, column = tl.load(at), tl.load(at + programs), tl.load(at + 2 * programs)
    place, rows, columns, rank, at_left, at_right = _matrix(matrices, count, matrix)
    row += tl.arange(0, BLOCK)
    column += tl.arange(0, BLOCK)
    of_rank = tl.arange(0, RANKS)
    there = (row[:, None] < rows) & (of_rank[None, :] < rank)
    lefts = tl.load(left + at_left + of_rank[None, :] * rows + row[:, None], mask=there, other=0.0)
    there = (column[None, :] < columns) & (of_rank[:, None] < rank)
    rights = tl.load(right + at_right + of_rank[:, None] * columns + column[None, :], mask=there, other=0.0)
    values = tl.dot(lefts, rights, input_precision="ieee")
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    at = place + row[:, None] * columns + column[None, :]
    if SUBTRACT:
        values = tl.load(flat + at, mask=inside, other=0.0) - values
    tl.store(flat + at, values, mask=inside)


@triton.jit
def _orthonormal(packed, instead, sizes, factors, out,
                 MEND: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """A program a factor: the product of its rows, whose Cholesky factor's inverse makes them a basis; and again."""
    at = sizes + tl.program_id(0)
    place, rank, size = tl.load(at), tl.load(at + factors), tl.load(at + 2 * factors)
    row = tl.arange(0, RANKS)
    if MEND:
        highest = tl.zeros([RANKS], tl.int32)
        for start in range(0, size, BLOCK):
            values = _rows_of(packed, place, rank, size, start, RANKS, BLOCK)
            highest = tl.maximum(highest, tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1))
        sound = (highest > 0) & (highest < 0x7F800000)
    for turn in tl.static_range(2):
        products = tl.zeros([RANKS, RANKS], tl.float64)
        for start in range(0, size, BLOCK):
            if turn == 0:
                values = _rows_of(packed, place, rank, size, start, RANKS, BLOCK)
                if MEND:
                    values = tl.where(sound[:, None], values, _rows_of(instead, place, rank, size, start, RANKS, BLOCK))
            else:
                values = _rows_of(out, place, rank, size, start, RANKS, BLOCK)
            wide = values.to(tl.float64)
            products += tl.sum(wide[:, None, :] * wide[None, :, :], 2)
        square = row[:, None] == row[None, :]
        trace = tl.sum(tl.sum(tl.where(square, products, 0.0), 1), 0)
        products += tl.where(square, trace * 1e-13 + 1e-200, 0.0)
        # Rows beyond the rank are the unit matrix's.
        products = tl.where((row[:, None] < rank) & (row[None, :] < rank), products, tl.where(square, 1.0, 0.0))
        inverse = _inverse_of_cholesky(products, RANKS)
        for start in range(0, size, BLOCK):
            if turn == 0:
                values = _rows_of(packed, place, rank, size, start, RANKS, BLOCK)
                if MEND:
                    values = tl.where(sound[:, None], values, _rows_of(instead, place, rank, size, start, RANKS, BLOCK))
            else:
                values = _rows_of(out, place, rank, size, start, RANKS, BLOCK)
            basis = tl.sum(inverse[:, :, None] * values.to(tl.float64)[None, :, :], 1)
            column = start + tl.arange(0, BLOCK)
            there = (row[:, None] < rank) & (column[None, :] < size)
            tl.store(out + place + row[:, None] * size + column[None, :], basis.to(tl.float32), mask=there)
        tl.debug_barrier()


@triton.jit
def _rows_of(packed, place, rank, size, start, RANKS: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.arange(0, RANKS), start + tl.arange(0, BLOCK)
    there = (row[:, None] < rank) & (column[None, :] < size)
    return tl.load(packed + place + row[:, None] * size + column[None, :], mask=there, other=0.0)


@triton.jit
def _inverse_of_cholesky(products, RANKS: tl.constexpr):
    """L^-1 of products = L L^T, fp64: a column of L at a time, then a row of the inverse."""
    row, column = tl.arange(0, RANKS)[:, None], tl.arange(0, RANKS)[None, :]
    lower = tl.zeros([RANKS, RANKS], tl.float64)
    for place in range(RANKS):
        # What the columns so far explain of this one.
        mine = tl.sum(tl.where(row == place, lower, 0.0), 0)
        rest = tl.sum(tl.where(column == place, products, 0.0), 1) - tl.sum(lower * mine[None, :], 1)
        pivot = tl.sqrt(tl.sum(tl.where(tl.arange(0, RANKS) == place, rest, 0.0), 0))
        rest = tl.where(tl.arange(0, RANKS) >= place, rest / pivot, 0.0)
        lower = tl.where(column == place, rest[:, None], lower)
    inverse = tl.zeros([RANKS, RANKS], tl.float64)
    for place in range(RANKS):
        mine = tl.sum(tl.where(row == place, lower, 0.0), 0)
        pivot = tl.sum(tl.where(tl.arange(0, RANKS) == place, mine, 0.0), 0)
        known = tl.sum(tl.where(tl.arange(0, RANKS)[:, None] < place, mine[:, None] * inverse, 0.0), 0)
        unit = (tl.arange(0, RANKS) == place).to(tl.float64)
        inverse = tl.where(row == place, ((unit - known) / pivot)[None, :], inverse)
    return inverse
