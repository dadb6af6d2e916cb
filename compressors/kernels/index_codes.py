"""Codes of ascending places, made and read: a bit for each place of a vector, or the gaps between the places.

sparse/encoding.py has both; its functions are the twins. A program reads a few tiles one after the other, and adds up
what those before it have found.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.kernels import APART, launching, together
from wirebench.compressors.kernels.entries import LANES, _below, _table
from wirebench.compressors.kernels.together import TOGETHER, meet, tiles_of

TILE, PROGRAMS = 1024, 512
"""Entries, or bytes, that a program reads at once, and programs of a launch, at most."""
WORDS = 1024
"""Words of 32 places that a program writes."""
COUNT_BYTES, GAP_BITS, MAX_GAP_BYTES = tl.constexpr(4), tl.constexpr(7), tl.constexpr(5)
"""As in sparse/encoding.py."""
FULL, LOW = tl.constexpr(128), tl.constexpr(127)
"""A byte below FULL ends a gap; LOW are a byte's bits of a gap."""


@launching
def bitmaps(places: Tensor, counts: Sequence[int], numel: int, more: int = 0) -> Tensor:
    """A bit for each of `numel` places, uint8 (rows, bytes), a multiple of 4 bytes; one launch.

    places  int32 or int64 (rows, most): ascending, as many of a row as `counts` says
    more    bytes that follow, of one row, and are not written
    """
    rows, words = len(counts), triton.cdiv(numel, 32)
    code = torch.empty(rows * 4 * words + more, dtype=torch.uint8, device=places.device)
    table = _table((0,) * rows, (0,) * rows, tuple(counts), places.device)
    _bits[(max(triton.cdiv(words, WORDS), 1), rows)](
        places, table, code[: rows * 4 * words].view(torch.int32), rows, words, places.stride(0),
        max(counts).bit_length(), WORDS=WORDS, LANES=LANES, **APART,
    )  # fmt: skip
    return code if more else code.view(rows, -1)


@launching
def gaps(index: Tensor, more: int = 0) -> Tensor:
    """The gaps between the places `index`, int32 or int64, and their number before them, uint8; two launches.

    Between them the host waits for the code's length. more: bytes that follow, and are not written
    """
    each, programs = _shares(index.numel())
    totals = torch.empty(programs, dtype=torch.int32, device=index.device)
    _measure_gaps[(programs,)](index, totals, index.numel(), each, TILE=TILE, **APART)
    length = 4 * triton.cdiv(4 + int(totals.cpu().numpy().sum()), 4)
    code = torch.empty(length + more, dtype=torch.uint8, device=index.device)
    _write_gaps[(programs,)](
        index, totals, code, index.numel(), each, length, TILE=TILE, POWER=triton.next_power_of_2(programs), **APART
    )
    return code


@launching
def gaps_at_once(index: Tensor, arrived: Tensor) -> Tensor:
    """Four bytes of 1, then what `gaps` gives; one launch, behind which the host waits for the code's length.

    arrived  int32 (1,), a 0
    """
    many, count = together.programs(index.device), index.numel()
    totals = torch.empty(many + 1, dtype=torch.int64, device=index.device)
    code = torch.empty(4 + 4 + MAX_GAP_BYTES.value * count + 4, dtype=torch.uint8, device=index.device)
    power = triton.next_power_of_2(many)
    _gaps_at_once[(many,)](index, totals, code, arrived, count, TILE=TILE, POWER=power, **TOGETHER)
    return code[: totals.tolist()[-1]]


