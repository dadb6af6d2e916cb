"""What lies above a threshold, as a message for each region of a vector (`sparse/regions.py`)."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.kernels import APART, launching, together
from wirebench.compressors.kernels.entries import (
    KINDS,
    LANES,
    _arriving,
    _below_in,
    _stored_bits,
    _table,
    _word,
    places_of,
)
from wirebench.compressors.kernels.index_codes import (
    COUNT_BYTES,
    MAX_GAP_BYTES,
    _bytes_of,
    _later,
    _write_ends,
    _write_septets,
)
from wirebench.compressors.kernels.selection import _key
from wirebench.compressors.kernels.together import TOGETHER, meet
from wirebench.utils.device_tables import device_table

TILE, PROGRAMS = 2048, 512
"""Elements that a program reads at once, and programs, at most."""
LIMITS = 6
WORD = 32
"""Places in a word of a bitmap; a region's programs begin at a multiple of them."""


class Above:
    """How many elements of each region of `x`, fp32, have a magnitude whose bits are above each limit.

    starts  where each region begins, and where the last one ends
    limits  LIMITS of them, or one
    counts  int64 (limits, regions), on the host, which waits for it after one launch
    """

    counts: "np.ndarray[Any, np.dtype[np.int64]]"

    def __init__(self, x: Tensor, starts: Sequence[int], limits: Sequence[int]) -> None:
        self.x, self.limits, many = x, list(limits), len(starts) - 1
        self.starts, self.share = list(starts), max(PROGRAMS // many, 1)
        self.edges = _edges(tuple(starts), self.share, x.device)
        self.tallies = torch.empty((len(limits), many * self.share), dtype=torch.int32, device=x.device)
        _launch_count(x, self.edges, self.tallies, self.limits)
        tallies = self.tallies.cpu().numpy().astype(np.int64)
        self.counts = tallies.reshape(len(limits), many, self.share).sum(2)

    def messages(
        self, number: int, dtype: torch.dtype, indices: str = "int32", rest: Tensor | None = None,
        arrived: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, list[Tensor]]:  # fmt: skip
        """What is above the limit of this number, ascending, in one launch: places, int64; values as they arrive, fp32;
        and a message for each region, of places in it. What rounding cuts off is added to `rest`, a vector like `x`.

        indices  how places are coded (`sparse/encoding.py`); arrived: for delta int32 (1,), a 0
        """
        counts, x = self.counts[number].tolist(), self.x
        bytes_of_codes = self._code_bytes(counts, indices)
        # Words of codes lie at multiples of 4 bytes.
        lengths = [code + dtype.itemsize * n for code, n in zip(bytes_of_codes, counts, strict=True)]
        room = lengths if indices == "int32" else [-(-each // 4) * 4 for each in lengths]
        offsets = [0, *accumulate(room)]
        message = torch.empty(offsets[-1], dtype=torch.uint8, device=x.device)
        index, arriving = torch.empty(sum(counts), dtype=torch.int64, device=x.device), x.new_empty(sum(counts))
        table = _table(tuple(offsets[:-1]), tuple(bytes_of_codes), (0,) * len(counts), x.device)
        result = index, arriving, message, rest
        if indices == "delta":
            assert arrived is not None
            used = _launch_gaps(
                x, self.edges, self.tallies[number], table, result, self.limits[number], self.share, dtype, arrived
            )
            lengths = [code + dtype.itemsize * n for code, n in zip(used, counts, strict=True)]
        elif offsets[-1]:
            _launch_write(
                x, self.edges, self.tallies[number], table, result, self.limits[number], self.share, dtype,
                indices == "bitmap",
            )  # fmt: skip
        return index, arriving, [message[at : at + n] for at, n in zip(offsets, lengths, strict=False)]

    def _code_bytes(self, counts: list[int], indices: str) -> list[int]:
        """The bytes of each region's code; with `delta` they are no more than that."""
        if indices == "bitmap":
            return [-(-(stop - start) // WORD) * 4 for start, stop in pairwise(self.starts)]
        return [4 * n if indices == "int32" else 8 + MAX_GAP_BYTES.value * n for n in counts]


@launching
def keep_rest_of(
    residual: Tensor, index: Tensor, arriving: Tensor, messages: Sequence[Tensor], bases: Sequence[int],
    dtype: torch.dtype, listed: tuple[Tensor, Tensor] | None = None,
) -> None:  # fmt: skip
    """Take `arriving` out of `residual` at those places of `index` that a message has; one launch.

    bases   places that each message's begin from, ascending
    listed  as of `entries.average`
    """
    if index.numel():
        data, table, most = places_of(messages, dtype, bases, residual.device, listed)
        _keep_rest_of[(triton.cdiv(index.numel(), LANES),)](
            residual, index, arriving, data, table, index.numel(), len(messages), most.bit_length(),
            LANES=LANES, **APART,
        )  # fmt: skip


@device_table(maxsize=256)
def _edges(starts: tuple[int, ...], share: int, device: torch.device) -> Tensor:
    """Where each program begins, of which a region has `share`, and where the last one ends."""
    parts = [a + np.linspace(0, -(-(b - a) // WORD), share, endpoint=False, dtype=np.int64) * WORD
             for a, b in pairwise(starts)]  # fmt: skip
    return torch.from_numpy(np.concatenate([*parts, np.array(starts[-1:])])).to(device)


@launching
def _launch_count(x: Tensor, edges: Tensor, tallies: Tensor, limits: list[int]) -> None:
    limits = limits + limits[:1] * (LIMITS - len(limits))
    _count[(tallies.shape[1],)](x, edges, tallies, *limits, tallies.shape[1], MANY=len(tallies) > 1, TILE=TILE, **APART)


Result = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""Where places go, values, messages, and what rounding cuts off."""


@launching
def _launch_write(
    x: Tensor, edges: Tensor, tallies: Tensor, table: Tensor, result: Result, limit: int, share: int,
    dtype: torch.dtype, bitmap: bool,
) -> None:  # fmt: skip
    index, arriving, message, rest = result
    _write_messages[(len(tallies),)](
        x, edges, tallies, table, index, arriving, message, x if rest is None else rest, limit, share, len(tallies),
        BITMAP=bitmap, KIND=KINDS[dtype], BYTES=dtype.itemsize, REST=rest is not None, TILE=TILE,
        PROGRAMS=triton.next_power_of_2(len(tallies)), **APART,
    )  # fmt: skip


@launching
def _launch_gaps(
    x: Tensor, edges: Tensor, tallies: Tensor, table: Tensor, result: Result, limit: int, share: int,
    dtype: torch.dtype, arrived: Tensor,
) -> list[int]:  # fmt: skip
    """Returns the bytes of each region's code, for which the host waits."""
    index, arriving, message, rest = result
    programs, regions = len(tallies), len(tallies) // share
    power = triton.next_power_of_2(programs)
    found, used = (torch.empty(n, dtype=torch.int64, device=x.device) for n in (3 * power, regions))
    _write_gaps_of[(together.programs(x.device),)](
        x, edges, tallies, table, found, used, arrived, index, arriving, message, x if rest is None else rest, limit,
        share, programs, regions, KIND=KINDS[dtype], BYTES=dtype.itemsize, REST=rest is not None, TILE=TILE,
        PROGRAMS=power, **TOGETHER,
    )  # fmt: skip
    return [int(each) for each in used.tolist()]


@triton.jit(do_not_specialize=["limit", "second", "third", "fourth", "fifth", "sixth"])
def _count(x, edges, tallies, limit, second, third, fourth, fifth, sixth, programs,
           MANY: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    """A program's number of elements above each limit, to `tallies`, (limits, programs)."""
    program = tl.program_id(0)
    end = tl.load(edges + program + 1)
    counts = tl.zeros([TILE], tl.int32)
    counts_2, counts_3, counts_4, counts_5, counts_6 = counts, counts, counts, counts, counts
    for start in range(tl.load(edges + program), end, TILE):
        place = start + tl.arange(0, TILE)
        key = _key(tl.load(x + place, mask=place < end, other=0.0))
        counts += (key > limit).to(tl.int32)
        if MANY:
            counts_2 += (key > second).to(tl.int32)
            counts_3 += (key > third).to(tl.int32)
            counts_4 += (key > fourth).to(tl.int32)
            counts_5 += (key > fifth).to(tl.int32)
            counts_6 += (key > sixth).to(tl.int32)
    tl.store(tallies + program, tl.sum(counts, 0))
    if MANY:
        tl.store(tallies + programs + program, tl.sum(counts_2, 0))
        tl.store(tallies + 2 * programs + program, tl.sum(counts_3, 0))
        tl.store(tallies + 3 * programs + program, tl.sum(counts_4, 0))
        tl.store(tallies + 4 * programs + program, tl.sum(counts_5, 0))
        tl.store(tallies + 5 * programs + program, tl.sum(counts_6, 0))


@triton.jit
def _write_entries(place, value, chosen, at, index, arrivals, message, rest,
                   KIND: tl.constexpr, BYTES: tl.constexpr, REST: tl.constexpr):  # fmt: skip
    """The places and values of a tile, from number `at` on; `message` is where the value of number 0 would be."""
    arriving = _arriving(value, KIND)
    tl.store(index + at, place, mask=chosen > 0)
    tl.store(arrivals + at, arriving, mask=chosen > 0)
    bits = _stored_bits(arriving, KIND)
    for byte in tl.static_range(BYTES):
        tl.store(message + BYTES * at + byte, ((bits >> (8 * byte)) & 255).to(tl.uint8), mask=chosen > 0)
    if REST:
        left = value - arriving
        left = tl.where(tl.abs(left) < float("inf"), left, 0.0)
        tl.store(rest + place, tl.load(rest + place, mask=chosen > 0, other=0.0) + left, mask=chosen > 0)


@triton.jit(do_not_specialize=["limit"])
def _write_messages(x, edges, tallies, table, index, arrivals, message, rest, limit, share, programs,
                    BITMAP: tl.constexpr, KIND: tl.constexpr, BYTES: tl.constexpr, REST: tl.constexpr,
                    TILE: tl.constexpr, PROGRAMS: tl.constexpr):  # fmt: skip
    program = tl.program_id(0)
    region, head = program // share, program // share * share
    each = tl.arange(0, PROGRAMS)
    found = tl.load(tallies + each, mask=each < programs, other=0).to(tl.int64)
    before = tl.sum(tl.where(each < program, found, 0), 0)
    cut = tl.sum(tl.where(each < head, found, 0), 0)
    base = tl.load(edges + head)
    end = tl.load(edges + program + 1)
    message += tl.load(table + region)
    values = message + tl.load(table + programs // share + region) - BYTES * cut
    for start in range(tl.load(edges + program), end, TILE):
        place = start + tl.arange(0, TILE)
        value = tl.load(x + place, mask=place < end, other=0.0)
        chosen = (_key(value) > limit).to(tl.int32)
        at = before + tl.cumsum(chosen, 0) - chosen
        if BITMAP:
            bits = tl.sum(tl.reshape(chosen, [TILE // 8, 8]) << tl.arange(0, 8)[None, :], 1)
            byte = (start - base) // 8 + tl.arange(0, TILE // 8)
            tl.store(message + byte, bits.to(tl.uint8), mask=byte < (end - base + 31) // 32 * 4)
        else:
            within = (place - base).to(tl.int32)
            for byte in tl.static_range(4):
                where = message + 4 * (at - cut) + byte
                tl.store(where, ((within >> (8 * byte)) & 255).to(tl.uint8), mask=chosen > 0)
        _write_entries(place, value, chosen, at, index, arrivals, values, rest, KIND, BYTES, REST)
        before += tl.sum(chosen, 0)


@triton.jit
def _chosen(x, begin, start, end, last, limit, TILE: tl.constexpr):
    """Of a tile of the places from `begin` on: each place, its value, whether that is above the limit, and the place
    before it, from `begin` on, of which that is true; `last` if the tile has none.
    """
    place = start + tl.arange(0, TILE)
    value = tl.load(x + place, mask=place < end, other=0.0)
    near = (place > begin) & (place <= end)
    before = _key(tl.load(x + place - 1, mask=near, other=0.0)) > limit
    before = tl.associative_scan(tl.where(before, place - 1, -1), 0, _later)
    return place, value, _key(value) > limit, tl.maximum(before, last)


@triton.jit(do_not_specialize=["limit"])
def _write_gaps_of(x, edges, tallies, table, found, used, arrived, index, arrivals, message, rest, limit, share,
                   programs, regions, KIND: tl.constexpr, BYTES: tl.constexpr, REST: tl.constexpr, TILE: tl.constexpr,
                   PROGRAMS: tl.constexpr):  # fmt: skip
    """As `_write_messages`, by fewer programs, which meet once; each stretch between two edges is one's.

    found  of each stretch its first and its last place above the limit, and the bytes of all gaps but the first
    """
    for stretch in range(tl.program_id(0), programs, tl.num_programs(0)):
        begin, end = tl.load(edges + stretch), tl.load(edges + stretch + 1)
        first, last, size = end, begin * 0 - 1, begin * 0
        for start in range(begin, end, TILE):
            place, _value, here, before = _chosen(x, begin, start, end, last, limit, TILE)
            first = tl.minimum(first, tl.min(tl.where(here, place, first), 0))
            last = tl.maximum(last, tl.max(tl.where(here, place, -1), 0))
            size += tl.sum(_bytes_of(place - before - 1, here & (before >= 0)).to(tl.int64), 0)
        tl.store(found + stretch, first)
        tl.store(found + PROGRAMS + stretch, last)
        tl.store(found + 2 * PROGRAMS + stretch, size)
    meet(arrived, 1)
    each = tl.arange(0, PROGRAMS)
    counts = tl.load(tallies + each, mask=each < programs, other=0).to(tl.int64)
    firsts = tl.load(found + each, mask=each < programs, other=0)
    sizes = tl.load(found + 2 * PROGRAMS + each, mask=each < programs, other=0)
    for stretch in range(tl.program_id(0), programs, tl.num_programs(0)):
        region, head = stretch // share, stretch // share * share
        mine = (each >= head) & (each < head + share)
        base = tl.load(edges + head)
        lasts = tl.load(found + PROGRAMS + each - 1, mask=mine & (each > head), other=-1)
        lasts = tl.maximum(tl.associative_scan(lasts, 0, _later), base - 1)
        lengths = tl.where(mine, sizes + _bytes_of(firsts - lasts - 1, counts > 0), 0)
        code = message + tl.load(table + region)
        end = COUNT_BYTES + tl.sum(lengths, 0)
        full = (end + 3) // 4 * 4
        if stretch == head:
            _write_ends(code, tl.sum(tl.where(mine, counts, 0), 0), end, full)
            tl.store(used + region, full)
        byte = COUNT_BYTES + tl.sum(tl.where(each < stretch, lengths, 0), 0)
        number = tl.sum(tl.where(each < stretch, counts, 0), 0)
        values = code + full - BYTES * tl.sum(tl.where(each < head, counts, 0), 0)
        begin, end = tl.load(edges + stretch), tl.load(edges + stretch + 1)
        last = tl.sum(tl.where(each == stretch, lasts, 0), 0)
        for start in range(begin, end, TILE):
            place, value, here, before = _chosen(x, begin, start, end, last, limit, TILE)
            chosen = here.to(tl.int32)
            gap = place - before - 1
            size = _bytes_of(gap, here)
            _write_septets(code, byte + tl.cumsum(size, 0) - size, gap, size)
            at = number + tl.cumsum(chosen, 0) - chosen
            _write_entries(place, value, chosen, at, index, arrivals, values, rest, KIND, BYTES, REST)
            byte += tl.sum(size, 0)
            number += tl.sum(chosen, 0)
            last = tl.maximum(last, tl.max(tl.where(here, place, -1), 0))


@triton.jit(do_not_specialize=["count", "steps"])
def _keep_rest_of(residual, index, arrivals, data, table, count, ranks, steps, LANES: tl.constexpr):
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    there = lane < count
    at = tl.load(index + lane, mask=there, other=0)
    rank = at * 0 - 1
    for number in range(ranks):
        rank += (tl.load(table + 2 * ranks + number) <= at).to(tl.int64)
    message, many = tl.load(table + rank), tl.load(table + ranks + rank)
    wanted = at - tl.load(table + 2 * ranks + rank)
    near = _below_in(data, message, many, wanted, steps)
    found = there & (near < many)
    found = found & (_word(data, message + 4 * near, found, 4) == wanted)
    left = tl.load(residual + at, mask=found, other=0.0) - tl.load(arrivals + lane, mask=found, other=0.0)
    tl.store(residual + at, tl.where(tl.abs(left) < float("inf"), left, 0.0), mask=found)
