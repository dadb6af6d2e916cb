"""Exact top-k by magnitude in six launches: the k-th magnitude's bits, eleven, eleven and nine at a time, then places.
And what lies above a threshold, in two.

A magnitude's bits order as the magnitude does. Three readings count how often each value of the next bits occurs among
what agrees in those before; a fourth counts what lies above the k-th magnitude and what equals it, a fifth writes
places. Counts are whole numbers, so the order of threads does not matter.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.kernels import APART, launching

TILE, PROGRAMS = 4096, 512
"""Elements that a program reads at once, and programs, each of which reads neighbouring tiles."""
BINS = 2048
"""Values of eleven bits."""


@launching
def largest(x: Tensor, k: int, zeros: bool = False) -> tuple[Tensor, Tensor]:
    """Places of the `k` elements of `x`, fp32, that are largest by magnitude, int64 (k,), ascending; and how many were
    found, int32 (1,): fewer than `k` where fewer are not zero. Twin: `selection.top_k`.

    zeros  the first zeros are chosen, too, where fewer than `k` are not zero, so that `k` of `x.numel()` are found
    """
    counts = torch.zeros(3 * BINS + 2 * PROGRAMS, dtype=torch.int32, device=x.device)
    places, found = x.new_empty(k, dtype=torch.int64), x.new_empty(1, dtype=torch.int32)
    tiles = triton.cdiv(triton.cdiv(x.numel(), TILE), PROGRAMS)
    for level in range(3):
        _tally[(PROGRAMS,)](
            x, counts, x.numel(), k, tiles, LEVEL=level, LEAST=0 if zeros else 1, TILE=TILE, BINS=BINS, **APART
        )
    tallies = counts[3 * BINS :]
    how = {"LEAST": 0 if zeros else 1, "GIVEN": False, "TILE": TILE, "BINS": BINS, "PROGRAMS": PROGRAMS}
    _sides[(PROGRAMS,)](x, counts, tallies, x.numel(), k, tiles, **how, **APART)
    _write[(PROGRAMS,)](x, counts, tallies, places, found, x.numel(), k, tiles, **how, **APART)
    return places, found


@launching
def above(x: Tensor, limit: int) -> Tensor:
    """Places of the elements of `x`, fp32, whose magnitude's bits are above `limit`, int64, ascending.

    Two launches, between which the host waits for the number of places. Twin: `thresholds.Peaks.above`.
    """
    tallies = torch.empty(2 * PROGRAMS, dtype=torch.int32, device=x.device)
    tiles = triton.cdiv(triton.cdiv(x.numel(), TILE), PROGRAMS)
    how = {"LEAST": 1, "GIVEN": True, "TILE": TILE, "BINS": BINS, "PROGRAMS": PROGRAMS}
    _sides[(PROGRAMS,)](x, tallies, tallies, x.numel(), limit, tiles, **how, **APART)
    places = torch.empty(int(tallies[:PROGRAMS].cpu().numpy().sum()), dtype=torch.int64, device=x.device)
    if places.numel():
        _write[(PROGRAMS,)](x, tallies, tallies, places, tallies, x.numel(), limit, tiles, **how, **APART)
    return places


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


@triton.jit
def _bin(counts, k, BINS: tl.constexpr):
    """The bin of the `k`-th from above, or of the last that there is, and its rank in that bin; -1 where all are 0."""
    bins = tl.arange(0, BINS)
    many = tl.load(counts + bins)
    k = tl.minimum(k, tl.sum(many, 0))
    above = tl.sum(many, 0) - tl.cumsum(many, 0)
    here = (above < k) & (above + many >= k)
    return tl.max(tl.where(here, bins, -1), 0), k - tl.sum(tl.where(here, above, 0), 0)


@triton.jit
def _tally(x, counts, numel, k, tiles,
           LEVEL: tl.constexpr, LEAST: tl.constexpr, TILE: tl.constexpr, BINS: tl.constexpr):  # fmt: skip
    """How often each value of a level's bits occurs among what agrees in those before; of keys from LEAST on."""
    prefix = 0
    if LEVEL > 0:
        prefix, k = _bin(counts, k, BINS)
    if LEVEL > 1:
        next_bits, k = _bin(counts + BINS, k, BINS)
        prefix = prefix * BINS + next_bits
    SHIFT: tl.constexpr = 20 - 11 * LEVEL if LEVEL < 2 else 0
    MASK: tl.constexpr = BINS - 1 if LEVEL < 2 else 511
    many = tl.zeros([BINS], tl.int32)
    for number in range(tiles):
        _, keys = _keys(x, tl.program_id(0) * tiles + number, numel, TILE)
        among = keys >= LEAST
        if LEVEL == 1:
            among = among & ((keys >> 20) == prefix)
        if LEVEL == 2:
            among = among & ((keys >> 9) == prefix)
        many += tl.histogram((keys >> SHIFT) & MASK, BINS, mask=among)
    bins = tl.arange(0, BINS)
    tl.atomic_add(counts + LEVEL * BINS + bins, many, mask=many > 0, sem="relaxed")


