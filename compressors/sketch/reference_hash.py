"""The textbook's hash of a Count-Sketch: cells pairwise, signs 4-wise independent, from polynomials modulo 2^31 - 1.

Row j draws six numbers from one splitmix64 stream, each modulo p = 2^31 - 1: a1, a0, q3, q2, q1, q0. The cell of
element i is (a1 i + a0) mod p mod columns; its sign is + where q3 i^3 + q2 i^2 + q1 i + q0 mod p is odd. All products
stay below 2^62, so int64 gives the same on every machine. The twin that the block-shift hash is compared with.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

PRIME_BITS = 31
PRIME = 2**PRIME_BITS - 1
WORD = 2**64 - 1

ELEMENTS_AT_ONCE = 1 << 16
REMEMBERED = 1 << 24
"""The cells of at most this many (element, row) pairs are kept, 4 bytes each, instead of computed every time."""


class ReferenceHash:
    """Cells and signs of `numel` < 2^31 elements in `rows` rows of `columns` < 2^30 cells."""

    def __init__(self, numel: int, rows: int, columns: int, seed: int, device: torch.device) -> None:
        assert numel < 2**31 and columns < 2**30
        self.numel, self.rows, self.columns, self.device = numel, rows, columns, device
        self.redraw(seed)

    def redraw(self, seed: int) -> None:
        """Draw new polynomials."""
        draws = splitmix64(seed)
        self.coefficients = [[next(draws) % PRIME for _ in range(6)] for _ in range(self.rows)]
        self._packed: Tensor | None = None
        if self.numel * self.rows <= REMEMBERED:
            pieces = [torch.stack(list(self._pack(index))) for _, index in self._pieces()]
            self._packed = torch.cat(pieces, dim=1)

    def add(self, x: Tensor, table: Tensor) -> None:
        """Add the sketch of `x` to `table`, in the order of the elements."""
        for first, index in self._pieces():
            part = x[first : first + index.numel()]
            for row, (cell, sign) in zip(table, self.cells(index), strict=True):
                if x.device.type == "cpu":
                    row.index_add_(0, cell, part * sign)
                else:  # sorts first, so that the order of additions is fixed there too
                    row.index_put_((cell,), part * sign, accumulate=True)

    def cells(self, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """For each row: cells and signs of the elements `index`."""
        rows = self._pack(index) if self._packed is None else (row.index_select(0, index) for row in self._packed)
        for packed in rows:
            yield (packed >> 1).long(), 1.0 - 2.0 * (packed & 1)

    def counts(self, codes: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Sums over rows of the elements' codes."""
        for first, index in self._pieces():
            counts = codes.new_zeros(index.numel())
            for row, (cell, sign) in zip(codes.unbind(1), self.cells(index), strict=True):
                plus, minus = (each.index_select(0, cell) for each in row)
                counts += torch.where(sign > 0, plus, minus)
            yield first, counts

    def _pieces(self) -> Iterator[tuple[int, Tensor]]:
        for first in range(0, self.numel, ELEMENTS_AT_ONCE):
            yield first, torch.arange(first, min(first + ELEMENTS_AT_ONCE, self.numel), device=self.device)

    def _pack(self, index: Tensor) -> Iterator[Tensor]:
        """For each row, int32: twice the cell, and 1 more where the sign is -."""
        for a1, a0, q3, q2, q1, q0 in self.coefficients:
            cell = _least(_folded(index * a1 + a0)).remainder_(self.columns)
            value = index * q3
            for q in (q2, q1):
                value = _folded(value.add_(q)).mul_(index)
            odd = _least(_folded(_folded(value).add_(q0))) & 1
            yield (cell * 2 + 1 - odd).int()


def splitmix64(seed: int) -> Iterator[int]:
    """Steele, Lea and Flood's generator of 64-bit numbers."""
    state = seed
    while True:
        state = (state + 0x9E3779B97F4A7C15) & WORD
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
        yield z ^ (z >> 31)


def _folded(x: Tensor) -> Tensor:
    """`x` < 2^62 modulo p, as a number of at most p + 1."""
    for _ in range(2):
        x = (x & PRIME) + (x >> PRIME_BITS)
    return x


def _least(x: Tensor) -> Tensor:
    """`x` <= p + 1 modulo p."""
    return x - PRIME * (x >= PRIME)
