"""Products of all matrices of a bucket with their factors, and bases of the rows of thin ones: one launch each.

A factor of rank r of a matrix (rows, columns) lies as r rows in a packed vector: `left` (r, rows), `right`
(r, columns), so that M ~ left^T right.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.kernels import APART, launching
from wirebench.compressors.kernels.segments import narrowed

MOST = 16
"""The highest rank whose bases these kernels find: they hold a block of a factor at once. bases.py finds others."""
RANKS = 64
"""Rows of a factor of a higher rank that a product holds at once."""
BLOCK = 64
"""Rows and columns of a matrix that a program holds at once."""
DEFINITE, TINY = tl.constexpr(1e-13), tl.constexpr(1e-200)
"""As in `factors.py`."""
ROUNDING = tl.constexpr(1e-5)
"""As `factors.ROUNDING`."""


class Table(NamedTuple):
    """What programs look up, int64, by matrix and by program.

    matrices  (6, matrices): place in the bucket, rows, columns, rank, place of the left factor, of the right one
    rows      (2, programs): matrix, and first row; columns (2, programs): matrix, and first column
    both      (3, programs): matrix, first row, first column
    shapes    fp32 (matrices,): the root of rows over columns
    rank      the highest
    """

    matrices: Tensor
    rows: Tensor
    columns: Tensor
    both: Tensor
    shapes: Tensor
    rank: int

    @property
    def options(self) -> dict[str, Any]:
        """Constants of a product's kernel. fp32 by parts of 11 bits on tensor cores, where arithmetic takes longest.

        With four warps, or with three stages, blocks do not fit into registers.
        """
        thin = self.rank <= MOST
        how = {"RANKS": MOST if thin else RANKS, "PRECISION": "ieee" if thin else "tf32x3", "BLOCK": BLOCK}
        return {**how, "num_warps": 8, "num_stages": 2, **APART}


class Taken(NamedTuple):
    """What leaves a matrix as soon as a factor of it is found: `share` of left^T right.

    narrow  the factor found is rounded to bfloat16, as it travels
    """

    share: float
    narrow: bool


@launching
def to_left(
    flat: Tensor, right: Tensor, left: Tensor, table: Table, added: Tensor | None, taken: Taken | None
) -> None:  # fmt: skip
    """Left = right M^T of every matrix M of `flat`, to which `added` is added first, where given."""
    source = flat if added is None else added
    count, programs = table.matrices.shape[1], table.rows.shape[1]
    _to_left[(programs,)](
        flat, source, right, left, table.matrices, count, table.rows, programs, taken.share if taken else 0.0,
        ADD=added is not None, TAKE=taken is not None, NARROW=bool(taken and taken.narrow), **table.options,
    )  # fmt: skip


@launching
def to_right(
    flat: Tensor, left: Tensor, right: Tensor, table: Table, added: Tensor | None, taken: Taken | None
) -> None:  # fmt: skip
    """Right = left M of every matrix M of `flat`, to which `added` is added first, where given."""
    source = flat if added is None else added
    count, programs = table.matrices.shape[1], table.columns.shape[1]
    _to_right[(programs,)](
        flat, source, left, right, table.matrices, count, table.columns, programs, taken.share if taken else 0.0,
        ADD=added is not None, TAKE=taken is not None, NARROW=bool(taken and taken.narrow), **table.options,
    )  # fmt: skip


@launching
def product(flat: Tensor, left: Tensor, right: Tensor, table: Table, subtract: bool, shaped: bool = False) -> None:
    """Write left^T right to every matrix of `flat`, or subtract it from each; shaped: times the table's `shapes`."""
    count, programs = table.matrices.shape[1], table.both.shape[1]
    _product[(programs,)](
        flat, left, right, table.matrices, count, table.both, programs, table.shapes,
        SUBTRACT=subtract, SHAPED=shaped, **table.options,
    )  # fmt: skip


@launching
def orthonormal(
    packed: Tensor, instead: Tensor | None, sizes: Tensor, rank: int, out: Tensor, drop: bool = False
) -> None:
    """Write orthonormal rows that span what each factor's rows span; one that depends on others is shorter.

    packed   the factors; instead: another vector, from which a row is taken that is zero or not finite; None: none is
    sizes    int64 (3, factors): the place of each factor, its rank, the size of its rows; rank: the highest
    drop     one that depends on others is 0 (`factors.orthonormalise`, which then is the twin)

    Cholesky's basis twice, in fp64 (`factors.basis_by_cholesky`, which is the twin).
    """
    factors, ranks = sizes.shape[1], max(triton.next_power_of_2(rank), 2)
    # A program reads a factor alone, block after block: the fewer its rows are, the longer a block.
    _orthonormal[(factors,)](
        packed, packed if instead is None else instead, sizes, factors, out,
        MEND=instead is not None, DROP=drop, RANKS=ranks, BLOCK=2 * BLOCK * BLOCK // (ranks * ranks), **APART,
    )  # fmt: skip


