"""A bucket's layers as small blocks of frequencies: a discrete cosine transform of each block, forward and back.

A layer is the matrix of its rows; a vector is a matrix of one row. Both sides are cut into parts of equal length: the
largest divisor up to a limit, so that nothing is padded; of a prime side above the limit the parts have length 1.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from wirebench.gradient.flat import Bucket
from wirebench.utils.device_tables import device_table

WIDEST = 64
"""A block of 64 by 64 has as many places as 12 bits tell apart."""


class Tiling(NamedTuple):
    """How a layer is cut into blocks of `height` by `width`.

    place         its first element in the bucket
    rows, columns of its matrix
    first         its first coefficient in the spectrum
    k             coefficients to choose of each block
    """

    place: int
    rows: int
    columns: int
    height: int
    width: int
    first: int
    k: int

    @property
    def numel(self) -> int:
        """Elements of the layer."""
        return self.rows * self.columns

    def blocks(self, flat: Tensor) -> Tensor:
        """View (down, across, height, width) of the layer in a vector of the bucket's elements."""
        matrix = flat[self.place : self.place + self.numel].view(self.rows, self.columns)
        return matrix.view(self.rows // self.height, self.height, -1, self.width).transpose(1, 2)

    def spectra(self, flat: Tensor) -> Tensor:
        """View (down, across, height, width) of the layer's coefficients in a vector of the spectrum."""
        across = self.columns // self.width
        return flat[self.first : self.first + self.numel].view(-1, across, self.height, self.width)


class Frequencies(NamedTuple):
    """The tilings of a bucket's layers, in whose order the spectrum's blocks lie one after the other.

    numel   coefficients
    starts  by chosen coefficient, its block's first place in the spectrum, int64 (total,)
    total   coefficients that are chosen
    table   by block its first element, the distance of its rows, its height and width: int64 (4, blocks)
    firsts  by block: how many coefficients are chosen of those before it, int64 (blocks + 1,)
    most    coefficients that are chosen of a block, at most
    """

    tilings: tuple[Tiling, ...]
    numel: int
    starts: Tensor
    total: int
    table: Tensor
    firsts: Tensor
    most: int

    def forward(self, values: Tensor) -> Tensor:
        """The spectrum, (numel,), of a vector of the bucket's elements."""
        spectrum = values.new_empty(self.numel)
        for each in self.tilings:
            down, across = _cosines(each.height, values.device), _cosines(each.width, values.device)
            each.spectra(spectrum).copy_(_turned(each.blocks(values), down, across))
        return spectrum

    def backward(self, spectrum: Tensor, out: Tensor) -> Tensor:
        """Write the elements that have this spectrum to `out`, a vector like the bucket; returns it."""
        for each in self.tilings:
            down, across = _cosines(each.height, out.device), _cosines(each.width, out.device)
            each.blocks(out).copy_(_turned(each.spectra(spectrum), down.mT, across.mT))
        return out

    def choose(self, spectrum: Tensor) -> Tensor:
        """The largest of each block by magnitude, NaN first: places within their blocks, int64 (total,)."""
        chosen = []
        for each in self.tilings:
            rows = spectrum[each.first : each.first + each.numel].view(-1, each.height * each.width)
            # Magnitudes are in the order of their bits, which are compared faster.
            chosen.append(rows.abs().view(torch.int32).topk(each.k, dim=1).indices.flatten())
        return torch.cat(chosen)


def frequencies_of(bucket: Bucket, chunk: int, k: int) -> Frequencies:
    """The bucket's blocks of at most `chunk` by `chunk` elements, of which k coefficients each are chosen."""
    sides = tuple(
        (layer.start - bucket.start, layer.rows if layer.ndim > 1 else 1, layer.numel) for layer in bucket.layers
    )
    return _frequencies(sides, chunk, k, bucket.grad.device)


@device_table()
def _frequencies(sides: tuple[tuple[int, int, int], ...], chunk: int, k: int, device: torch.device) -> Frequencies:
    tilings: list[Tiling] = []
    rows_of_blocks, begins_of_blocks, counts = [], [], []
    first = 0
    for place, rows, numel in sides:
        columns = numel // rows
        height, width = divisor(rows, chunk), divisor(columns, chunk)
        size = height * width
        tilings.append(Tiling(place, rows, columns, height, width, first, min(k, size)))
        down, across = torch.meshgrid(torch.arange(0, rows, height), torch.arange(0, columns, width), indexing="ij")
        places = (place + down * columns + across).flatten()
        begins_of_blocks.append(torch.arange(first, first + numel, size))
        alike = (torch.full_like(places, each) for each in (columns, height, width))
        rows_of_blocks.append(torch.stack((places, *alike)))
        counts.append(torch.full_like(places, min(k, size)))
        first += numel
    table, count = torch.cat(rows_of_blocks, 1), torch.cat(counts)
    begins = torch.cat((count.new_zeros(1), count.cumsum(0)))
    starts, total = torch.repeat_interleave(torch.cat(begins_of_blocks), count), int(begins[-1])
    starts, table, begins = (each.to(device) for each in (starts, table, begins))
    return Frequencies(tuple(tilings), first, starts, total, table, begins, max(each.k for each in tilings))


def _turned(blocks: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """(down x across^T) of every block x, as two products of large matrices: a batch would copy `down` each time."""
    return ((blocks @ across.mT).mT @ down.mT).mT


def divisor(side: int, limit: int) -> int:
    """The largest divisor of `side` that is at most `limit`."""
    return next(length for length in range(min(side, limit), 0, -1) if side % length == 0)


@device_table(maxsize=128)
def _cosines(size: int, device: torch.device) -> Tensor:
    """The orthonormal DCT-II of vectors of this length, fp32 (size, size): a row for each frequency."""
    number = torch.arange(size, dtype=torch.float64)
    matrix = torch.cos(math.pi / size * torch.outer(number, number + 0.5)) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix.float().to(device)


@device_table(maxsize=8)
def all_cosines(device: torch.device) -> Tensor:
    """The matrices of all lengths up to WIDEST, each filled up with zeros: fp32 (WIDEST + 1, WIDEST, WIDEST)."""
    every = torch.zeros(WIDEST + 1, WIDEST, WIDEST)
    for size in range(1, WIDEST + 1):
        every[size, :size, :size] = _cosines(size, torch.device("cpu"))
    return every.to(device)
