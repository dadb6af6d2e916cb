"""Passes over a bucket in blocks that stay in the cache, and groups of neighbours that share a scale.

Ten elementwise operations in turn on a vector that does not fit into the cache read memory ten times; done block by
block they read it once.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.gradient.flat import Bucket, Layer
from wirebench.utils.device_tables import device_table

CPU_BLOCK, GPU_BLOCK = 1 << 18, 1 << 22
"""Elements of a block. On a CPU one vector of a block fits into 1 MB of cache, and a call's overhead is small.
Blocks of half this size are 5 % slower, blocks of a quarter half as fast. A GPU is fastest with few, large calls."""

FEW = 256
"""A vector of at most this many numbers is split into single ones at once."""

Measure = Callable[[Tensor], Tensor]
"""measure(rows): one number for each row of a matrix; of a vector, one number."""
Combine = Callable[[Tensor, Tensor], Tensor]
"""combine(one, other): the number of a group, given the numbers of its two parts."""


class Run(NamedTuple):
    """`groups` groups of `width` elements each, one after the other."""

    width: int
    groups: int


Groups = tuple[Run, ...]


class BlockPiece(NamedTuple):
    """A part of a block, of `numel` elements: whole groups of one width, or a part of one group.

    first   number of its first group
    groups  how many there are; 1 for a part of one
    fresh   whether its first group begins with the piece
    """

    numel: int
    first: int
    groups: int
    fresh: bool


class Block(NamedTuple):
    """Neighbouring pieces, the `number`-th block of a bucket, of `numel` elements."""

    number: int
    numel: int
    pieces: tuple[BlockPiece, ...]
    lengths: list[int]

    def rows(self, values: Tensor) -> Sequence[Tensor]:
        """The block's elements by pieces: a matrix with one group in each row, or a vector for a single group."""
        if len(self.pieces) == 1:
            return (_as_rows(values, self.pieces[0].groups),)
        parts = values.split(self.lengths)
        return [_as_rows(part, piece.groups) for part, piece in zip(parts, self.pieces, strict=True)]

    def of(self, scales: "Scales") -> list[Tensor]:
        """The scales that go with `rows`: a column for each piece, or a number for a single group."""
        return [
            scales.numbers[first] if groups == 1 else scales.column[first : first + groups]
            for _, first, groups, _ in self.pieces
        ]


class Scales:
    """One number for every group, to be read block by block."""

    def __init__(self, values: Tensor) -> None:
        self.column = values[:, None]
        # Splitting off many numbers costs more than indexing the few that are needed.
        self.numbers = values.unbind() if values.numel() <= FEW else values


def _as_rows(values: Tensor, groups: int) -> Tensor:
    return values if groups == 1 else values.view(groups, -1)


def by_layer(bucket: Bucket) -> Groups:
    """Every layer is a group, and every gap between layers."""
    return tuple(Run(layer.numel, 1) for layer in _with_gaps(bucket))


def by_row(bucket: Bucket, least: int) -> Groups:
    """Every row of a matrix is a group; where a row has fewer than `least` elements, the layer is one, as is a gap."""
    runs = []
    for layer in _with_gaps(bucket):
        width = layer.numel // layer.rows
        runs.append(Run(width, layer.rows) if layer.ndim > 1 and width >= least else Run(layer.numel, 1))
    return tuple(runs)


def _with_gaps(bucket: Bucket) -> Iterator[Layer]:
    """The bucket's layers, and as layers of one dimension the gaps between them: they cover it."""
    place = bucket.start
    for layer in bucket.layers:
        if layer.start > place:
            yield Layer("", place, layer.start, 1)
        yield layer
        place = layer.stop


def by_chunk(bucket: Bucket, chunk: int) -> Groups:
    """Every `chunk` elements of the bucket are a group, and what is left over is the last."""
    whole, rest = divmod(bucket.grad.numel(), chunk)
    return ((Run(chunk, whole),) if whole else ()) + ((Run(rest, 1),) if rest else ())


