"""Groups of neighbours as tables on the device, and their reductions.

A *piece* is a part of one group that one program of a reduction reads. A *tile* is a stretch of a bucket that one
program of an element-wise kernel reads; it may reach over many groups, or lie within one.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.bits.blocks import Groups, widths
from wirebench.compressors.kernels import APART, launching
from wirebench.utils.device_tables import device_table

PIECE = 4096
"""Elements of a piece."""
LANES = 1024
"""Numbers that a program collects at once."""
ROWS = {"spread": 2, "sides": 3}
"""Numbers of a group, of reductions that give several."""


class Pieces(NamedTuple):
    """edges: where each piece begins, and where the last one ends; of_group: the first piece of each group, and the
    number of all; both int64. most: the pieces of the group that has most.
    """

    edges: Tensor
    of_group: Tensor
    most: int


class Tiles(NamedTuple):
    """starts: where each group begins, and where the last one ends, int64; first, last: the groups in which each tile
    begins and ends, int32. chunk: the width of all groups but the last, 0 where they differ.
    """

    starts: Tensor
    first: Tensor
    last: Tensor
    chunk: int


@device_table()
def pieces_of(groups: Groups, device: torch.device) -> Pieces:
    """The pieces of a bucket's groups."""
    starts = _starts(groups)
    counts = -(-np.diff(starts) // PIECE)
    of_group = np.concatenate([[0], np.cumsum(counts)])
    inside = np.arange(of_group[-1]) - np.repeat(of_group[:-1], counts)
    edges = np.append(np.repeat(starts[:-1], counts) + inside * PIECE, starts[-1])
    return Pieces(_on(edges, device), _on(of_group, device), int(counts.max(initial=0)))


@device_table()
def tiles_of(groups: Groups, numel: int, device: torch.device, share: int = 0, shares: int = 1) -> Tiles:
    """Tiles of `numel` elements, the last one shorter, of a bucket's groups.

    share, shares  elements of a share, and how many shares the bucket is cut into first, each with an equal number of
                   tiles; 0: it is not cut
    """
    starts = _starts(groups)
    share = share or int(starts[-1])
    begins = (np.arange(shares)[:, None] * share + np.arange(0, share, numel)).flatten()
    begins = np.minimum(begins, starts[-1])
    ends = np.maximum(np.minimum(begins + numel, starts[-1]) - 1, 0)
    # Of a tile that is empty, too, a kernel looks up the group.
    most = max(len(starts) - 2, 0)
    first, last = (np.minimum(np.searchsorted(starts, each, side="right") - 1, most) for each in (begins, ends))
    alike = len(groups) == 1 or (len(groups) == 2 and groups[1].groups == 1 and groups[1].width <= groups[0].width)
    # A number that each size of a layer would compile anew is none of a kernel's constants.
    chunk = groups[0].width if alike and groups[0].groups > 1 else 0
    return Tiles(_on(starts, device), _on(first, device).int(), _on(last, device).int(), chunk)


def _starts(groups: Groups) -> "np.ndarray[Any, np.dtype[np.int64]]":
    widths = np.repeat([run.width for run in groups], [run.groups for run in groups])
    return np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)


def _on(numbers: "np.ndarray[Any, np.dtype[np.int64]]", device: torch.device) -> Tensor:
    return torch.from_numpy(numbers).to(device)


@launching
def reduced(x: Tensor, groups: Groups, kind: str) -> Tensor:
    """Numbers of each group, (numbers, groups); two launches. The twin is `blocks.reduce`.

    kind  largest: the largest magnitude, or NaN if the group has one; squares, magnitudes: their sum; means: the
          magnitudes' sum over the group's elements; spread: the sum of squares, and the largest magnitude; sides: the
          sum of what is above 0, of what is below, and how many have a minus, as the bits of an int32
    """
    pieces, rows = pieces_of(groups, x.device), ROWS.get(kind, 1)
    count, many = pieces.edges.numel() - 1, pieces.of_group.numel() - 1
    parts = x.new_empty((rows, count))
    if count:
        whole = pieces.most == 1
        _read_pieces[(count,)](x, pieces.edges, parts, count, KIND=kind, WHOLE=whole, LANES=PIECE, **APART)
    if pieces.most <= 1:
        return parts
    numbers = x.new_empty((rows, many))
    _collect[(many, rows)](parts, pieces.edges, pieces.of_group, numbers, count, many, KIND=kind, LANES=LANES, **APART)
    return numbers


@launching
def limited(x: Tensor, groups: Groups, factor: float) -> Tensor:
    """Of each group, (groups,), the largest magnitude, or `factor` times the root of the mean square where that is
    smaller and not 0; three launches. Twin: `TernGrad._scales`.
    """
    spread = reduced(x, groups, "spread")
    count = spread.shape[1]
    scales = x.new_empty(count)
    if count:
        _limited[(triton.cdiv(count, LANES),)](
            spread, widths(groups, x.device), scales, count, float(factor), LANES=LANES, **APART
        )
    return scales