@launching
def gaps_of_bits(
    bits: Tensor, numel: int, code: Tensor, arrived: Tensor, length: Tensor, least: int, form: Tensor
) -> None:  # fmt: skip
    """Write the gaps between the places whose bits are set, of `numel`, and their number before them to `code`, uint8
    (numel + 8,), as `gaps` does, and the code's length to `length`, int32 (1,); one launch.

    bits     uint8, a bit for each place
    arrived  int32 (1,), a 0
    least    bytes: a code that is no shorter is not written
    form     uint8 (1,): where it is written, a 0 there becomes 1
    """
    assert code.numel() >= numel + 8, "a place takes no more bytes than its gap has places"
    many = together.programs(bits.device)
    power = triton.next_power_of_2(many)
    found = torch.empty((4, power), dtype=torch.int64, device=bits.device)
    _gaps_of_bits[(many,)](bits, code, found, arrived, length, form, numel, least, TILE=TILE, POWER=power, **TOGETHER)


@launching
def places(like: Tensor, codes: Sequence[Tensor], counts: Sequence[int] | None, as_gaps: bool) -> Tensor:
    """The places that codes on the device of `like` have, int32 (codes, most), a row for each; two launches.

    counts  of each code's places; None: the host waits for them between the launches
    """
    begins = tuple(each.data_ptr() - codes[0].data_ptr() if each.numel() else 0 for each in codes)
    lengths, rows = tuple(each.numel() for each in codes), len(codes)
    table = _table(begins, lengths, tuple(counts or lengths), like.device)
    each, programs = _shares(max(lengths))
    tallies = torch.empty((2, rows, programs), dtype=torch.int64, device=like.device)
    how = {"GAPS": as_gaps, "TILE": TILE, "POWER": triton.next_power_of_2(programs), **APART}
    _places[(programs, rows)](codes[0], table, tallies, tallies, rows, each, 0, WRITE=False, **how)
    if counts is None:
        assert not as_gaps, "gaps begin with their number"
        counts = tallies[0].cpu().numpy().sum(1).tolist()
    out = torch.empty((rows, max(counts)), dtype=torch.int32, device=like.device)
    if out.numel():
        _places[(programs, rows)](codes[0], table, tallies, out, rows, each, out.shape[1], WRITE=True, **how)
    return out


