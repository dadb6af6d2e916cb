"""Messages of chosen entries of chunks: places of 12 bits and codes of 2 bits."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.bits.packing import bytes2, bytes12
from wirebench.compressors.kernels import APART, launching, stacked
from wirebench.compressors.kernels.entries import _word

QUADS = 256
"""Four entries each, which a program writes."""
CHUNKS = 1024
"""Chunks of a layer whose sums a program reads at once."""
BINS = 4


@launching
def with_codes(
    values: Tensor, within: Tensor, starts: Tensor, firsts: Tensor, layers: Tensor, chunk: Tensor, rows: Tensor,
    k: int, sigmas: float,
) -> Tensor:  # fmt: skip
    """The message, uint8, of entries as one of four values for each layer, which leave `values`; five launches.

    within, layers, chunk  by entry: its place in its chunk, its layer, its chunk
    starts, firsts, rows   of each chunk the first element and the first entry, of each layer the first chunk; of the
                           two latter also the end
    k                      entries of a chunk, at most
    sigmas                 deviations that the bins cover

    Sums are sums of chunks, then of layers. Twin: `chunk_topk._encoded`.
    """
    many, total, chunks = rows.numel() - 1, within.numel(), starts.numel()
    head, places = 4 * BINS * many, bytes12(total)
    message = torch.empty(head + places + bytes2(total), dtype=torch.uint8, device=values.device)
    table = message[:head].view(torch.float32)
    parts, moments = values.new_empty((2 * BINS, chunks)), values.new_empty((2, many))
    codes = torch.empty(total, dtype=torch.uint8, device=values.device)
    lanes = triton.next_power_of_2(k)
    _sum[(chunks,)](values, within, starts, firsts, parts, chunks, LANES=lanes, **APART)
    _moments[(many,)](parts, rows, firsts, moments, chunks, many, CHUNKS=CHUNKS, **APART)
    _bin[(chunks,)](
        values, within, starts, firsts, layers, moments, codes, parts, chunks, many, sigmas / BINS,
        BINS=BINS, LANES=lanes, **APART,
    )  # fmt: skip
    _tables[(many,)](parts, rows, table, chunks, BINS=BINS, CHUNKS=CHUNKS, **APART)
    _write_codes[(triton.cdiv(total, 4 * QUADS),)](
        values, within, starts, layers, chunk, codes, table, message, total, head, places,
        BINS=BINS, QUADS=QUADS, **APART,
    )  # fmt: skip
    return message


@launching
def decode_codes(
    out: Tensor, messages: Sequence[Tensor], starts: Tensor, lengths: Tensor, firsts: Tensor, layers: Tensor,
    many: int, k: int, size: int,
) -> None:  # fmt: skip
    """Write to `out`, by chunks, the sum of what messages of `with_codes` hold over their number; one launch.

    many, layers  layers, and the number of each entry's. Twin: `chunk_topk._add`.
    """
    rows = stacked(messages)
    _decode[(starts.numel(),)](
        out, rows, starts, lengths, firsts, layers, rows.stride(0), len(rows), 4 * BINS * many,
        bytes12(layers.numel()), BINS=BINS, SIZE=triton.next_power_of_2(size), LANES=triton.next_power_of_2(k),
        **APART,
    )  # fmt: skip


@triton.jit
def _write12(message, pair, first, second, places):
    """Two numbers of 12 bits to the three bytes of a pair, as far as there are `places` bytes."""
    tl.store(message + 3 * pair, (first >> 4).to(tl.uint8), mask=3 * pair < places)
    both = ((first & 15) << 4) | (second >> 8)
    tl.store(message + 3 * pair + 1, both.to(tl.uint8), mask=3 * pair + 1 < places)
    tl.store(message + 3 * pair + 2, (second & 255).to(tl.uint8), mask=3 * pair + 2 < places)


@triton.jit
def _number12(message, entry, mask):
    """The number of 12 bits of each entry."""
    both = _word(message, entry // 2 * 3 + entry % 2, mask, 2)
    # Two bytes, of which the first has the higher bits of both numbers.
    return tl.where(entry % 2 == 0, ((both & 255) << 4) | (both >> 12), ((both & 15) << 8) | (both >> 8))


@triton.jit
def _chunk(values, within, starts, firsts, LANES: tl.constexpr):
    """This program's chunk: its entries' numbers, which are there, their values, and how many there are."""
    chunk = tl.program_id(0)
    first = tl.load(firsts + chunk)
    count = tl.load(firsts + chunk + 1) - first
    lane = tl.arange(0, LANES)
    there = lane < count
    at = tl.load(starts + chunk) + tl.load(within + first + lane, mask=there, other=0)
    return first + lane, there, tl.load(values + at, mask=there, other=0.0), count


@triton.jit
def _sum(values, within, starts, firsts, parts, chunks, LANES: tl.constexpr):
    """Of each chunk the sum, and the squares of the distances from its mean."""
    _, there, found, count = _chunk(values, within, starts, firsts, LANES)
    total = tl.sum(found, 0)
    away = tl.where(there, found - tl.div_rn(total, count.to(tl.float32)), 0.0)
    tl.store(parts + tl.program_id(0), total)
    tl.store(parts + chunks + tl.program_id(0), tl.sum(away * away, 0))


@triton.jit
def _moments(parts, rows, firsts, moments, chunks, many, CHUNKS: tl.constexpr):
    """Of each layer the mean and the standard deviation."""
    layer = tl.program_id(0)
    begin, end = tl.load(rows + layer), tl.load(rows + layer + 1)
    count = (tl.load(firsts + end) - tl.load(firsts + begin)).to(tl.float32)
    totals = tl.zeros([CHUNKS], tl.float32)
    for start in range(begin, end, CHUNKS):
        chunk = start + tl.arange(0, CHUNKS)
        totals += tl.load(parts + chunk, mask=chunk < end, other=0.0)
    mean = tl.div_rn(tl.sum(totals, 0), count)
    squares = tl.zeros([CHUNKS], tl.float32)
    for start in range(begin, end, CHUNKS):
        chunk = start + tl.arange(0, CHUNKS)
        there = chunk < end
        last = tl.load(firsts + chunk + 1, mask=there, other=1)
        entries = (last - tl.load(firsts + chunk, mask=there, other=0)).to(tl.float32)
        away = tl.div_rn(tl.load(parts + chunk, mask=there, other=0.0), entries) - mean
        within = tl.load(parts + chunks + chunk, mask=there, other=0.0)
        squares += tl.where(there, within + entries * (away * away), 0.0)
    tl.store(moments + layer, mean)
    tl.store(moments + many + layer, tl.sqrt_rn(tl.div_rn(tl.sum(squares, 0), count)))


@triton.jit
def _bin(values, within, starts, firsts, layers, moments, codes, parts, chunks, many, share,
         BINS: tl.constexpr, LANES: tl.constexpr):  # fmt: skip
    """The code of each entry, and of each chunk the sums and the numbers of what is in each bin."""
    entry, there, found, _ = _chunk(values, within, starts, firsts, LANES)
    layer = tl.load(layers + tl.load(firsts + tl.program_id(0)))
    width = tl.load(moments + many + layer) * share
    width = tl.where(width < 1e-38, 1e-38, width)
    bins = tl.div_rn(found - tl.load(moments + layer), tl.zeros_like(found) + width) + BINS / 2
    # Out of reach of rounding, which is to the nearest, halves to even; NaN has the first.
    bins = tl.where(bins > 0, tl.where(bins < BINS - 1, bins, BINS - 1.0), 0.0)
    code = ((bins + 12582912.0) - 12582912.0).to(tl.int32)
    tl.store(codes + entry, code.to(tl.uint8), mask=there)
    for number in tl.static_range(BINS):
        here = there & (code == number)
        tl.store(parts + number * chunks + tl.program_id(0), tl.sum(tl.where(here, found, 0.0), 0))
        count = tl.sum(here.to(tl.int32), 0).to(tl.float32)
        tl.store(parts + (BINS + number) * chunks + tl.program_id(0), count)


@triton.jit
def _tables(parts, rows, table, chunks, BINS: tl.constexpr, CHUNKS: tl.constexpr):
    """The mean of each layer's bins."""
    layer = tl.program_id(0)
    begin, end = tl.load(rows + layer), tl.load(rows + layer + 1)
    for number in tl.static_range(BINS):
        totals = tl.zeros([CHUNKS], tl.float32)
        counts = tl.zeros([CHUNKS], tl.float32)
        for start in range(begin, end, CHUNKS):
            chunk = start + tl.arange(0, CHUNKS)
            totals += tl.load(parts + number * chunks + chunk, mask=chunk < end, other=0.0)
            counts += tl.load(parts + (BINS + number) * chunks + chunk, mask=chunk < end, other=0.0)
        count = tl.sum(counts, 0)
        tl.store(table + BINS * layer + number, tl.div_rn(tl.sum(totals, 0), tl.where(count < 1, 1.0, count)))


