"""Votes of `iwp` on a bucket: which places are important, whom all ranks' masks choose, and their values.

A program reads a few tiles of places one after the other; a byte of a mask has the flags of eight places. A layer's
places that this rank does not choose for, and places of gaps, have a threshold of -1.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.bits.blocks import Groups
from wirebench.compressors.kernels import APART, launching, on, together
from wirebench.compressors.kernels.entries import _word
from wirebench.compressors.kernels.index_codes import COUNT_BYTES, _ended, _measured
from wirebench.compressors.kernels.segments import narrowed, tiles_of
from wirebench.compressors.kernels.together import TOGETHER, meet
from wirebench.compressors.kernels.together import tiles_of as tiles_of_all

BYTES = 512
"""Bytes of a mask in a tile: for eight times as many places."""
PROGRAMS = 1024
"""Programs of a launch, at most: each counts what it finds, and adds up what those before it have found."""
GAPS = 1024
"""Bytes of a code of gaps that a program reads at once."""
PARTS = 32
"""Programs that read a layer's importance."""
NOWHERE = -1 << 60
"""No address, and no place in a message."""
FLOOR = tl.constexpr(1e-8)
"""As `importance.FLOOR`."""


class Ballot(NamedTuple):
    """What a rank chooses by.

    squares  of all weights, by group, fp32; epsilon: the share of their root mean square that a weight counts as, at
             least; 0: no limit
    rho      a place below the threshold is chosen by luck, at most with this probability; 0: never; seed: of that luck
    """

    squares: Tensor
    epsilon: float
    rho: float
    seed: int


class Found(NamedTuple):
    """flags: 1 for each place that is chosen, uint8; counts: how many each program found, int32; alarm: fp32 (2,),
    zeros.
    """

    flags: Tensor
    counts: Tensor
    alarm: Tensor


