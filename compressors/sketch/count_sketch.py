"""Count-Sketch: a table that sums up like the vectors it is made of, and from which large entries can be read.

Charikar, Chen and Farach-Colton, "Finding Frequent Items in Data Streams", ICALP 2002. Row j adds s_j(i) x_i to its
cell h_j(i); a row's estimate of x_i is s_j(i) times that cell, the sketch's is the median over rows. A row is unbiased
with variance at most ||x||^2 / columns; the median is not exactly unbiased.

**All entries whose estimate reaches a threshold are found without computing estimates**: the median of r numbers is at
least t just where (r + 1) / 2 of them are. So every cell becomes a byte that says whether it is >= t or <= -t, and
bytes are added up over rows instead of floats being sorted. On one CPU thread, for 14.7M elements, 5 rows and 59K to
590K columns, a sketch takes the time of about 4 copies of the vector, finding what reaches a threshold about 3.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.sketch.block_hash import BlockHash
from wirebench.compressors.sketch.reference_hash import ReferenceHash
from wirebench.compressors.sparse.gaps import Places
from wirebench.compressors.sparse.selection import top_k
from wirebench.gradient.flat import Layer

Hash = Literal["block", "reference"]
Agree = Literal["majority", "all"]
HASHES: dict[str, "type[BlockHash | ReferenceHash]"] = {"block": BlockHash, "reference": ReferenceHash}

MAX_ROWS = 15
"""Counts of rows must fit into four bits, together with what lifts a majority to the highest of them."""

MAX_AGREEING = 7

MARK = 8
BOTH = 0x11  # 1 in both halves of a byte
MARKED_WORD = MARK * BOTH * 0x0101010101010101 - (1 << 64)  # the marks of eight bytes, as a signed number
ESTIMATES_AT_ONCE = 1 << 18
CELLS_AT_ONCE = 1 << 14


class CellHash(Protocol):
    """Which cell and which sign every element has in every row."""

    def redraw(self, seed: int) -> None:
        """Draw new cells and signs, which follow from the first seed and this one."""
        ...

    def add(self, x: Tensor, table: Tensor) -> None:
        """Add the sketch of `x`, shape (numel,), to `table`, shape (rows, columns)."""
        ...

    def cells(self, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """For each row: cells (int64) and signs (float, +1 or -1) of the elements `index`."""
        ...

    def counts(self, codes: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Sums over rows of the elements' codes, piece by piece: (first element, uint8 sums; valid until the next).

        `codes`, uint8 (2, rows, columns): what a cell counts for an element of sign + and of sign -.
        """
        ...