@triton.jit
def _matrix(matrices, count, matrix):
    """A matrix's place, rows, columns, rank, and its factors' places."""
    at = matrices + matrix
    return (tl.load(at), tl.load(at + count), tl.load(at + 2 * count), tl.load(at + 3 * count),
            tl.load(at + 4 * count), tl.load(at + 5 * count))  # fmt: skip


@triton.jit
def _block(flat, added, place, columns, row, column, inside, turn, ADD: tl.constexpr):
    """A block of a matrix; with ADD another one is added to it in turn 0, in memory too."""
    at = place + row * columns + column
    values = tl.load(flat + at, mask=inside, other=0.0)
    if ADD:
        fresh = inside & (turn == 0)
        values += tl.load(added + at, mask=fresh, other=0.0)
        tl.store(flat + at, values, mask=fresh)
    return values


@triton.jit
def _by_rank(at, size, rank, tile, begin, RANKS: tl.constexpr, BLOCK: tl.constexpr):
    """Where a block of a factor lies, whose rows are columns here: (BLOCK, RANKS); and what of it is there."""
    element, of_rank = begin + tl.arange(0, BLOCK)[:, None], tile + tl.arange(0, RANKS)[None, :]
    return at + of_rank * size + element, (element < size) & (of_rank < rank)


@triton.jit
def _arriving(values, NARROW: tl.constexpr):
    if NARROW:
        return narrowed(values)
    else:
        return values


@triton.jit
def _product_of(left, right, at_left, at_right, rows, columns, rank, row, column, NARROW_LEFT: tl.constexpr,
                NARROW_RIGHT: tl.constexpr, PRECISION: tl.constexpr, RANKS: tl.constexpr,
                BLOCK: tl.constexpr):  # fmt: skip
    """A block of left^T right, which begins at `row` and `column`."""
    total = tl.zeros([BLOCK, BLOCK], tl.float32)
    for tile in range(0, rank, RANKS):
        at, there = _by_rank(at_left, rows, rank, tile, row, RANKS, BLOCK)
        lefts = _arriving(tl.load(left + at, mask=there, other=0.0), NARROW_LEFT)
        at, there = _by_rank(at_right, columns, rank, tile, column, RANKS, BLOCK)
        rights = _arriving(tl.load(right + at, mask=there, other=0.0), NARROW_RIGHT)
        total += tl.dot(lefts, tl.trans(rights), input_precision=PRECISION)
    return total


@triton.jit
def _to_left(flat, added, right, left, matrices, count, programs_rows, programs, share,
             ADD: tl.constexpr, TAKE: tl.constexpr, NARROW: tl.constexpr, PRECISION: tl.constexpr,
             RANKS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    matrix, begin = tl.load(programs_rows + tl.program_id(0)), tl.load(programs_rows + programs + tl.program_id(0))
    place, rows, columns, rank, at_left, at_right = _matrix(matrices, count, matrix)
    row = begin + tl.arange(0, BLOCK)[:, None]
    for tile in range(0, rank, RANKS):
        total = tl.zeros([BLOCK, RANKS], tl.float32)
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)[None, :]
            inside = (row < rows) & (column < columns)
            values = _block(flat, added, place, columns, row, column, inside, tile, ADD)
            at, there = _by_rank(at_right, columns, rank, tile, start, RANKS, BLOCK)
            factor = tl.load(right + at, mask=there, other=0.0)
            total += tl.dot(values, factor, input_precision=PRECISION)
        at, there = _by_rank(at_left, rows, rank, tile, begin, RANKS, BLOCK)
        tl.store(left + at, total, mask=there)
        # What this program has written is read by its next turn, and below.
        tl.debug_barrier()
    if TAKE:
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)[None, :]
            inside = (row < rows) & (column < columns)
            sent = _product_of(left, right, at_left, at_right, rows, columns, rank, begin, start,
                               NARROW, False, PRECISION, RANKS, BLOCK)  # fmt: skip
            values = tl.load(flat + place + row * columns + column, mask=inside, other=0.0)
            tl.store(flat + place + row * columns + column, values - share * sent, mask=inside)