@launching
def choose(
    v: Tensor, w: Tensor, groups: Groups, ballot: Ballot, thresholds: list[float], begins: list[int | None],
    head: bytes, length: int, not_finite: int, spread: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Eight bytes of 0, then the message of a vote on v, with weights w: uint8 (8 + length,); one launch, and one copy
    to the device.

    thresholds  of each group; -1 where none of it is chosen; there it is looked for what is not finite
    begins      of each group in whose bytes there are flags: where in the message the bucket's first byte would be
    head        the message's first bytes; what is not finite makes the first `not_finite`
    spread      uint8, to which a bit for each place is written, too

    Twins: `importance.Chooser.mask` and `MaskCode.encode`.
    """
    count = len(thresholds)
    table = np.zeros(3 * count + 1, np.int64)
    table[:count] = [NOWHERE if begin is None else begin for begin in begins]
    table[count : 2 * count] = np.array(thresholds, np.float32).view(np.int32)
    table[2 * count] = ballot.seed
    # Both travel at once; what follows the table is the message.
    both = torch.empty(table.nbytes + length, dtype=torch.uint8, device=v.device)
    host = torch.from_numpy(np.frombuffer(table.tobytes() + head, np.uint8).copy())
    both[: host.numel()].copy_(host.pin_memory() if both.is_cuda else host, non_blocking=True)
    numbers, message = both[: table.nbytes].view(torch.int64), both[table.nbytes :]
    tiles = tiles_of(groups, 8 * BYTES, v.device)
    _choose[(len(tiles.first),)](
        v, w, ballot.squares, numbers, message, message if spread is None else spread, tiles.starts, tiles.first,
        tiles.last, v.numel(), count, float(ballot.epsilon), float(ballot.rho), not_finite,
        SPREAD=spread is not None, BYTES=BYTES, **APART,
    )  # fmt: skip
    return both[table.nbytes - 8 :]


@launching
def unite(like: Tensor, groups: Groups, addresses: "np.ndarray[Any, np.dtype[np.int64]]", codes: list[Tensor]) -> Found:
    """The places that any rank chose, of a vector `like` this one; one launch, and one copy to the device.

    addresses  (ranks, groups): where in memory the rank's flags of the bucket's first place would be; NOWHERE: it chose
               for none of the group, or its masks are gaps
    codes      masks as gaps, as from `index_codes.gaps`

    Twins: `MaskCode.decode` and `mask_code.places`.
    """
    ranks, count = addresses.shape
    of_codes = [(each.data_ptr(), each.numel()) for each in codes]
    table = on(like.device, torch.from_numpy(np.append(addresses, np.array([*of_codes, (0, 0)], np.int64))))
    tiles = tiles_of(groups, 8 * BYTES, like.device)
    flags = torch.empty(like.numel(), dtype=torch.uint8, device=like.device)
    each, parts = shares(len(tiles.first))
    found = Found(flags, torch.empty(parts, dtype=torch.int32, device=like.device), like.new_empty(2))
    where = tiles.starts, tiles.first, tiles.last, like.numel(), count, ranks, each, len(tiles.first)
    if not codes:
        _unite[(parts,)](table, *found, *where, BYTES=BYTES, **APART)
        return found
    many = together.programs(like.device)
    power = triton.next_power_of_2(many)
    tallies = torch.empty((2 * len(codes), power), dtype=torch.int64, device=like.device)
    _unite_gaps[(many,)](
        table, *found, tallies, table[-1:].view(torch.int32), *where, parts, len(codes),
        BYTES=BYTES, TILE=GAPS, POWER=power, **TOGETHER,
    )  # fmt: skip
    return found


@launching
def take(
    v: Tensor, velocity: Tensor | None, found: Found, count: int, narrow: bool, last: Tensor | None = None,
    step: int = 0,
) -> Tensor:  # fmt: skip
    """The `count` values of v at the places found, which become 0 there; one launch.

    velocity    becomes 0 there, too; narrow: values are rounded to bfloat16, and what that cuts off stays in v
    last, step  int32, which becomes `step` there

    Twins: `Feedback.sent_narrow` and `Tensor.index_select`.
    """
    values = v.new_empty(count)
    each, programs = shares(triton.cdiv(v.numel(), 8 * BYTES))
    _take[(programs,)](
        v, v if velocity is None else velocity, found.counts if last is None else last, found.flags, found.counts,
        values, v.numel(), each, step, MASKING=velocity is not None, NARROW=narrow, LAST=last is not None,
        TILE=8 * BYTES, PROGRAMS=triton.next_power_of_2(programs), **APART,
    )  # fmt: skip
    return values


@launching
def write(out: Tensor, found: Found, total: Tensor, divisor: float) -> None:
    """Write `total` over `divisor` to the places found, 0 elsewhere; NaN where a number is not finite; one launch.

    Twin: `places.write_average`.
    """
    each, parts = shares(triton.cdiv(out.numel(), 8 * BYTES))
    _write[(together.programs(out.device),)](
        out, found.flags, found.counts, total, found.alarm, found.alarm.view(torch.int32)[1:], out.numel(),
        total.numel(), float(divisor), each, parts, TILE=8 * BYTES, POWER=triton.next_power_of_2(parts), **TOGETHER,
    )  # fmt: skip


@launching
def moments(v: Tensor, w: Tensor, groups: Groups, ballot: Ballot) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """The sums of the importance and of its squares, fp64 (2, groups), for which the host waits after one launch.

    Twin: `Chooser.moments`.
    """
    tiles = tiles_of(groups, 8 * BYTES, v.device)
    count = len(tiles.starts) - 1
    parts = torch.empty((2, count, PARTS), dtype=torch.float64, device=v.device)
    _moments[(count, PARTS)](
        v, w, ballot.squares, tiles.starts, parts, count, float(ballot.epsilon), TILE=8 * BYTES, PARTS=PARTS, **APART
    )
    return parts.cpu().numpy().sum(2)


def shares(tiles: int) -> tuple[int, int]:
    """How many tiles a program reads, and how many programs there are."""
    each = triton.cdiv(tiles, PROGRAMS)
    return each, triton.cdiv(tiles, each)


@triton.jit
def _least(squares, group, elements, epsilon):
    """What a weight of this group counts as, at least."""
    root = tl.sqrt_rn(tl.div_rn(tl.load(squares + group), elements.to(tl.float32))) * epsilon
    least = tl.where((root > FLOOR) & (root < float("inf")), root, FLOOR)
    return tl.where(epsilon > 0.0, least, 0.0)


@triton.jit
def _choose(v, w, squares, table, message, spread, starts, firsts, lasts, numel, groups, epsilon, rho, not_finite,
            SPREAD: tl.constexpr, BYTES: tl.constexpr):  # fmt: skip
    tile = tl.program_id(0)
    byte = tile.to(tl.int64) * BYTES + tl.arange(0, BYTES)
    places = byte[:, None] * 8 + tl.arange(0, 8)[None, :]
    there = places < numel
    sizes = tl.abs(tl.load(v + places, mask=there, other=0.0))
    weights = tl.load(w + places, mask=there, other=0.0)
    luck = tl.full([BYTES, 8], 1.0, tl.float32)
    if rho > 0.0:
        drawn = tl.rand(tl.load(table + 2 * groups), places)
        luck = tl.minimum(tl.div_rn(drawn, luck * rho), 1.0)
    chosen = tl.zeros([BYTES, 8], tl.int32)
    unsound = tl.zeros([BYTES, 8], tl.int32)
    first, last = tl.load(firsts + tile), tl.load(lasts + tile)
    for group in range(first, last + 1):
        begin, end = tl.load(starts + group), tl.load(starts + group + 1)
        bits = tl.zeros([BYTES, 8], tl.int32) + tl.load(table + groups + group).to(tl.int32)
        threshold = bits.to(tl.float32, bitcast=True)
        mine = there & (places >= begin) & (places < end)
        least = threshold * _least(squares, group, end - begin, epsilon)
        bar = tl.abs(weights * threshold)
        bar = tl.where(bar < least, least, bar) * luck
        exceeds = (sizes <= bar) == 0
        chosen |= (mine & exceeds & (threshold >= 0.0)).to(tl.int32)
        unsound |= (mine & ((sizes < float("inf")) == 0) & (threshold < 0.0)).to(tl.int32)
    if tl.max(tl.max(unsound, 1), 0) > 0:
        tl.store(message, not_finite.to(tl.uint8))
    flags = tl.sum(chosen << tl.arange(0, 8)[None, :], 1).to(tl.uint8)
    if SPREAD:
        tl.store(spread + byte, flags, mask=byte * 8 < numel)
    for group in range(first, last + 1):
        begin, end = tl.load(starts + group), tl.load(starts + group + 1)
        place = byte + tl.load(table + group)
        touched = (byte * 8 < end) & (byte * 8 + 8 > begin) & (place >= 0)
        tl.store(message + place, flags, mask=touched)


@triton.jit
def _united(table, flags, starts, firsts, lasts, numel, groups, ranks, tile, BYTES: tl.constexpr):
    """Write the flags of a tile's places that are set in any rank's bits; how many are set, by byte."""
    byte = (tl.zeros([BYTES], tl.int64) + tile) * BYTES + tl.arange(0, BYTES)
    found = tl.zeros([BYTES], tl.int32)
    for group in range(tl.load(firsts + tile), tl.load(lasts + tile) + 1):
        begin, end = tl.load(starts + group), tl.load(starts + group + 1)
        touched = (byte * 8 < end) & (byte * 8 + 8 > begin)
        for rank in range(ranks):
            address = byte + tl.load(table + rank * groups + group)
            mask = address.to(tl.pointer_type(tl.uint8))
            found |= tl.load(mask, mask=touched & (address >= 0), other=0).to(tl.int32)
    places = byte[:, None] * 8 + tl.arange(0, 8)[None, :]
    chosen = tl.where(places < numel, (found[:, None] >> tl.arange(0, 8)[None, :]) & 1, 0)
    tl.store(flags + places, chosen.to(tl.uint8), mask=places < numel)
    return tl.sum(chosen, 1)


@triton.jit
def _unite(table, flags, counts, alarm, starts, firsts, lasts, numel, groups, ranks, each, tiles, BYTES: tl.constexpr):
    program = tl.program_id(0)
    if program == 0:
        tl.store(alarm + tl.arange(0, 2), tl.zeros([2], tl.float32))
    many = tl.zeros([BYTES], tl.int32)
    for tile in range(program * each, tl.minimum(program * each + each, tiles)):
        many += _united(table, flags, starts, firsts, lasts, numel, groups, ranks, tile, BYTES)
    tl.store(counts + program, tl.sum(many, 0))


@triton.jit
def _unite_gaps(table, flags, counts, alarm, tallies, arrived, starts, firsts, lasts, numel, groups, ranks, each, tiles,
                parts, codes, BYTES: tl.constexpr, TILE: tl.constexpr, POWER: tl.constexpr):  # fmt: skip
    """As `_unite`, with the places of codes of gaps. In a first phase bits are united, and each code's bytes measured;
    in a second one the codes' places are set; in a third one all are counted.
    """
    program, many = tl.program_id(0), tl.num_programs(0)
    if program == 0:
        tl.store(alarm + tl.arange(0, 2), tl.zeros([2], tl.float32))
    for tile in range(program, tiles, many):
        _united(table, flags, starts, firsts, lasts, numel, groups, ranks, tile, BYTES)
    table += ranks * groups
    for number in range(codes):
        code = tl.load(table + 2 * number).to(tl.pointer_type(tl.uint8))
        length = tl.load(table + 2 * number + 1)
        found, apart = _measured(code, length, program, tiles_of_all(length, TILE), True, TILE)
        tl.store(tallies + 2 * number * POWER + program, found)
        tl.store(tallies + (2 * number + 1) * POWER + program, apart)
    meet(arrived, 1)
    other = tl.arange(0, POWER)
    for number in range(codes):
        code = tl.load(table + 2 * number).to(tl.pointer_type(tl.uint8))
        length = tl.load(table + 2 * number + 1)
        share = tiles_of_all(length, TILE)
        found = tl.sum(tl.load(tallies + 2 * number * POWER + other, mask=other < program, other=0), 0)
        apart = tl.sum(tl.load(tallies + (2 * number + 1) * POWER + other, mask=other < program, other=0), 0)
        count = _word(code, tl.arange(0, TILE) * 0, tl.arange(0, TILE) < TILE, 4)
        for part in range(share):
            at = COUNT_BYTES + (program * share + part) * TILE + tl.arange(0, TILE)
            ends, steps = _ended(code, at, length)
            place = apart + tl.cumsum(steps, 0) - 1
            # Zeros behind the last gap, which fill the code up, have numbers above the count.
            right = (ends > 0) & (found + tl.cumsum(ends, 0) - ends < count) & (place < numel)
            tl.store(flags + place, tl.full([TILE], 1, tl.uint8), mask=right)
            found += tl.sum(ends, 0)
            apart += tl.sum(steps, 0)
    meet(arrived, 2)
    for part in range(program, parts, many):
        chosen = tl.zeros([8 * BYTES], tl.int32)
        for number in range(each):
            place = (tl.zeros([8 * BYTES], tl.int64) + part * each + number) * (8 * BYTES) + tl.arange(0, 8 * BYTES)
            chosen += tl.load(flags + place, mask=place < numel, other=0).to(tl.int32)
        tl.store(counts + part, tl.sum(chosen, 0))


@triton.jit
def _before(counts, part, PROGRAMS: tl.constexpr):
    """How many places the parts before this one have."""
    other = tl.arange(0, PROGRAMS)
    return tl.sum(tl.load(counts + other, mask=other < part, other=0).to(tl.int64), 0)


@triton.jit(do_not_specialize=["step"])
def _take(v, velocity, last, flags, counts, values, numel, each, step, MASKING: tl.constexpr, NARROW: tl.constexpr,
          LAST: tl.constexpr, TILE: tl.constexpr, PROGRAMS: tl.constexpr):  # fmt: skip
    begin = _before(counts, tl.program_id(0), PROGRAMS)
    for number in range(each):
        places = (tl.program_id(0).to(tl.int64) * each + number) * TILE + tl.arange(0, TILE)
        chosen = tl.load(flags + places, mask=places < numel, other=0).to(tl.int32)
        at = begin + tl.cumsum(chosen, 0) - chosen
        begin += tl.sum(chosen, 0)
        exact = tl.load(v + places, mask=chosen > 0, other=0.0)
        left = tl.zeros([TILE], tl.float32)
        sent = exact
        if NARROW:
            sent = narrowed(exact)
            left = exact - sent
            left = tl.where(tl.abs(left) < float("inf"), left, 0.0)
        tl.store(values + at, sent, mask=chosen > 0)
        tl.store(v + places, left, mask=chosen > 0)
        if MASKING:
            tl.store(velocity + places, tl.zeros([TILE], tl.float32), mask=chosen > 0)
        if LAST:
            tl.store(last + places, tl.zeros([TILE], tl.int32) + step, mask=chosen > 0)


@triton.jit(do_not_specialize=["count"])
def _write(out, flags, counts, total, alarm, arrived, numel, count, divisor, each, parts,
           TILE: tl.constexpr, POWER: tl.constexpr):  # fmt: skip
    """NaN to `alarm` where a number is not finite; all programs that write, write the same. Then the average."""
    program, many = tl.program_id(0), tl.num_programs(0)
    for number in range(program, tl.cdiv(count, TILE), many):
        places = (tl.zeros([TILE], tl.int64) + number) * TILE + tl.arange(0, TILE)
        values = tl.load(total + places, mask=places < count, other=0.0)
        if tl.max((tl.abs(values) < float("inf")).to(tl.int32) ^ 1, 0) > 0:
            tl.store(alarm, float("nan"))
    meet(arrived, 1)
    rest = tl.load(alarm)
    for part in range(program, parts, many):
        begin = _before(counts, part, POWER)
        for number in range(each):
            places = (tl.zeros([TILE], tl.int64) + part * each + number) * TILE + tl.arange(0, TILE)
            chosen = tl.load(flags + places, mask=places < numel, other=0).to(tl.int32)
            at = begin + tl.cumsum(chosen, 0) - chosen
            begin += tl.sum(chosen, 0)
            value = tl.load(total + at, mask=chosen > 0, other=0.0)
            value = tl.div_rn(value, tl.zeros_like(value) + divisor)
            tl.store(out + places, tl.where(chosen > 0, value, rest), mask=places < numel)


@triton.jit
def _moments(v, w, squares, starts, parts, groups, epsilon, TILE: tl.constexpr, PARTS: tl.constexpr):
    """A program every PARTS-th tile of a group."""
    group, part = tl.program_id(0), tl.program_id(1)
    begin, end = tl.load(starts + group), tl.load(starts + group + 1)
    least = _least(squares, group, end - begin, epsilon)
    sums = tl.zeros([TILE], tl.float64)
    squared = tl.zeros([TILE], tl.float64)
    for start in range(begin + part * TILE, end, PARTS * TILE):
        places = start + tl.arange(0, TILE)
        size = tl.abs(tl.load(v + places, mask=places < end, other=0.0))
        weight = tl.abs(tl.load(w + places, mask=places < end, other=1.0))
        importance = tl.div_rn(size, tl.where(weight < least, least, weight)).to(tl.float64)
        sums += importance
        squared += importance * importance
    tl.store(parts + group * PARTS + part, tl.sum(sums, 0))
    tl.store(parts + (groups + group) * PARTS + part, tl.sum(squared, 0))