@launching
def listed(
    arrived: Tensor, messages: Sequence[Tensor], value_bytes: int, heads: Sequence[int] | None,
    bases: Sequence[int] = (),
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The places that messages' codes have, int32 (messages, most), a row for each; and a table of the messages as
    `entries.average` reads it. One launch, for which the host does not wait.

    arrived  int32 (1,), a 0
    heads    bytes of each message's code, which is a bitmap; None: codes are gaps
    bases    the place from which each message's places count; by default 0
    """
    first, rows, device = messages[0].data_ptr(), len(messages), arrived.device
    begins = tuple(each.data_ptr() - first if each.numel() else 0 for each in messages)
    lengths = tuple(each.numel() for each in messages)
    codes = tuple(heads) if heads is not None else (0,) * rows
    given = _table(begins, lengths, codes, device, tuple(bases) or (0,) * rows)
    # A place takes a byte at least, and a value.
    counts = [(n - code) // (value_bytes + (heads is None)) for n, code in zip(lengths, codes, strict=True)]
    many, most = together.programs(device), max(*counts, 1)
    power = triton.next_power_of_2(many)
    out, table = (torch.empty(shape, dtype=dtype, device=device) for shape, dtype in (
        ((rows, most), torch.int32), ((4, rows), torch.int64),
    ))  # fmt: skip
    tallies = torch.empty((2 * rows, power), dtype=torch.int64, device=device)
    _listed[(many,)](
        messages[0], given, table, tallies, arrived, out, rows, most, BYTES=value_bytes, GAPS=heads is None,
        TILE=TILE, POWER=power, **TOGETHER,
    )  # fmt: skip
    return out, table


def _shares(numel: int) -> tuple[int, int]:
    """How many tiles a program reads, and how many programs there are."""
    tiles = max(triton.cdiv(numel, TILE), 1)
    each = triton.cdiv(tiles, PROGRAMS)
    return each, triton.cdiv(tiles, each)


@triton.jit(do_not_specialize=["distance", "steps"])
def _bits(places, table, code, rows, words, distance, steps, WORDS: tl.constexpr, LANES: tl.constexpr):
    """A program owns WORDS words: all of them are cleared, then the bits of the places that lie there are set."""
    row = tl.program_id(1)
    count = tl.load(table + 2 * rows + row)
    places += row.to(tl.int64) * distance
    code += row.to(tl.int64) * words
    begin = tl.program_id(0).to(tl.int64) * WORDS
    own = begin + tl.arange(0, WORDS)
    tl.store(code + own, tl.zeros([WORDS], tl.int32), mask=own < words)
    end = tl.arange(0, 2)
    cuts = _below(places, count, (begin + end.to(tl.int64) * WORDS) * 32, steps)
    first = tl.sum(tl.where(end == 0, cuts, 0), 0)
    last = tl.sum(tl.where(end == 1, cuts, 0), 0)
    tl.debug_barrier()
    for start in range(first, last, LANES):
        lane = start + tl.arange(0, LANES)
        at = tl.load(places + lane, mask=lane < last, other=0).to(tl.int64)
        bit = tl.full([LANES], 1, tl.int32) << (at % 32).to(tl.int32)
        tl.atomic_or(code + at // 32, bit, mask=lane < last, sem="relaxed")


@triton.jit
def _gap(index, entry, count):
    """The gap before each entry, which are there, and the bytes that each takes; 0 for one that is not there."""
    there = entry < count
    before = tl.load(index + entry - 1, mask=there & (entry > 0), other=-1).to(tl.int64)
    gap = tl.load(index + entry, mask=there, other=0).to(tl.int64) - before - 1
    return gap, _bytes_of(gap, there)


@triton.jit
def _bytes_of(gap, there):
    """The bytes that each gap takes, int32; 0 for one that is not there."""
    size = there.to(tl.int32)
    for number in tl.static_range(1, MAX_GAP_BYTES):
        size += (there & ((gap >> (GAP_BITS * number)) > 0)).to(tl.int32)
    return size


@triton.jit
def _write_septets(code, at, gap, size):
    """Each gap in sevens of bits, from byte `at` on."""
    for byte in tl.static_range(MAX_GAP_BYTES):
        septet = (gap >> (GAP_BITS * byte)) & LOW
        more = (size > byte + 1).to(tl.int64) << GAP_BITS
        tl.store(code + at + byte, (septet | more).to(tl.uint8), mask=size > byte)


@triton.jit
def _write_ends(code, count, used, length):
    """The number of gaps, int64, in front of them; zeros behind the bytes that are `used`."""
    byte = tl.arange(0, 4)
    tl.store(code + byte, ((count >> (8 * byte)) & 255).to(tl.uint8))
    tl.store(code + used + byte, tl.zeros([4], tl.uint8), mask=used + byte < length)


@triton.jit
def _later(one, other):
    return tl.maximum(one, other)


@triton.jit
def _set_places(bits, begin, tile, last, numel, TILE: tl.constexpr):
    """Of a tile of the places from `begin` on: each place, whether its bit is set, and the place before it whose bit is
    set, from `begin` on; `last` if the tile has none.
    """
    place = begin + (tl.zeros([TILE], tl.int64) + tile) * TILE + tl.arange(0, TILE)
    byte = tl.load(bits + place // 8, mask=place < numel, other=0).to(tl.int32)
    here = ((byte >> (place % 8).to(tl.int32)) & 1) > 0
    near = (place > begin) & (place <= numel)
    byte = tl.load(bits + (place - 1) // 8, mask=near, other=0).to(tl.int32)
    there = ((byte >> ((place - 1) % 8).to(tl.int32)) & 1) > 0
    before = tl.associative_scan(tl.where(near & there, place - 1, -1), 0, _later)
    return place, here, tl.maximum(before, last)


@triton.jit
def _gaps_of_bits(bits, code, found, arrived, length, form, numel, least, TILE: tl.constexpr, POWER: tl.constexpr):
    """A program has neighbouring tiles: it finds its first and last place and the bytes of all gaps but the first, and
    once all programs have done so, where its own bytes begin.
    """
    program, many = tl.program_id(0), tl.num_programs(0)
    tiles = tiles_of(numel, TILE)
    begin = program.to(tl.int64) * tiles * TILE
    first, last, count, used = begin * 0 + numel, begin * 0 - 1, begin * 0, begin * 0
    for number in range(tiles):
        place, here, before = _set_places(bits, begin, number, last, numel, TILE)
        first = tl.minimum(first, tl.min(tl.where(here, place, first), 0))
        last = tl.maximum(last, tl.max(tl.where(here, place, -1), 0))
        count += tl.sum(here.to(tl.int64), 0)
        used += tl.sum(_bytes_of(place - before - 1, here & (before >= 0)).to(tl.int64), 0)
    tl.store(found + program, first)
    tl.store(found + POWER + program, last)
    tl.store(found + 2 * POWER + program, count)
    tl.store(found + 3 * POWER + program, used)
    meet(arrived, 1)
    other = tl.arange(0, POWER)
    counts = tl.load(found + 2 * POWER + other, mask=other < many, other=0)
    lasts = tl.load(found + POWER + other - 1, mask=(other > 0) & (other < many), other=-1)
    lasts = tl.associative_scan(lasts, 0, _later)
    firsts = tl.load(found + other, mask=other < many, other=0)
    sizes = tl.load(found + 3 * POWER + other, mask=other < many, other=0)
    sizes += _bytes_of(firsts - lasts - 1, counts > 0)
    at = COUNT_BYTES + tl.sum(tl.where(other < program, sizes, 0), 0)
    last = tl.sum(tl.where(other == program, lasts, 0), 0)
    end = COUNT_BYTES + tl.sum(sizes, 0)
    full = (end + 3) // 4 * 4
    if program == 0:
        tl.store(length, full.to(tl.int32))
        if full < least:
            _write_ends(code, tl.sum(counts, 0), end, full)
            kind = tl.load(form)
            tl.store(form, tl.where(kind == 0, 1, kind).to(tl.uint8))
    for number in range(tl.where(full < least, tiles, 0)):
        place, here, before = _set_places(bits, begin, number, last, numel, TILE)
        gap = place - before - 1
        size = _bytes_of(gap, here)
        _write_septets(code, at + tl.cumsum(size, 0) - size, gap, size)
        at += tl.sum(size, 0)
        last = tl.maximum(last, tl.max(tl.where(here, place, -1), 0))


@triton.jit(do_not_specialize=["count", "each"])
def _measure_gaps(index, totals, count, each, TILE: tl.constexpr):
    """The bytes of a program's gaps."""
    sizes = tl.zeros([TILE], tl.int32)
    for number in range(each):
        entry = (tl.program_id(0).to(tl.int64) * each + number) * TILE + tl.arange(0, TILE)
        _, size = _gap(index, entry, count)
        sizes += size
    tl.store(totals + tl.program_id(0), tl.sum(sizes, 0))


@triton.jit(do_not_specialize=["count", "each", "length"])
def _write_gaps(index, totals, code, count, each, length, TILE: tl.constexpr, POWER: tl.constexpr):
    program = tl.program_id(0)
    other = tl.arange(0, POWER)
    total = tl.load(totals + other, mask=other < tl.num_programs(0), other=0).to(tl.int64)
    begin = COUNT_BYTES + tl.sum(tl.where(other < program, total, 0), 0)
    if program == 0:
        _write_ends(code, tl.zeros([4], tl.int64) + count, COUNT_BYTES + tl.sum(total, 0), length)
    for number in range(each):
        entry = (program.to(tl.int64) * each + number) * TILE + tl.arange(0, TILE)
        gap, size = _gap(index, entry, count)
        _write_septets(code, begin + tl.cumsum(size, 0) - size, gap, size)
        begin += tl.sum(size, 0)


@triton.jit(do_not_specialize=["count"])
def _gaps_at_once(index, totals, code, arrived, count, TILE: tl.constexpr, POWER: tl.constexpr):
    program, many = tl.program_id(0), tl.num_programs(0)
    tiles = tiles_of(count, TILE)
    used = program.to(tl.int64) * 0
    for number in range(tiles):
        entry = (program.to(tl.int64) * tiles + number) * TILE + tl.arange(0, TILE)
        _, size = _gap(index, entry, count)
        used += tl.sum(size, 0)
    tl.store(totals + program, used)
    meet(arrived, 1)
    other = tl.arange(0, POWER)
    total = tl.load(totals + other, mask=other < many, other=0)
    code += COUNT_BYTES
    at = COUNT_BYTES + tl.sum(tl.where(other < program, total, 0), 0)
    if program == 0:
        byte = tl.arange(0, 4)
        tl.store(code - COUNT_BYTES + byte, tl.full([4], 1, tl.uint8))
        end = COUNT_BYTES + tl.sum(total, 0)
        full = (end + 3) // 4 * 4
        _write_ends(code, tl.zeros([4], tl.int64) + count, end, full)
        tl.store(totals + many, full + COUNT_BYTES)
    for number in range(tiles):
        entry = (program.to(tl.int64) * tiles + number) * TILE + tl.arange(0, TILE)
        gap, size = _gap(index, entry, count)
        _write_septets(code, at + tl.cumsum(size, 0) - size, gap, size)
        at += tl.sum(size, 0)


@triton.jit
def _ended(code, at, length):
    """Whether a gap ends with each byte, 1 or 0, and then that gap plus 1, else 0."""
    byte = tl.load(code + at, mask=at < length, other=255).to(tl.int64)
    ends = byte < FULL
    gap = byte
    going = ends
    for back in tl.static_range(1, MAX_GAP_BYTES):
        going = going & (at - back >= COUNT_BYTES)
        lower = tl.load(code + at - back, mask=going, other=0).to(tl.int64)
        going = going & (lower >= FULL)
        gap = tl.where(going, (gap << GAP_BITS) | (lower & LOW), gap)
    return ends.to(tl.int32), tl.where(ends, gap + 1, 0)


@triton.jit
def _measured(code, length, program, share, GAPS: tl.constexpr, TILE: tl.constexpr):
    """Of a program's `share` of tiles of a code: how many places they have, and how far these lie apart in all."""
    found = program.to(tl.int64) * 0
    apart = program.to(tl.int64) * 0
    for number in range(share):
        at = (program.to(tl.int64) * share + number) * TILE + tl.arange(0, TILE)
        if GAPS:
            ends, steps = _ended(code, at + COUNT_BYTES, length)
            found += tl.sum(ends, 0)
            apart += tl.sum(steps, 0)
        else:
            byte = tl.load(code + at, mask=at < length, other=0).to(tl.int32)
            found += tl.sum(tl.sum((byte[:, None] >> tl.arange(0, 8)[None, :]) & 1, 1), 0)
    return found, apart


@triton.jit
def _list(code, length, count, out, found, apart, program, share, GAPS: tl.constexpr, TILE: tl.constexpr):
    """Write the places of a program's tiles, of which the first has number `found` and lies `apart` from the vector's
    begin. Zeros behind the last gap, which fill the code up, have numbers above the `count`.
    """
    for number in range(share):
        at = (program.to(tl.int64) * share + number) * TILE + tl.arange(0, TILE)
        if GAPS:
            ends, steps = _ended(code, at + COUNT_BYTES, length)
            rank = found + tl.cumsum(ends, 0) - ends
            place = apart + tl.cumsum(steps, 0) - 1
            tl.store(out + rank, place.to(tl.int32), mask=(ends > 0) & (rank < count))
            found += tl.sum(ends, 0)
            apart += tl.sum(steps, 0)
        else:
            byte = tl.load(code + at, mask=at < length, other=0).to(tl.int32)
            bit = tl.arange(0, 8)[None, :]
            flags = (byte[:, None] >> bit) & 1
            many = tl.sum(flags, 1)
            rank = (found + tl.cumsum(many, 0) - many)[:, None] + tl.cumsum(flags, 1) - flags
            tl.store(out + rank, (at[:, None] * 8 + bit).to(tl.int32), mask=flags > 0)
            found += tl.sum(many, 0)


@triton.jit(do_not_specialize=["each", "distance"])
def _places(data, table, tallies, out, rows, each, distance, GAPS: tl.constexpr, WRITE: tl.constexpr,
            TILE: tl.constexpr, POWER: tl.constexpr):  # fmt: skip
    """What each program's bytes of a row's code have, to `tallies`; WRITE: the places."""
    program, row, programs = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    code = data + tl.load(table + row)
    length, count = tl.load(table + rows + row), tl.load(table + 2 * rows + row)
    tallies += row * programs
    if WRITE:
        other = tl.arange(0, POWER)
        found = tl.sum(tl.load(tallies + other, mask=other < program, other=0), 0)
        apart = tl.sum(tl.load(tallies + rows * programs + other, mask=other < program, other=0), 0)
        _list(code, length, count, out + row * distance, found, apart, program, each, GAPS, TILE)
    else:
        found, apart = _measured(code, length, program, each, GAPS, TILE)
        tl.store(tallies + program, found)
        tl.store(tallies + rows * programs + program, apart)


@triton.jit
def _code(data, given, row, rows, BYTES: tl.constexpr, GAPS: tl.constexpr):
    """A message's code, its length, and how many places it has."""
    code = data + tl.load(given + row)
    length, head = tl.load(given + rows + row), tl.load(given + 2 * rows + row)
    if GAPS:
        count = length * 0
        if length > 0:
            for byte in tl.static_range(4):
                count += tl.load(code + byte).to(tl.int64) << (8 * byte)
        return code, length - BYTES * count, count
    else:
        return code, head, (length - head) // BYTES


@triton.jit(do_not_specialize=["distance"])
def _listed(data, given, table, tallies, arrived, out, rows, distance, BYTES: tl.constexpr, GAPS: tl.constexpr,
            TILE: tl.constexpr, POWER: tl.constexpr):  # fmt: skip
    """Programs measure all codes, and then write the places of all of them."""
    program = tl.program_id(0)
    for row in range(rows):
        code, length, count = _code(data, given, row, rows, BYTES, GAPS)
        found, apart = _measured(code, length, program, tiles_of(length, TILE), GAPS, TILE)
        tl.store(tallies + row * POWER + program, found)
        tl.store(tallies + (rows + row) * POWER + program, apart)
        if program == 0:
            tl.store(table + row, (length * 0 + row) * distance * 4)
            tl.store(table + rows + row, count)
            tl.store(table + 2 * rows + row, tl.load(given + 3 * rows + row))
            tl.store(table + 3 * rows + row, tl.load(given + row) + length)
    meet(arrived, 1)
    other = tl.arange(0, POWER)
    for row in range(rows):
        code, length, count = _code(data, given, row, rows, BYTES, GAPS)
        found = tl.sum(tl.load(tallies + row * POWER + other, mask=other < program, other=0), 0)
        apart = tl.sum(tl.load(tallies + (rows + row) * POWER + other, mask=other < program, other=0), 0)
        begin = out + (found * 0 + row) * distance
        _list(code, length, count, begin, found, apart, program, tiles_of(length, TILE), GAPS, TILE)