class CountSketch:
    """Sketches vectors of `numel` elements on `device` into tables of (rows, columns); `rows` is odd, at most 15.

    places  of the vector that may be found, where it is known to be 0 at the others; None: all
    hash    block      cuts the vector into blocks of `columns` elements, which are rotated (block_hash.py)
            reference  two polynomials per row (reference_hash.py): the textbook's, portable, slow
    agree   majority  an estimate is the median over rows, the textbook's
            all       it is the smallest magnitude where all rows have the same sign, else 0: of a vector of few
                      entries, whose table has empty cells, as in a Bloom filter. At most 7 rows
    """

    def __init__(
        self,
        numel: int,
        rows: int,
        columns: int,
        seed: int,
        hash: Hash = "block",
        device: torch.device | str = "cpu",
        places: Places | None = None,
        agree: Agree = "majority",
    ) -> None:
        assert rows % 2 and 0 < rows <= MAX_ROWS, f"rows are odd and at most {MAX_ROWS}, got {rows}"
        assert agree == "majority" or rows <= MAX_AGREEING, f"at most {MAX_AGREEING} rows can all agree, got {rows}"
        self.agree = agree
        assert numel > 0 and columns > 0
        self.numel, self.rows, self.columns = numel, rows, columns
        self.hash: CellHash = HASHES[hash](numel, rows, columns, seed, torch.device(device))
        self.places = places or Places((Layer("", 0, numel, 1),), torch.device(device))

    def sketch(self, x: Tensor) -> Tensor:
        """The table of the float vector `x`, shape (rows, columns), in its dtype."""
        if (hash := self.kernels_hash(x)) is not None:
            from wirebench.compressors.kernels.sketches import sketch

            return sketch(x, hash, self.columns)
        table = x.new_zeros(self.rows, self.columns)
        self.hash.add(x, table)
        return table

    def sketch_entries(self, index: Tensor, values: Tensor) -> Tensor:
        """The table of a vector that is 0 but for `values` at the ascending places `index` (int64)."""
        table = values.new_zeros(self.rows, self.columns)
        for row, (cell, sign) in zip(table, self.hash.cells(index), strict=True):
            add_at(row, cell, sign.mul_(values))
        return table

    def sketch_largest(self, x: Tensor, k: int) -> Tensor:
        """The table of the `k` largest entries of `x` by magnitude, as `top_k` chooses them."""
        if (hash := self.kernels_hash(x)) is None:
            index = top_k(x, k)
            return self.sketch_entries(index, x.index_select(0, index))
        from wirebench.compressors.kernels.tables import fill

        return fill(x, k, hash, self.columns)[0]

    def estimate(self, table: Tensor, index: Tensor) -> Tensor:
        """Estimates of the elements `index` (int64)."""
        estimates = table.new_empty(index.numel())
        for part, out in zip(index.split(ESTIMATES_AT_ONCE), estimates.split(ESTIMATES_AT_ONCE), strict=True):
            cells = zip(table, self.hash.cells(part), strict=True)
            rows = [row.index_select(0, cell).mul_(sign) for row, (cell, sign) in cells]
            out.copy_(median(rows) if self.agree == "majority" else agreed(rows))
        return estimates

    def estimates(self, table: Tensor) -> Tensor | None:
        """Estimates of all elements, 0 in gaps and of NaN, if there are kernels; else None: ask `reaching`."""
        if (hash := self.kernels_hash(table)) is None:
            return None
        from wirebench.compressors.kernels.sketches import estimates

        return estimates(table, hash, self.numel, self.agree == "all").index_fill_(0, self.places.gaps, 0)

    def kernels_hash(self, table: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """The hash for kernels/sketches.py, where these work on the table: it is on a GPU, the hash by blocks."""
        return self.hash.tensors if isinstance(self.hash, BlockHash) and kernels.usable(table) else None

    def find(self, table: Tensor, k: int, values: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
        """`find` of kernels/sketches.py: places of the `k` largest estimates, and a state; None without kernels."""
        if (hash := self.kernels_hash(table)) is None:
            return None
        from wirebench.compressors.kernels.sketches import find

        return find(table, hash, self.numel, self.agree == "all", self.places.gaps, k, values)

    def l2sq(self, table: Tensor) -> float:
        """The estimate of ||x||^2: the median of the rows' sums of squares; NaN where any row is not finite.

        Summed in float64, so that ranks on unlike processors agree for all practical purposes. Waits for the device.
        """
        if kernels.usable(table):
            rows = [norm * norm for norm in torch.linalg.vector_norm(table, dim=1, dtype=torch.float64).tolist()]
        else:
            sums = torch.zeros(self.rows, dtype=torch.float64, device=table.device)
            for part in table.split(CELLS_AT_ONCE if table.device.type == "cpu" else self.columns, dim=1):
                # Not square_: of a float64 table double() is the table itself.
                sums += part.double().square().sum(1)
            rows = sums.tolist()
        return sorted(rows)[self.rows // 2] if all(map(math.isfinite, rows)) else math.nan

    def reaching(self, table: Tensor, threshold: float) -> Tensor:
        """Places, int64 ascending, whose estimate is at least `threshold` >= 0 by magnitude. Waits for the device."""
        estimates = self.estimates(table)
        if estimates is not None:
            return torch.nonzero(estimates.abs() >= threshold).squeeze(1)
        codes = _codes(table, _round_up(threshold, table.dtype))
        needed = (self.rows + 1) // 2 if self.agree == "majority" else self.rows
        codes[:, 0] += BOTH * (MARK - needed)  # `needed` rows reach the mark
        places = [_marked(counts).add_(first) for first, counts in self.hash.counts(codes)]
        return self.places.without_gaps(torch.cat(places))


def add_at(cells: Tensor, index: Tensor, values: Tensor) -> None:
    """Add `values` to the cells `index`, of which several may be the same, in the order of `values`."""
    if values.device.type == "cpu":
        cells.index_add_(0, index, values)
    else:  # sorts first, so that the order of additions is fixed there too
        cells.index_put_((index,), values, accumulate=True)


def agreed(values: Sequence[Tensor]) -> Tensor:
    """Elementwise, the value of the smallest magnitude where all have the same sign, else 0."""
    low, high = values[0], values[0]
    for each in values[1:]:
        low, high = torch.minimum(low, each), torch.maximum(high, each)
    return low.clamp(min=0).add_(high.clamp(max=0))


def median(values: list[Tensor]) -> Tensor:
    """The elementwise median of an odd number of tensors; may overwrite them."""
    if len(values) == 1:
        return values[0]
    if len(values) == 3:
        return _median_of_3(*values)
    if len(values) == 5:
        a, b, c, d, e = values
        low = torch.maximum(torch.minimum(a, b), torch.minimum(c, d))
        high = torch.minimum(torch.maximum(a, b, out=a), torch.maximum(c, d, out=c))
        return _median_of_3(low, high, e)
    return torch.stack(values).sort(0).values[len(values) // 2]


def _median_of_3(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.maximum(torch.minimum(a, b), torch.minimum(torch.maximum(a, b), c))


def _codes(table: Tensor, least: float) -> Tensor:
    """Whether cells are >= `least`, in the lower half of a byte, or <= -`least`, in the upper; then the other way."""
    codes = torch.empty(2, *table.shape, dtype=torch.uint8, device=table.device)
    below = (table <= -least).view(torch.uint8)
    above = torch.ge(table, least).view(torch.uint8)
    torch.add(above, below, alpha=16, out=codes[0])
    torch.add(below, above, alpha=16, out=codes[1])
    return codes


def _round_up(x: float, dtype: torch.dtype) -> float:
    """The smallest number of `dtype` that is not below `x`: comparisons round what they compare with."""
    near = torch.tensor(x, dtype=dtype)
    return (near if near.item() >= x else torch.nextafter(near, torch.full_like(near, math.inf))).item()


def _marked(counts: Tensor) -> Tensor:
    """Places of the bytes with a mark in either half; looks at eight at once, as few are marked."""
    whole = counts.numel() // 8 * 8
    words = counts[:whole].view(torch.int64).bitwise_and_(MARKED_WORD)
    word = torch.nonzero(words).squeeze(1)
    byte = torch.nonzero(words[word].view(torch.uint8)).squeeze(1)
    tail = torch.nonzero(counts[whole:] & (MARK * BOTH)).squeeze(1)
    return torch.cat([word[byte >> 3] * 8 + (byte & 7), tail + whole])