@triton.jit
def _write_codes(values, within, starts, layers, chunk, codes, table, message, total, head, places,
                 BINS: tl.constexpr, QUADS: tl.constexpr):  # fmt: skip
    """A program four times QUADS entries: places, codes, and what rounding leaves of the values."""
    quad = tl.program_id(0).to(tl.int64) * QUADS + tl.arange(0, QUADS)
    byte = tl.zeros([QUADS], tl.int32)
    for half in tl.static_range(2):
        numbers = tl.zeros([QUADS], tl.int32)
        for odd in tl.static_range(2):
            entry = 4 * quad + 2 * half + odd
            there = entry < total
            place = tl.load(within + entry, mask=there, other=0)
            code = tl.load(codes + entry, mask=there, other=0).to(tl.int32)
            at = tl.load(starts + tl.load(chunk + entry, mask=there, other=0), mask=there, other=0) + place
            layer = tl.load(layers + entry, mask=there, other=0)
            left = tl.load(values + at, mask=there, other=0.0) - tl.load(table + BINS * layer + code)
            tl.store(values + at, tl.where(tl.abs(left) < float("inf"), left, 0.0), mask=there)
            numbers = numbers | (place.to(tl.int32) << (12 * (1 - odd)))
            byte = byte | (code << (2 * (2 * half + odd)))
        _write12(message + head, 2 * quad + half, numbers >> 12, numbers & 4095, places)
    tl.store(message + head + places + quad, byte.to(tl.uint8), mask=4 * quad < total)


