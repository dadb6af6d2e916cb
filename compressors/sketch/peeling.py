"""An invertible Bloom look-up table of floats: a sum of sparse vectors from which all their entries can be read again.

Goodrich and Mitzenmacher, "Invertible Bloom Lookup Tables", Allerton 2011, arXiv 1101.2245. Every entry is added to one
cell in each of 3 rows, with its value and with a key. A cell that holds one place only names it; the place is then
taken out of its other cells, which may leave others alone, and so on. While U is at most 0.818 times the cells, all U
entries are found with a probability of 1 - O(1 / U); above that almost none are. (0.818 is the threshold of a random
hypergraph with 3 vertices an edge.) Tables of several ranks add up, as a sketch's do; a place that several sent is one
entry.

Places are exact. Values are sums and differences of floats: each errs by the rounding of all that its cell ever held.

A key is a whole number: a count in its upper bits, a code of the place's block and a check in its lower ones. A cell's
count n and sum s show one place where s / n is a code whose check is right. A wrong place that passes the check is
taken out with count n; when its cells hold nothing else it shows again, with count -n, and is put back.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from wirebench.compressors.sketch.block_hash import BlockHash
from wirebench.compressors.sketch.count_sketch import CountSketch, add_at
from wirebench.compressors.sketch.heavy_hitters import largest
from wirebench.compressors.sparse.selection import top_k
from wirebench.errors import UserError
from wirebench.utils.rng import seed_of

if TYPE_CHECKING:
    from wirebench.compressors.kernels.votes import Found

ROWS = 3
LOAD = 1 / 1.3
"""Entries per cell that a table is made for; the threshold is 0.818."""
CHECK_BITS = 6
"""Fewest bits of a check: below that, wrong places are too many to be put back."""
GOLDEN = 0x9E3779B1
MOST_PASSES = 256
"""Peeling takes some tens of passes, more near the threshold. In what is left, wrong ones may come and go for ever."""


@dataclass(frozen=True)
class Peeled:
    """The result of peeling a table.

    index     int64 ascending; sums: the values there, fp32
    complete  whether nothing is left in the table, so that these are all entries; else they are candidates
    rest      the values that are left, shape (rows, columns)
    """

    index: Tensor
    sums: Tensor
    complete: bool
    rest: Tensor


class Chosen(NamedTuple):
    """The chosen entries of a vector: their places, int64; with kernels the first `found`, int32 (1,), of them are."""

    places: Tensor
    found: Tensor | None

    def listed(self) -> Tensor:
        """The places; with kernels the host waits for their number."""
        return self.places if self.found is None else self.places[: int(self.found)]


class Dense(NamedTuple):
    """The result of peeling a table by kernels: by place of the vector (`peel` of kernels/tables.py).

    sums, counts  of each place; state: what was not finite, or is left; rest: the values that are left; arrived: a 0
    """

    sums: Tensor
    counts: Tensor
    state: Tensor
    arrived: Tensor
    rest: Tensor

    def listed(self, complete: bool) -> Peeled:
        """The result in the form that `peel` returns."""
        index = torch.nonzero(self.counts).squeeze(1)
        return Peeled(index, self.sums.index_select(0, index), complete, self.rest)

    def write(self, grad: Tensor, size: int, residual: Tensor, sent: Chosen) -> Tensor:
        """Write the average of `size` ranks into `grad`, and clear what this rank has sent."""
        from wirebench.compressors.kernels.tables import average

        assert sent.found is not None
        average(grad, self.sums, self.counts, self.state, size, residual, sent.places, sent.found)
        return grad


def key_bytes(numel: int, columns: int, size: int) -> int:
    """The size of a key in bytes: 4 (int32) if that leaves bits enough for the check, else 8 (int64)."""
    return 4 if _check_bits(32, numel, columns, size) >= CHECK_BITS else 8


def _check_bits(bits: int, numel: int, columns: int, size: int) -> int:
    """Bits for the check in a signed key of `bits` bits, after a count up to `size` and a sum of `size` block codes."""
    blocks = (_modulus(numel) - 1) // columns
    return bits - 1 - 2 * size.bit_length() - blocks.bit_length()


def _modulus(numel: int) -> int:
    return 1 << max(numel - 1, 1).bit_length()


class LookupTable:
    """Tables of (3, columns) for vectors of `numel` elements of at most `size` ranks; `seed` is the same on all.

    Places are first permuted, so that neighbours, which are often large together, do not share a neighbourhood.
    UserError where even the longer key has too few bits, as with more than a million ranks.
    """

    def __init__(self, numel: int, columns: int, size: int, seed: int, device: torch.device) -> None:
        self.numel, self.size = numel, size
        self.modulus = _modulus(numel)
        draw = seed_of("permutation", seed)
        self.factor, self.shift = draw % self.modulus | 1, (draw >> 32) % self.modulus
        self.inverse = pow(self.factor, -1, self.modulus)
        self.sketch = CountSketch(self.modulus, ROWS, columns, seed, "block", device, agree="all")
        assert isinstance(self.sketch.hash, BlockHash)
        self.hash: BlockHash = self.sketch.hash
        self.key_type = torch.int32 if key_bytes(numel, columns, size) == 4 else torch.int64
        bits = torch.iinfo(self.key_type).bits
        self.check_bits = _check_bits(bits, numel, columns, size)
        if self.check_bits < CHECK_BITS:
            raise UserError(f"a table of {columns} columns for {numel} elements has no room for keys of {size} ranks")
        self.one = 1 << (bits - 1 - size.bit_length())  # what counts once, above a sum of `size` codes

    def fill_largest(self, x: Tensor, k: int) -> tuple[Chosen, Tensor, Tensor]:
        """The `k` largest entries of `x` by magnitude, as `top_k` chooses them; their table and keys, as of `fill`."""
        if (hash := self.sketch.kernels_hash(x)) is None:
            index = top_k(x, k)
            return Chosen(index, None), *self.fill(index, x.index_select(0, index))
        from wirebench.compressors.kernels.tables import fill

        keys = torch.zeros(ROWS, self.sketch.columns, dtype=self.key_type, device=x.device)
        table, places, found = fill(x, k, hash, self.sketch.columns, (keys, self._numbers()))
        return Chosen(places, found), table, keys

    def fill(self, index: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The table and the keys, float32 and int32 or int64 (3, columns), of the `values` at the places `index`."""
        place = self._permuted(index)
        table = self.sketch.sketch_entries(place, values)
        keys = torch.zeros(table.shape, dtype=self.key_type, device=table.device)
        self._add_keys(keys, place, torch.ones_like(place))
        return table, keys

    def peel(self, table: Tensor, keys: Tensor) -> Peeled:
        """Read the entries of a sum of tables and keys, both of which are used up. Waits for the device."""
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        cells = torch.nonzero(keys.view(-1)).squeeze(1)
        for _ in range(MOST_PASSES):
            place, count, cell = self._alone(keys, cells)
            if not place.numel():
                break
            sums = self._value_in(table, place, cell)
            self._add_keys(keys, place, -count)
            for row, (at, sign) in zip(table, self.hash.cells(place), strict=True):
                add_at(row, at, sign.mul_(-sums))
            found.append((place, count, sums))
            cells = self._cells_of(place)
            cells = cells[keys.view(-1).index_select(0, cells) != 0]
        return self._told(found, table, complete=not bool(keys.any()))

    def peel_at_once(self, table: Tensor, keys: Tensor) -> Dense | None:
        """As `peel`, by kernels; None where there are none."""
        if (hash := self.sketch.kernels_hash(table)) is None:
            return None
        from wirebench.compressors.kernels.tables import peel

        return Dense(*peel(table, keys, hash, self._numbers(), self.numel, MOST_PASSES), table)

    def _numbers(self) -> tuple[int, ...]:
        """What kernels know of the permutation and the keys."""
        permutation = self.factor, self.shift, self.inverse, self.modulus
        return *permutation, self.one, self.check_bits, self.numel, self.size

    def largest(self, rest: Tensor, k: int) -> Tensor:
        """Places, int64 ascending, of the up to `k` largest estimates of what is left in a table."""
        index = self._original(largest(self.sketch, rest, k))
        return index[index < self.numel].sort().values

    def candidates(self, dense: Dense, k: int) -> "Found":
        """By kernels: the places that peeling has found, and those of the `k` largest estimates of what it has left."""
        from wirebench.compressors.kernels.tables import flag

        found = self.sketch.find(dense.rest, k)
        assert found is not None
        return flag(dense.counts, dense.arrived, *found, self._numbers())

    def _permuted(self, index: Tensor) -> Tensor:
        return (index * self.factor + self.shift) % self.modulus

    def _original(self, place: Tensor) -> Tensor:
        return ((place - self.shift) * self.inverse) % self.modulus

    def _codes(self, place: Tensor) -> Tensor:
        block = torch.div(place, self.sketch.columns, rounding_mode="floor")
        return (block << self.check_bits) + self._checks(place)

    def _checks(self, place: Tensor) -> Tensor:
        return ((place * GOLDEN) >> 15) & ((1 << self.check_bits) - 1)

    def _add_keys(self, keys: Tensor, place: Tensor, count: Tensor) -> None:
        """Add `count` times the key of each place to its cells."""
        key = (self._codes(place) + self.one).mul_(count).to(self.key_type)
        for row, (cell, _) in zip(keys, self.hash.cells(place), strict=True):
            row.index_add_(0, cell, key)

    def _cells_of(self, place: Tensor) -> Tensor:
        """All cells of these places, numbered through the rows, each once."""
        columns = self.sketch.columns
        return torch.cat([cell + row * columns for row, (cell, _) in enumerate(self.hash.cells(place))]).unique()

    def _alone(self, keys: Tensor, cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For the cells with one place only: the place, its count (below 0 for one to put back) and the cell."""
        key = keys.view(-1).index_select(0, cells).long()
        sign, key = key.sign(), key.abs()
        count, total = key // self.one, key % self.one
        usual = (count > 0) & (count <= self.size)
        cells, count, total, sign = cells[usual], count[usual], total[usual], sign[usual]
        code = total // count
        row = torch.div(cells, self.sketch.columns, rounding_mode="floor")
        place = self._place_in(row, cells - row * self.sketch.columns, code >> self.check_bits)
        right = (code * count == total) & (place < self.modulus)
        right &= self._checks(place) == code & ((1 << self.check_bits) - 1)
        right &= self._original(place) < self.numel
        place, count, cells = place[right], (count * sign)[right], cells[right]
        place, which = torch.unique(place, return_inverse=True)
        first = torch.full_like(place, cells.numel()).scatter_reduce_(
            0, which, torch.arange(cells.numel(), device=cells.device), "amin"
        )
        return place, count.index_select(0, first), cells.index_select(0, first)

    def _place_in(self, row: Tensor, column: Tensor, block: Tensor) -> Tensor:
        """The place of `block` that lies in this cell; `modulus` where there is no such block."""
        hash = self.hash
        known = block < hash.blocks
        shift = hash.shift.view(-1).index_select(0, row * hash.blocks + torch.where(known, block, 0))
        place = block * hash.columns + (column - shift) % hash.columns
        return torch.where(known, place, self.modulus).clamp_(max=self.modulus)

    def _value_in(self, table: Tensor, place: Tensor, cell: Tensor) -> Tensor:
        """The value of each place, as its cell has it."""
        signs = torch.stack([sign for _, sign in self.hash.cells(place)]).view(-1)
        row = torch.div(cell, self.sketch.columns, rounding_mode="floor")
        sign = signs.index_select(0, row * place.numel() + torch.arange(place.numel(), device=place.device))
        return table.view(-1).index_select(0, cell).mul_(sign)

    def _told(self, found: list[tuple[Tensor, Tensor, Tensor]], rest: Tensor, complete: bool) -> Peeled:
        """The result: the entries that were taken out and not put back."""
        if not found:
            return Peeled(torch.empty(0, dtype=torch.int64, device=rest.device), rest.new_empty(0), complete, rest)
        place, count, value = (torch.cat(parts) for parts in zip(*found, strict=True))
        each, which = torch.unique(place, return_inverse=True)
        counts = torch.zeros_like(each).index_add_(0, which, count)
        sums = value.new_zeros(each.numel())
        add_at(sums, which, value)
        index, order = self._original(each[counts != 0]).sort()
        return Peeled(index, sums[counts != 0].index_select(0, order), complete, rest)