@triton.jit
def _to_right(flat, added, left, right, matrices, count, programs_columns, programs, share,
              ADD: tl.constexpr, TAKE: tl.constexpr, NARROW: tl.constexpr, PRECISION: tl.constexpr,
              RANKS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    matrix = tl.load(programs_columns + tl.program_id(0))
    begin = tl.load(programs_columns + programs + tl.program_id(0))
    place, rows, columns, rank, at_left, at_right = _matrix(matrices, count, matrix)
    column = begin + tl.arange(0, BLOCK)[None, :]
    for tile in range(0, rank, RANKS):
        total = tl.zeros([BLOCK, RANKS], tl.float32)
        for start in range(0, rows, BLOCK):
            row = start + tl.arange(0, BLOCK)[:, None]
            inside = (row < rows) & (column < columns)
            values = _block(flat, added, place, columns, row, column, inside, tile, ADD)
            at, there = _by_rank(at_left, rows, rank, tile, start, RANKS, BLOCK)
            factor = tl.load(left + at, mask=there, other=0.0)
            total += tl.dot(tl.trans(values), factor, input_precision=PRECISION)
        at, there = _by_rank(at_right, columns, rank, tile, begin, RANKS, BLOCK)
        tl.store(right + at, total, mask=there)
        tl.debug_barrier()
    if TAKE:
        for start in range(0, rows, BLOCK):
            row = start + tl.arange(0, BLOCK)[:, None]
            inside = (row < rows) & (column < columns)
            sent = _product_of(left, right, at_left, at_right, rows, columns, rank, start, begin,
                               False, NARROW, PRECISION, RANKS, BLOCK)  # fmt: skip
            values = tl.load(flat + place + row * columns + column, mask=inside, other=0.0)
            tl.store(flat + place + row * columns + column, values - share * sent, mask=inside)


@triton.jit
def _product(flat, left, right, matrices, count, programs_both, programs, shapes,
             SUBTRACT: tl.constexpr, SHAPED: tl.constexpr, PRECISION: tl.constexpr, RANKS: tl.constexpr,
             BLOCK: tl.constexpr):  # fmt: skip
    at = programs_both + tl.program_id(0)
    matrix, row, column = tl.load(at), tl.load(at + programs), tl.load(at + 2 * programs)
    place, rows, columns, rank, at_left, at_right = _matrix(matrices, count, matrix)
    values = _product_of(left, right, at_left, at_right, rows, columns, rank, row, column,
                         False, False, PRECISION, RANKS, BLOCK)  # fmt: skip
    if SHAPED:
        values *= tl.load(shapes + matrix)
    row = row + tl.arange(0, BLOCK)[:, None]
    column = column + tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < columns)
    at = place + row * columns + column
    if SUBTRACT:
        values = tl.load(flat + at, mask=inside, other=0.0) - values
    tl.store(flat + at, values, mask=inside)


@triton.jit
def _orthonormal(packed, instead, sizes, factors, out,
                 MEND: tl.constexpr, DROP: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
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
        squares = tl.sum(tl.where(square, products, 0.0), 1)
        least = tl.full([RANKS], -1.0, tl.float64)
        if not DROP or turn == 1:
            products += tl.where(square, tl.sum(squares, 0) * DEFINITE + TINY, 0.0)
        else:
            empty = squares <= ROUNDING * ROUNDING * tl.max(squares, 0)
            least = tl.where(row < rank, tl.where(empty, float("inf"), ROUNDING * ROUNDING * squares), -1.0)
        # Rows beyond the rank are the unit matrix's.
        products = tl.where((row[:, None] < rank) & (row[None, :] < rank), products, tl.where(square, 1.0, 0.0))
        inverse = inverse_of_cholesky(products, least, RANKS)
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
def inverse_of_cholesky(products, least, RANKS: tl.constexpr):
    """L^-1 of products = L L^T, fp64: a column of L at a time, then a row of the inverse.

    least  (RANKS,): a row of whose square no more than this is left by those before it is no part of L; its row of the
           inverse is 0
    """
    row, column = tl.arange(0, RANKS)[:, None], tl.arange(0, RANKS)[None, :]
    lower = tl.zeros([RANKS, RANKS], tl.float64)
    for place in range(RANKS):
        # What the columns so far explain of this one.
        mine = tl.sum(tl.where(row == place, lower, 0.0), 0)
        rest = tl.sum(tl.where(column == place, products, 0.0), 1) - tl.sum(lower * mine[None, :], 1)
        own = tl.sum(tl.where(tl.arange(0, RANKS) == place, rest, 0.0), 0)
        lost = own <= tl.sum(tl.where(tl.arange(0, RANKS) == place, least, 0.0), 0)
        rest = tl.where((tl.arange(0, RANKS) >= place) & (lost == 0), rest / tl.sqrt(own), 0.0)
        lower = tl.where(column == place, rest[:, None], lower)
    inverse = tl.zeros([RANKS, RANKS], tl.float64)
    for place in range(RANKS):
        mine = tl.sum(tl.where(row == place, lower, 0.0), 0)
        pivot = tl.sum(tl.where(tl.arange(0, RANKS) == place, mine, 0.0), 0)
        known = tl.sum(tl.where(tl.arange(0, RANKS)[:, None] < place, mine[:, None] * inverse, 0.0), 0)
        unit = (tl.arange(0, RANKS) == place).to(tl.float64)
        mine = tl.where(pivot == 0.0, 0.0, (unit - known) / pivot)
        inverse = tl.where(row == place, mine[None, :], inverse)
    return inverse