@triton.jit
def _kth(counts, k, GIVEN: tl.constexpr, BINS: tl.constexpr):
    """The bits of the `k`-th magnitude, and how many of those that equal it are chosen; GIVEN: `k` is the bits."""
    if GIVEN:
        return k, k * 0
    first, k = _bin(counts, k, BINS)
    second, k = _bin(counts + BINS, k, BINS)
    third, k = _bin(counts + 2 * BINS, k, BINS)
    return (first * BINS + second) * 512 + third, k


@triton.jit
def _sides(x, counts, tallies, numel, k, tiles, LEAST: tl.constexpr, GIVEN: tl.constexpr,
           TILE: tl.constexpr, BINS: tl.constexpr, PROGRAMS: tl.constexpr):  # fmt: skip
    """How many of a program's elements are above the k-th magnitude, and how many equal it."""
    kth, _wanted = _kth(counts, k, GIVEN, BINS)
    above, equal = tl.zeros([TILE], tl.int32), tl.zeros([TILE], tl.int32)
    for number in range(tiles):
        _, keys = _keys(x, tl.program_id(0) * tiles + number, numel, TILE)
        above += ((keys > kth) & (keys >= LEAST)).to(tl.int32)
        equal += ((keys == kth) & (keys >= LEAST)).to(tl.int32)
    tl.store(tallies + tl.program_id(0), tl.sum(above, 0))
    tl.store(tallies + PROGRAMS + tl.program_id(0), tl.sum(equal, 0))


@triton.jit
def _write(x, counts, tallies, out, found, numel, k, tiles, LEAST: tl.constexpr, GIVEN: tl.constexpr,
           TILE: tl.constexpr, BINS: tl.constexpr, PROGRAMS: tl.constexpr):  # fmt: skip
    """The places of what is chosen, each where those before it end; places that are not found become 0."""
    kth, wanted = _kth(counts, k, GIVEN, BINS)
    programs = tl.arange(0, PROGRAMS)
    earlier = programs < tl.program_id(0)
    above = tl.load(tallies + programs)
    equal = tl.load(tallies + PROGRAMS + programs)
    equal_before = tl.sum(tl.where(earlier, equal, 0), 0)
    begin = tl.sum(tl.where(earlier, above, 0), 0) + tl.minimum(equal_before, wanted)
    total = tl.sum(above, 0) + tl.minimum(tl.sum(equal, 0), wanted)
    if not GIVEN:
        if tl.program_id(0) == 0:
            tl.store(found, total)
        for start in range(total + tl.program_id(0) * TILE, k, PROGRAMS * TILE):
            rest = start + tl.arange(0, TILE)
            tl.store(out + rest, tl.zeros([TILE], tl.int64), mask=rest < k)
    for number in range(tiles):
        places, keys = _keys(x, tl.program_id(0) * tiles + number, numel, TILE)
        alike = ((keys == kth) & (keys >= LEAST)).to(tl.int32)
        rank = equal_before + tl.cumsum(alike, 0) - alike
        chosen = (((keys > kth) & (keys >= LEAST)) | ((alike > 0) & (rank < wanted))).to(tl.int32)
        tl.store(out + begin + tl.cumsum(chosen, 0) - chosen, places, mask=chosen > 0)
        equal_before += tl.sum(alike, 0)
        begin += tl.sum(chosen, 0)