def block_numel(device: torch.device, multiple: int = 1) -> int:
    """Elements of a block on `device`, a multiple of `multiple`."""
    return (CPU_BLOCK if device.type == "cpu" else GPU_BLOCK) // multiple * multiple


@lru_cache(maxsize=1024)
def cut(groups: Groups, size: int) -> tuple[Block, ...]:
    """Blocks of `size` elements, the last one shorter, that cover all groups."""
    blocks: list[list[BlockPiece]] = [[]]
    room, first = size, 0
    for run in groups:
        done, total = 0, run.width * run.groups
        while done < total:
            if not room:
                blocks.append([])
                room = size
            group, inside = divmod(done, run.width)
            # Whole groups as far as they fit, else what the block or the group has left of one.
            whole = 0 if inside else min(room, total - done) // run.width
            numel = whole * run.width or min(room, run.width - inside)
            blocks[-1].append(BlockPiece(numel, first + group, max(whole, 1), not inside))
            done, room = done + numel, room - numel
        first += run.groups
    lengths = [[piece.numel for piece in each] for each in blocks]
    return tuple(Block(i, sum(n), tuple(p), n) for i, (p, n) in enumerate(zip(blocks, lengths, strict=True)))


def reduce(x: Tensor, groups: Groups, *wanted: tuple[Measure, Combine]) -> list[Tensor]:
    """One pass over `x`: for every wanted (measure, combine) the numbers of all groups, shape (groups,)."""
    if kernels.usable(x):
        from wirebench.compressors.kernels.segments import reduced

        return [reduced(x, groups, measure.__name__)[0] for measure, _ in wanted]
    numbers: list[list[Tensor]] = [[] for _ in wanted]
    size = block_numel(x.device)
    for block, values in zip(cut(groups, size), x.split(size), strict=True):
        for piece, rows in zip(block.pieces, block.rows(values), strict=True):
            for parts, (measure, combine) in zip(numbers, wanted, strict=True):
                if piece.fresh:
                    parts.append(measure(rows))
                else:
                    parts[-1] = combine(parts[-1], measure(rows))
    return [torch.cat([part.view(-1) for part in parts]) for parts in numbers]


def highest(rows: Tensor) -> Tensor:
    """The largest number of each row; NaN if the row contains a NaN."""
    return rows.amax(-1)


def lowest(rows: Tensor) -> Tensor:
    """The smallest number of each row; NaN if the row contains a NaN."""
    return rows.amin(-1)


def squares(rows: Tensor) -> Tensor:
    """The sum of squares of each row."""
    # Not torch.dot: its last bits depend on where in memory the row begins, and so on how buckets are merged.
    return torch.linalg.vector_norm(rows, dim=-1).square_()


def magnitudes(rows: Tensor) -> Tensor:
    """The sum of magnitudes of each row."""
    return rows.abs().sum(-1)


HIGHEST = (highest, torch.maximum)
LOWEST = (lowest, torch.minimum)
SQUARES = (squares, torch.add)
MAGNITUDES = (magnitudes, torch.add)


def mean_magnitudes(x: Tensor, groups: Groups) -> Tensor:
    """The mean magnitude of each group."""
    if kernels.usable(x):
        from wirebench.compressors.kernels.segments import reduced

        return reduced(x, groups, "means")[0]
    return reduce(x, groups, MAGNITUDES)[0] / widths(groups, x.device)


def largest(x: Tensor, groups: Groups) -> Tensor:
    """The largest magnitude of each group."""
    if kernels.usable(x):
        from wirebench.compressors.kernels.segments import reduced

        return reduced(x, groups, "largest")[0]
    high, low = reduce(x, groups, HIGHEST, LOWEST)
    return torch.maximum(high, low.neg_())


@device_table()
def widths(groups: Groups, device: torch.device) -> Tensor:
    """Elements of every group, fp32, shape (groups,); not to be written to.

    It is the same tensor every time: making one copies from the host, for which a GPU would have to wait.
    """
    counts = torch.tensor([run.groups for run in groups])
    return torch.repeat_interleave(torch.tensor([float(run.width) for run in groups]), counts).to(device)
