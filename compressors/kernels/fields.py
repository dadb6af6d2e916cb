"""Numbers of few bits packed into words, and what they stand for: levels, and signs with two values a group.

A tile has `words_of_tile(width)` words; field f of them holds the f-th part of the tile, as `bits/fields.py` has it for
blocks of that size.
"""

import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.bits.blocks import Groups
from wirebench.compressors.kernels import APART, launching
from wirebench.compressors.kernels.segments import group_of, tiles_of

TILE = 8192
"""Elements of a tile, about."""
LEAST_WORDS = 256
WORD_BITS = 32


def words_of_tile(per_word: int) -> int:
    """Words of a tile whose words have `per_word` fields: a power of two."""
    return max(LEAST_WORDS, 1 << (TILE // per_word).bit_length() - 1)


@launching
def encode_levels(
    x: Tensor,
    groups: Groups,
    scales: Tensor,
    words: Tensor,
    *,
    levels: int,
    least_scale: float,
    base: int,
    width: int,
    noise: tuple[Tensor, Tensor] | None,
    above: int,
    feedback: bool,
    limits: Tensor | None,
    inside: float,
) -> None:
    """Write the words of `x`; the twin is `Levels.encode`, for the meaning of all else see there.

    noise  the row, and the words of each tile's stretches (`bits/noise.py`); None: rounded to the nearest
    above  the bits that make a float of random ones
    """
    per_word = WORD_BITS // width
    tile = words_of_tile(per_word)
    table = tiles_of(groups, tile * per_word, x.device)
    row, draws = noise or (words, words)
    _encode_levels[(len(table.first),)](
        x, words, scales, scales if limits is None else limits, table.starts, table.first, table.last, row, draws,
        x.numel(), levels, least_scale, base, inside, row.numel(), draws.shape[1] if noise else 0, above,
        WIDTH=width, PER_WORD=per_word, TILE=tile, CHUNK=table.chunk,
        NOISY=noise is not None, FEEDBACK=feedback, LIMITED=limits is not None, **APART,
    )  # fmt: skip


@launching
def decode_levels(
    words: Tensor, groups: Groups, scales: Tensor, out: Tensor, *, levels: int, width: int, each: bool
) -> None:
    """Write what the ranks' `words`, (ranks, words), stand for to `out`.

    each   every rank has scales of its own, `scales` is (ranks, groups), and contributions are added as numbers: the
           twin is `Levels.decode_each`. Otherwise `scales` is (1, groups), and levels are added: `Levels.decode_sum`
    """
    per_word = WORD_BITS // width
    tile = words_of_tile(per_word)
    table = tiles_of(groups, tile * per_word, out.device)
    _decode_levels[(len(table.first),)](
        words, scales, out, table.starts, table.first, table.last, out.numel(), levels,
        len(words), words.stride(0), scales.stride(0),
        WIDTH=width, PER_WORD=per_word, TILE=tile, CHUNK=table.chunk, EACH=each, **APART,
    )  # fmt: skip


@launching
def encode_signs(
    x: Tensor, groups: Groups, words: Tensor, *, pair: tuple[Tensor, Tensor | None] | None, zeros_are_negative: bool,
    width: int, base: int, share: int = 0,
) -> None:  # fmt: skip
    """Write the words of the signs of `x`; the twin is `Signs.encode`.

    share  elements, of whole words: `words` then is (shares, places), a row for each share, filled up with 0
    """
    per_word = WORD_BITS // width
    tile = words_of_tile(per_word)
    shares, each = (len(words), share) if share else (1, x.numel())
    table = tiles_of(groups, tile * per_word, x.device, share, shares)
    high, low = pair or (x, x)
    _encode_signs[(len(table.first),)](
        x, words, high, high if low is None else low, table.starts, table.first, table.last, x.numel(), base, each,
        len(table.first) // shares, words.stride(0),
        WIDTH=width, PER_WORD=per_word, TILE=tile, CHUNK=table.chunk,
        FEEDBACK=pair is not None, OPPOSED=low is None, BELOW=int(zeros_are_negative), SHARED=share > 0, **APART,
    )  # fmt: skip


@launching
def decode_signs(
    words: Tensor, groups: Groups, high: Tensor, low: Tensor | None, out: Tensor, times: float = 0.0
) -> None:  # fmt: skip
    """Write the average of what the ranks' signs, (ranks, words), stand for; high and low are (ranks, groups), each.

    low    None: what is low is minus what is high
    times  the average times this number is added to `out`; 0: the average is written

    The twin is `Signs.decode`.
    """
    tile = words_of_tile(WORD_BITS)
    table = tiles_of(groups, tile * WORD_BITS, out.device)
    _decode_signs[(len(table.first),)](
        words, high, high if low is None else low, out, table.starts, table.first, table.last, out.numel(),
        len(words), words.stride(0), high.stride(0), 0 if low is None else low.stride(0), float(times),
        PER_WORD=WORD_BITS, TILE=tile, CHUNK=table.chunk, OPPOSED=low is None, ADD=times != 0, **APART,
    )  # fmt: skip


@launching
def decode_shares(
    words: Tensor, groups: Groups, high: Tensor, before: Tensor, out: Tensor, share: int, divisor: float
) -> None:  # fmt: skip
    """Write what signs stand for, of shares of `share` elements with a message each, over `divisor`; low is minus high.

    words, high  (shares, places), (shares, most groups of a share)
    before       int64 (shares,): how many groups begin before each share, of all shares'; `groups` are those
    """
    tile = words_of_tile(WORD_BITS)
    table = tiles_of(groups, tile * WORD_BITS, out.device, share, len(words))
    _decode_shares[(len(table.first),)](
        words, high, before, out, table.starts, table.first, table.last, out.numel(), share,
        len(table.first) // len(words), words.stride(0), high.stride(0), float(divisor),
        PER_WORD=WORD_BITS, TILE=tile, CHUNK=0, **APART,
    )  # fmt: skip


@launching
def decode_vote(words: Tensor, groups: Groups, scales: Tensor, out: Tensor, *, plus: float, width: int) -> None:
    """Write the sign of (the sum of the ranks' numbers, plus `plus`) times the group's scale to `out`.

    The twin is `Signs.decode_vote`.
    """
    per_word = WORD_BITS // width
    tile = words_of_tile(per_word)
    table = tiles_of(groups, tile * per_word, out.device)
    _decode_vote[(len(table.first),)](
        words, scales, out, table.starts, table.first, table.last, out.numel(), plus, len(words), words.stride(0),
        WIDTH=width, PER_WORD=per_word, TILE=tile, CHUNK=table.chunk, **APART,
    )  # fmt: skip


@triton.jit
def _part(numel, field, TILE: tl.constexpr, PER_WORD: tl.constexpr):
    """Of this program's tile: the places of a field's elements in the tile and in the bucket, which are inside, and
    where its words are, which are there.
    """
    return _part_of_share(numel, field, numel, tl.num_programs(0), 0, TILE, PER_WORD)


@triton.jit
def _part_of_share(numel, field, each, tiles, distance, TILE: tl.constexpr, PER_WORD: tl.constexpr):
    """As `_part`, of shares of `each` elements in `tiles` tiles, whose words are `distance` words apart."""
    share, tile = tl.program_id(0).to(tl.int64) // tiles, tl.program_id(0).to(tl.int64) % tiles
    begin = share * each + tile * (TILE * PER_WORD)
    rest = tl.minimum(tl.minimum(share * each + each, numel) - begin, TILE * PER_WORD)
    count = (rest + PER_WORD - 1) // PER_WORD
    word = tl.arange(0, TILE)
    within = field * count + word
    inside = (word < count) & (within < rest)
    return within, begin + within, inside, share * distance + tile * TILE + word, word < count


@triton.jit
def _field(words, WIDTH: tl.constexpr, PER_WORD: tl.constexpr, field):
    """The signed number in a field of each word; negative ones have borrowed from those above."""
    if WIDTH == 32:
        return words
    half = tl.full(words.shape, 1 << (WIDTH - 1), tl.int32)
    halves = half
    for place in tl.static_range(1, PER_WORD):
        halves = halves | (half << (place * WIDTH))
    return (((words + halves) ^ halves) << (32 - WIDTH - field * WIDTH)) >> (32 - WIDTH)


@triton.jit
def _encode_levels(x, words, scales, limits, starts, firsts, lasts, row, draws,
                   numel, levels, least_scale, base, inner, row_numel, stretches, above,
                   WIDTH: tl.constexpr, PER_WORD: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr,
                   NOISY: tl.constexpr, FEEDBACK: tl.constexpr, LIMITED: tl.constexpr):  # fmt: skip
    whole = tl.zeros([TILE], tl.float32)
    first, last = tl.load(firsts + tl.program_id(0)), tl.load(lasts + tl.program_id(0))
    total = tl.zeros([TILE], tl.int32)
    for field in range(PER_WORD):
        within, places, inside, _, there = _part(numel, field, TILE, PER_WORD)
        values = tl.load(x + places, mask=inside, other=0.0)
        group = group_of(places, inside, starts, first, last, CHUNK)
        scale = tl.load(scales + group, mask=inside, other=0.0)
        sound = scale > least_scale
        factor = tl.where(sound, tl.div_rn(whole + levels, tl.where(sound, scale, 1.0)), 0.0)
        clipped = values
        if LIMITED:
            limit = tl.load(limits + group, mask=inside, other=0.0) * inner
            clipped = tl.where(values > limit, limit, tl.where(values < -limit, -limit, values))
        if NOISY:
            spot = within.to(tl.int32)  # a division of 64 bits takes as long as all else here
            drawn = tl.load(row + spot % row_numel, mask=inside, other=0)
            drawn ^= tl.load(draws + tl.program_id(0) * stretches + spot // row_numel, mask=inside, other=0)
            rounded = (drawn | above).to(tl.float32, bitcast=True) + clipped * factor
        else:
            rounded = (base + 0.5) + clipped * factor
        if not LIMITED:
            rounded = tl.where(rounded < base - levels, base - levels, rounded)
            rounded = tl.where(rounded > base + levels + 0.5, base + levels + 0.5, rounded)
        number = tl.where(inside, rounded.to(tl.int32), base)
        total += number << (field * WIDTH)
        if FEEDBACK:
            step = tl.div_rn(scale, whole - levels)
            tl.store(x + places, values + (tl.floor(rounded) - base) * step, mask=inside)
    bases = base
    for place in tl.static_range(1, PER_WORD):
        bases += base << (place * WIDTH)
    _, _, _, word, there = _part(numel, 0, TILE, PER_WORD)
    tl.store(words + word, total - bases, mask=there)


@triton.jit
def _decode_levels(words, scales, out, starts, firsts, lasts, numel, levels,
                   ranks, distance, scale_distance,
                   WIDTH: tl.constexpr, PER_WORD: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr,
                   EACH: tl.constexpr):  # fmt: skip
    whole = tl.zeros([TILE], tl.float32)
    first, last = tl.load(firsts + tl.program_id(0)), tl.load(lasts + tl.program_id(0))
    for field in range(PER_WORD):
        _, places, inside, word, there = _part(numel, field, TILE, PER_WORD)
        total = tl.zeros([TILE], tl.int32)
        value = tl.zeros([TILE], tl.float32)
        group = group_of(places, inside, starts, first, last, CHUNK)
        its = scales + group
        for _ in range(ranks):
            packed = tl.load(words + word, mask=there, other=0)
            number = _field(packed, WIDTH, PER_WORD, field)
            if EACH:
                scale = tl.load(its, mask=inside, other=0.0)
                value += number.to(tl.float32) * tl.div_rn(scale, whole + levels)
            else:
                total += number
            word += distance
            its += scale_distance
        if not EACH:
            value = total.to(tl.float32) * tl.div_rn(tl.load(scales + group, mask=inside, other=0.0), whole + levels)
        tl.store(out + places, value, mask=inside)


@triton.jit
def _encode_signs(x, words, highs, lows, starts, firsts, lasts, numel, base, each, tiles, distance,
                  WIDTH: tl.constexpr, PER_WORD: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr,
                  FEEDBACK: tl.constexpr, OPPOSED: tl.constexpr, BELOW: tl.constexpr,
                  SHARED: tl.constexpr):  # fmt: skip
    first, last = tl.load(firsts + tl.program_id(0)), tl.load(lasts + tl.program_id(0))
    total = tl.zeros([TILE], tl.int32)
    for field in range(PER_WORD):
        _, places, inside, _, _ = _part_of_share(numel, field, each, tiles, distance, TILE, PER_WORD)
        values = tl.load(x + places, mask=inside, other=0.0)
        sign = (values.to(tl.int32, bitcast=True) - BELOW) >> 31
        total += tl.where(inside, sign - base, 0) << (field * WIDTH)
        if FEEDBACK:
            group = group_of(places, inside, starts, first, last, CHUNK)
            high = tl.load(highs + group, mask=inside, other=0.0)
            low = -high
            if not OPPOSED:
                low = tl.load(lows + group, mask=inside, other=0.0)
            tl.store(x + places, values + sign.to(tl.float32) * (low - high) - high, mask=inside)
    _, _, _, word, there = _part_of_share(numel, 0, each, tiles, distance, TILE, PER_WORD)
    if SHARED:
        there = (tl.program_id(0) % tiles) * TILE + tl.arange(0, TILE) < each // PER_WORD
    tl.store(words + word, total, mask=there)


@triton.jit
def _decode_signs(words, highs, lows, out, starts, firsts, lasts, numel,
                  ranks, distance, high_distance, low_distance, times,
                  PER_WORD: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr,
                  OPPOSED: tl.constexpr, ADD: tl.constexpr):  # fmt: skip
    whole = tl.zeros([TILE], tl.float32)
    first, last = tl.load(firsts + tl.program_id(0)), tl.load(lasts + tl.program_id(0))
    for field in range(PER_WORD):
        _, places, inside, word, there = _part(numel, field, TILE, PER_WORD)
        base = tl.zeros([TILE], tl.float32)
        group = group_of(places, inside, starts, first, last, CHUNK)
        its, its_low = highs + group, lows + group
        for _ in range(ranks):
            base += tl.div_rn(tl.load(its, mask=inside, other=0.0), whole + ranks)
            its += high_distance
        its = highs + group
        for _ in range(ranks):
            packed = tl.load(words + word, mask=there, other=0)
            high = tl.load(its, mask=inside, other=0.0)
            low = -high if OPPOSED else tl.load(its_low, mask=inside, other=0.0)
            sign = _field(packed, 1, PER_WORD, field).to(tl.float32)
            base += sign * tl.div_rn(high - low, whole + ranks)
            word += distance
            its += high_distance
            its_low += low_distance
        if ADD:
            base = tl.load(out + places, mask=inside, other=0.0) + base * times
        tl.store(out + places, base, mask=inside)


@triton.jit
def _decode_shares(words, highs, before, out, starts, firsts, lasts, numel, each, tiles, distance, high_distance,
                   divisor, PER_WORD: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    first, last = tl.load(firsts + tl.program_id(0)), tl.load(lasts + tl.program_id(0))
    share = tl.program_id(0) // tiles
    highs += share * high_distance - tl.load(before + share)
    for field in range(PER_WORD):
        _, places, inside, word, there = _part_of_share(numel, field, each, tiles, distance, TILE, PER_WORD)
        packed = tl.load(words + word, mask=there, other=0)
        high = tl.load(highs + group_of(places, inside, starts, first, last, CHUNK), mask=inside, other=0.0)
        value = high + _field(packed, 1, PER_WORD, field).to(tl.float32) * (high + high)
        tl.store(out + places, tl.div_rn(value, tl.zeros_like(value) + divisor), mask=inside)


@triton.jit
def _decode_vote(words, scales, out, starts, firsts, lasts, numel, plus, ranks, distance,
                 WIDTH: tl.constexpr, PER_WORD: tl.constexpr, TILE: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    first, last = tl.load(firsts + tl.program_id(0)), tl.load(lasts + tl.program_id(0))
    for field in range(PER_WORD):
        _, places, inside, word, there = _part(numel, field, TILE, PER_WORD)
        total = tl.zeros([TILE], tl.int32)
        for _ in range(ranks):
            packed = tl.load(words + word, mask=there, other=0)
            total += _field(packed, WIDTH, PER_WORD, field)
            word += distance
        vote = total.to(tl.float32) + plus
        sign = (vote > 0).to(tl.float32) - (vote < 0).to(tl.float32)
        scale = tl.load(scales + group_of(places, inside, starts, first, last, CHUNK), mask=inside, other=0.0)
        tl.store(out + places, sign * scale, mask=inside)
