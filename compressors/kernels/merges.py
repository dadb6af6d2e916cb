"""The largest of the sums of two messages of chosen entries: one launch for a merge, whose programs meet."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.kernels import launching, together
from wirebench.compressors.kernels.entries import KINDS, _arriving, _below_in, _stored_bits, _value, _word, places_of
from wirebench.compressors.kernels.together import TOGETHER, meet, write_largest


@launching
def merge(
    like: Tensor, messages: Sequence[Tensor], dtype: torch.dtype, k: int, listed: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The message, uint8, with int32 places, of the `k` largest of what two messages hold in sum; and of all sums the
    places, int32 (n,), and what the message leaves of them, fp32 (n,), some of which are 0.

    like    a tensor on the device; listed: as of `entries.average`

    One launch, behind which the host waits for the message's length. Twin: `gtopk._Merger.merge_and_note`.
    """
    index, table, most = places_of(messages, dtype, (), like.device, listed)
    size = 4 + dtype.itemsize
    numel = sum(each.numel() // size for each in messages) if listed is None else 2 * most
    sums, places = torch.empty(numel, device=like.device), torch.empty(numel, dtype=torch.int32, device=like.device)
    message = torch.empty(size * k, dtype=torch.uint8, device=like.device)
    if not numel:
        return message[:0], places, sums
    many, counts = together.programs(like.device), together.zeros(like.device, 1)
    chosen, found = (torch.empty(n, dtype=t, device=like.device) for n, t in ((k, torch.int64), (1, torch.int32)))
    _merge[(many,)](
        index, messages[0], table, sums, places, chosen, found, message, counts, counts[-1:], numel, k,
        most.bit_length(), KIND=KINDS[dtype], BYTES=dtype.itemsize, TILE=together.TILE,
        POWER=triton.next_power_of_2(many), **TOGETHER,
    )  # fmt: skip
    return message[: size * found.tolist()[0]], places, sums


@triton.jit
def _add_up(index, data, table, sums, places, lane, numel, steps, KIND: tl.constexpr, BYTES: tl.constexpr):
    """Write the sums of both messages' entries, and their places, in the order of places. Lanes are the entries of one
    message, then of the other. Of a place that both have the latter's sum is 0.
    """
    first, second = tl.load(table + 2), tl.load(table + 3)
    early = lane < first
    there = lane < first + second
    entry = tl.where(early, lane, lane - first)
    others = tl.where(early, second, first)
    begin, its_begin = tl.load(table), tl.load(table + 1)
    here, beside = tl.where(early, begin, its_begin), tl.where(early, its_begin, begin)
    place = _word(index, here + 4 * entry, there, 4)
    # Of equal places the first message's comes first.
    before = _below_in(index, beside, tl.where(there, others, 0), place + tl.where(early, 0, 1), steps)
    its = tl.where(early, before, before - 1)
    known = there & (its >= 0) & (its < others)
    same = known & (_word(index, beside + 4 * its, known, 4) == place)
    values, its_values = tl.load(table + 6), tl.load(table + 7)
    mine = tl.where(early, values, its_values) + BYTES * entry
    value = _value(_word(data, mine, there, BYTES), KIND)
    more = _value(_word(data, tl.where(early, its_values, values) + BYTES * its, same, BYTES), KIND)
    total = tl.where(same, tl.where(early, value + more, 0.0), value)
    tl.store(sums + entry + before, total, mask=there)
    tl.store(places + entry + before, place, mask=there)
    behind = (there == 0) & (lane < numel)
    tl.store(sums + lane, tl.zeros_like(total), mask=behind)
    tl.store(places + lane, tl.zeros_like(place), mask=behind)


@triton.jit(do_not_specialize=["numel", "steps"])
def _merge(index, data, table, sums, places, chosen, found, message, counts, arrived, numel, k, steps,
           KIND: tl.constexpr, BYTES: tl.constexpr, TILE: tl.constexpr, POWER: tl.constexpr):  # fmt: skip
    program, many = tl.program_id(0), tl.num_programs(0)
    for number in range(program, tl.cdiv(numel, TILE), many):
        lane = (tl.zeros([TILE], tl.int64) + number) * TILE + tl.arange(0, TILE)
        _add_up(index, data, table, sums, places, lane, numel, steps, KIND, BYTES)
    meet(arrived, 1)
    total, _kth = write_largest(sums, counts, chosen, numel, k, TILE, POWER)
    if program == 0:
        tl.store(found, total)
    meet(arrived, 2)
    for start in range(program * TILE, total, many * TILE):
        entry = start + tl.arange(0, TILE)
        there = entry < total
        at = tl.load(chosen + entry, mask=there, other=0)
        value = tl.load(sums + at, mask=there, other=0.0)
        arriving = _arriving(value, KIND)
        place = tl.load(places + at, mask=there, other=0)
        bits = _stored_bits(arriving, KIND)
        for byte in tl.static_range(4):
            tl.store(message + 4 * entry + byte, ((place >> (8 * byte)) & 255).to(tl.uint8), mask=there)
        for byte in tl.static_range(BYTES):
            where = message + 4 * total + BYTES * entry + byte
            tl.store(where, ((bits >> (8 * byte)) & 255).to(tl.uint8), mask=there)
        tl.store(sums + at, value - arriving, mask=there)