@triton.jit
def _limited(spread, widths, scales, count, factor, LANES: tl.constexpr):
    group = tl.program_id(0) * LANES + tl.arange(0, LANES)
    there = group < count
    squares = tl.load(spread + group, mask=there, other=0.0)
    peaks = tl.load(spread + count + group, mask=there, other=0.0)
    limits = tl.sqrt_rn(tl.div_rn(squares, tl.load(widths + group, mask=there, other=1.0))) * factor
    # Squares of very small numbers are 0, and no limit. A peak that is NaN stays.
    tl.store(scales + group, tl.where((limits > 0) & (peaks > limits), limits, peaks), mask=there)


@triton.jit
def _read_pieces(x, edges, parts, count, KIND: tl.constexpr, WHOLE: tl.constexpr, LANES: tl.constexpr):
    """A program a piece: its numbers to `parts`, (rows, count). WHOLE: a group is one piece."""
    piece = tl.program_id(0)
    begin, end = tl.load(edges + piece), tl.load(edges + piece + 1)
    places = begin + tl.arange(0, LANES)
    values = tl.load(x + places, mask=places < end, other=0.0)
    if KIND == "largest":
        # As whole numbers, of which a NaN is the largest: the maximum of floats drops it.
        tl.store(parts + piece, tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0).to(tl.float32, bitcast=True))
    elif KIND == "squares":
        tl.store(parts + piece, tl.sum(values * values, 0))
    elif KIND == "spread":
        tl.store(parts + piece, tl.sum(values * values, 0))
        most = tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0)
        tl.store(parts + count + piece, most.to(tl.float32, bitcast=True))
    elif KIND == "magnitudes" or KIND == "means":
        total = tl.sum(tl.abs(values), 0)
        if WHOLE and KIND == "means":
            total = tl.div_rn(total, (end - begin).to(tl.float32))
        tl.store(parts + piece, total)
    else:
        # Comparisons that a NaN passes, so that it reaches both sums, as it does where PyTorch clamps.
        tl.store(parts + piece, tl.sum(tl.where(values < 0, 0.0, values), 0))
        tl.store(parts + count + piece, tl.sum(tl.where(values > 0, 0.0, values), 0))
        negative = tl.sum((values.to(tl.int32, bitcast=True) < 0).to(tl.int32), 0)
        tl.store(parts + 2 * count + piece, negative.to(tl.float32, bitcast=True))


@triton.jit
def _collect(parts, edges, of_group, numbers, count, many, KIND: tl.constexpr, LANES: tl.constexpr):
    """A program a group and a row: the parts of its pieces, in a fixed order, to `numbers`, (rows, many)."""
    group, row = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(of_group + group), tl.load(of_group + group + 1)
    parts += row * count
    numbers += row * many
    most = KIND == "largest" or (KIND == "spread" and row == 1)
    whole = most or row == 2
    if whole:
        totals = tl.zeros([LANES], tl.int32)
        for start in range(begin, end, LANES):
            places = start + tl.arange(0, LANES)
            found = tl.load(parts + places, mask=places < end, other=0.0).to(tl.int32, bitcast=True)
            totals = tl.where(most, tl.maximum(totals, found), totals + found)
        number = tl.where(most, tl.max(totals, 0), tl.sum(totals, 0))
        tl.store(numbers + group, number.to(tl.float32, bitcast=True))
    else:
        sums = tl.zeros([LANES], tl.float32)
        for start in range(begin, end, LANES):
            places = start + tl.arange(0, LANES)
            sums += tl.load(parts + places, mask=places < end, other=0.0)
        total = tl.sum(sums, 0)
        if KIND == "means":
            total = tl.div_rn(total, (tl.load(edges + end) - tl.load(edges + begin)).to(tl.float32))
        tl.store(numbers + group, total)


@triton.jit
def group_of(places, inside, starts, first, last, CHUNK: tl.constexpr):
    """The group in which each place lies; `first` and `last` are the groups of the tile's ends.

    By halves: a tile over rows of 64 elements has a hundred groups.
    """
    if CHUNK > 0:
        return places // CHUNK
    else:
        group = tl.zeros(places.shape, tl.int32) + first
        reach = 1
        while reach <= last - first:
            reach *= 2
        while reach > 1:
            reach //= 2
            further = tl.minimum(group + reach, last)
            begins = tl.load(starts + further, mask=inside, other=0)
            group = tl.where(inside & (begins <= places), further, group)
        return group


@triton.jit
def narrowed(values):
    """fp32 `values` rounded to bfloat16, halves to even; by whole numbers, since the interpreter cuts off."""
    bits = values.to(tl.int32, bitcast=True)
    bits = tl.where(values == values, bits + 0x7FFF + ((bits >> 16) & 1), 0x7FC00000)
    return ((bits >> 16) << 16).to(tl.float32, bitcast=True)