@triton.jit
def _decode(out, messages, starts, lengths, firsts, layers, distance, ranks, head, places,
            BINS: tl.constexpr, SIZE: tl.constexpr, LANES: tl.constexpr):  # fmt: skip
    """A program a chunk, to which it adds each message's entries in turn."""
    chunk = tl.program_id(0)
    begin, first = tl.load(starts + chunk), tl.load(firsts + chunk)
    own = out + begin + tl.arange(0, SIZE)
    inside = tl.arange(0, SIZE) < tl.load(lengths + chunk)
    tl.store(own, tl.zeros([SIZE], tl.float32), mask=inside)
    there = tl.arange(0, LANES) < tl.load(firsts + chunk + 1) - first
    entry = first + tl.arange(0, LANES)
    layer = tl.load(layers + first)
    message = messages
    for _ in range(ranks):
        tl.debug_barrier()
        at = out + begin + _number12(message + head, entry, there)
        code = (_word(message + head + places, entry // 4, there, 1) >> (2 * (entry % 4)).to(tl.int32)) & 3
        value = _word(message, 4 * (BINS * layer + code), there, 4).to(tl.float32, bitcast=True)
        tl.store(at, tl.load(at, mask=there, other=0.0) + value, mask=there)
        message += distance
    tl.debug_barrier()
    total = tl.load(own, mask=inside, other=0.0)
    tl.store(own, tl.div_rn(total, tl.zeros_like(total) + ranks), mask=inside)
