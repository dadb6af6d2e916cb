"""Regions: a vector cut into one range of places for each rank, which sums the entries that fall into its own."""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from wirebench.compressors.sparse.encoding import SparseCode


class Region(NamedTuple):
    """Places [start, stop) of a bucket."""

    start: int
    stop: int


def regions(bounds: list[int], numel: int) -> list[Region]:
    """One region for each rank; `bounds` are the places between them, ascending."""
    return [Region(start, stop) for start, stop in pairwise([0, *bounds, numel])]


def quantiles(index: Tensor, numel: int, size: int) -> Tensor:
    """The bounds that put as many of the ascending places `index` into each of `size` regions, int64, on the CPU.

    Without any place, the regions are equally long.
    """
    turns = torch.arange(1, size)
    if not index.numel():
        return turns * numel // size
    return index[(turns * index.numel() // size).to(index.device)].cpu()


def split(index: Tensor, values: Tensor, parts: list[Region], code: SparseCode) -> list[Tensor]:
    """One message for each region: the entries in it, coded by their places in the region."""
    starts = torch.tensor([part.start for part in parts[1:]], dtype=torch.int64, device=index.device)
    cuts = [0, *torch.searchsorted(index, starts).tolist(), index.numel()]
    return [
        code.encode(index[begin:end] - part.start, values[begin:end], part.stop - part.start)
        for part, (begin, end) in zip(parts, pairwise(cuts), strict=True)
    ]


def add_up(
    messages: list[Tensor], scratch: Tensor, code: SparseCode, arrived: Tensor | None = None
) -> tuple[Tensor | None, Tensor]:
    """The sums of all messages to one region: places in it, int64, ascending, and values.

    messages  each rank's, in rank order, which is the order of additions
    scratch   a vector as long as the region, which holds zeros, before and after; with kernels it holds anything
              before, the sums after, and there are values for all places: None
    arrived   with kernels a 0, int32 (1,)
    """
    if arrived is not None:
        from wirebench.compressors.kernels.entries import average

        listed = code.listed_at_once(messages, [scratch.numel()] * len(messages), arrived)
        average(scratch, messages, code.dtype, 1, listed=listed)
        return None, scratch
    entries = [code.decode(message, scratch.numel()) for message in messages]
    for index, values in entries:
        scratch.index_add_(0, index, values)
    touched = torch.cat([index for index, _ in entries]).unique()
    sums = scratch.index_select(0, touched)
    scratch.index_fill_(0, touched, 0.0)
    return touched, sums
