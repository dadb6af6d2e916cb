"""What lies above a threshold, in two launches: how many, and where. The largest of a vector are together.py's.

A magnitude's bits order as the magnitude does.
"""

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.kernels import APART, launching

TILE, PROGRAMS = 4096, 512
"""Elements that a program reads at once, and programs, each of which reads neighbouring tiles."""


@launching
def above(x: Tensor, limit: int) -> Tensor:
    """Places of the elements of `x`, fp32, whose magnitude's bits are above `limit`, int64, ascending.

    Two launches, between which the host waits for the number of places. Twin: `thresholds.Peaks.above`.
    """
    tallies = torch.empty(PROGRAMS, dtype=torch.int32, device=x.device)
    tiles = triton.cdiv(triton.cdiv(x.numel(), TILE), PROGRAMS)
    _count[(PROGRAMS,)](x, tallies, x.numel(), limit, tiles, TILE=TILE, **APART)
    places = torch.empty(int(tallies.cpu().numpy().sum()), dtype=torch.int64, device=x.device)
    if places.numel():
        _write[(PROGRAMS,)](x, tallies, places, x.numel(), limit, tiles, TILE=TILE, PROGRAMS=PROGRAMS, **APART)
    return places


@launching
def sums(x: Tensor) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """The sum of `x`, fp32, and of its squares, fp64 (2,), for which the host waits after one launch."""
    parts = torch.empty((2, PROGRAMS), dtype=torch.float64, device=x.device)
    tiles = triton.cdiv(triton.cdiv(x.numel(), TILE), PROGRAMS)
    _sums[(PROGRAMS,)](x, parts, x.numel(), tiles, TILE=TILE, PROGRAMS=PROGRAMS, **APART)
    return parts.cpu().numpy().sum(1)


@triton.jit
def _sums(x, parts, numel, tiles, TILE: tl.constexpr, PROGRAMS: tl.constexpr):
    total = tl.zeros([TILE], tl.float64)
    squares = tl.zeros([TILE], tl.float64)
    for number in range(tiles):
        places = (tl.program_id(0).to(tl.int64) * tiles + number) * TILE + tl.arange(0, TILE)
        values = tl.load(x + places, mask=places < numel, other=0.0).to(tl.float64)
        total += values
        squares += values * values
    tl.store(parts + tl.program_id(0), tl.sum(total, 0))
    tl.store(parts + PROGRAMS + tl.program_id(0), tl.sum(squares, 0))


@triton.jit
def _key(values):
    """The bits of the magnitudes of fp32 `values`; NaNs are alike."""
    return tl.minimum(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0x7F800001)


@triton.jit
def _keys(x, tile, numel, TILE: tl.constexpr):
    """Places of a tile, and the bits of their magnitudes; -1 outside."""
    places = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    values = tl.load(x + places, mask=places < numel, other=0.0)
    return places, tl.where(places < numel, _key(values), -1)


@triton.jit(do_not_specialize=["limit"])
def _count(x, tallies, numel, limit, tiles, TILE: tl.constexpr):
    """How many of a program's elements are above the limit."""
    above = tl.zeros([TILE], tl.int32)
    for number in range(tiles):
        _, keys = _keys(x, tl.program_id(0) * tiles + number, numel, TILE)
        above += (keys > limit).to(tl.int32)
    tl.store(tallies + tl.program_id(0), tl.sum(above, 0))


@triton.jit(do_not_specialize=["limit"])
def _write(x, tallies, out, numel, limit, tiles, TILE: tl.constexpr, PROGRAMS: tl.constexpr):
    """The places of what is above, each where those before it end."""
    programs = tl.arange(0, PROGRAMS)
    above = tl.load(tallies + programs)
    begin = tl.sum(tl.where(programs < tl.program_id(0), above, 0), 0)
    for number in range(tiles):
        places, keys = _keys(x, tl.program_id(0) * tiles + number, numel, TILE)
        chosen = (keys > limit).to(tl.int32)
        tl.store(out + begin + tl.cumsum(chosen, 0) - chosen, places, mask=chosen > 0)
        begin += tl.sum(chosen, 0)
