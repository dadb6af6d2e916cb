"""Numbers of few bits with a scale for every chunk: the way there, which leaves the error, and back."""

import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.bits.narrow import Format, Number
from wirebench.compressors.kernels import APART, launching
from wirebench.compressors.kernels.entries import KINDS, _bits
from wirebench.compressors.kernels.segments import narrowed

TILE = 4096
"""Elements that a program reads, about."""


@launching
def quantise(
    values: Tensor,
    chunk: int,
    own: Format,
    message: Tensor,
    chunks: int,
    codes: Tensor,
    tops: Tensor,
    keep: Tensor | None,
    noise: tuple[Tensor, Tensor] | None,
) -> None:
    """Write the message of `values`, and keep what it cuts off; one launch. Twin: `narrow.quantised`.

    message  (parts, bytes), of `chunks` chunks a part; its scales are written here
    codes    (parts, bytes), where the numbers go: the message's rest
    tops     the largest magnitude of each part that has values, where the format has one scale for all of a part
    keep     `values`, in which it stays, or a vector that is no longer, to which it is added; None: it is lost
    noise    the row, and the words of its stretches; None: to the nearest
    """
    rows, half = _rows(chunk)
    number = own.number
    row, words = noise or (message, message)
    _quantise[(triton.cdiv(chunks * len(message), rows),)](
        values, message, codes, tops, row, words, *_kept(values, keep), values.numel(), chunks, len(message),
        message.stride(0), codes.stride(0), number.largest, row.numel(), tops.numel(),
        CHUNK=chunk, HALF=half, ROWS=rows, BITS=number.bits, EXPONENT=number.exponent, LEAST=number.least,
        MOST=number.most, SCALE=own.scale, WHOLE=own.whole_bytes, KEEP=_how(values, keep), NOISE=noise is not None,
        **APART,
    )  # fmt: skip


@launching
def restore(messages: Tensor, codes: Tensor, chunk: int, own: Format, out: Tensor, added: int, size: int) -> None:
    """Write what arrives of `messages`, (count, bytes), over `size`, to `out`; one launch. Twin: `narrow.restored`.

    codes  (count, bytes), the messages' numbers: their rest
    added  messages whose numbers are added, 1 for messages that follow each other
    """
    rows, half = _rows(chunk)
    number = own.number
    _restore[(triton.cdiv(triton.cdiv(out.numel(), chunk), rows),)](
        messages, codes, out, out.numel(), codes.shape[1] * 8 // number.bits // chunk,
        messages.stride(0), codes.stride(0), added, size, number.largest,
        CHUNK=chunk, HALF=half, ROWS=rows, BITS=number.bits, EXPONENT=number.exponent, LEAST=number.least,
        SCALE=own.scale, WHOLE=own.whole_bytes,
        **APART,
    )  # fmt: skip


@launching
def cast(
    values: Tensor, message: Tensor, number: Number | None, keep: Tensor | None, noise: tuple[Tensor, Tensor] | None
) -> None:
    """Write `values`, and zeros behind them, to `message` in its dtype, and keep what it cuts off; one launch.

    number  of a message in fp16 or bf16; keep, noise: as in `quantise`

    Twin: `narrow._cast`.
    """
    row, words = noise or (values, values)
    _cast[(triton.cdiv(message.numel(), TILE),)](
        values, _bits(message), row, words, *_kept(values, keep), values.numel(), message.numel(), row.numel(),
        KIND=KINDS[message.dtype], MANTISSA=number.mantissa if number else 23, LEAST=number.least if number else 0,
        KEEP=_how(values, keep), NOISE=noise is not None, TILE=TILE, **APART,
    )  # fmt: skip


def _kept(values: Tensor, keep: Tensor | None) -> tuple[Tensor, int]:
    """Where what is cut off goes, and its length."""
    return (values, 0) if keep is None else (keep, keep.numel())


def _how(values: Tensor, keep: Tensor | None) -> int:
    """0: what is cut off is lost; 1: it stays in the values; 2: it is added to a vector."""
    return 0 if keep is None else 1 if keep is values else 2


def _rows(chunk: int) -> tuple[int, int]:
    """Chunks of a program, and the columns of its block: pairs of elements."""
    half = triton.next_power_of_2(chunk // 2)
    return max(TILE // (2 * half), 1), half


@triton.jit
def _nearest(values):
    """Rounded to the nearest whole number, halves to even, of up to 2^22: the sum has no bits for a fraction."""
    return (values + 12582912.0) - 12582912.0


@triton.jit
def _least_exponent(values, LEAST: tl.constexpr):
    """The exponents of fp32 values, at their place in the bits, at least LEAST."""
    return tl.maximum(values.to(tl.int32, bitcast=True) & 0x7F800000, (LEAST + 127) << 23)


@triton.jit
def _to_number(values, largest, BITS: tl.constexpr, EXPONENT: tl.constexpr, LEAST: tl.constexpr):
    """The bits of the nearest number, int32, halves to even, and what they stand for, fp32; for at most `largest`.

    By whole numbers, since not every GPU, and no interpreter, converts so. What is added leaves the mantissa's bits
    behind the point; the bits of that sum hold the number's: the mantissa, and binades above the least exponent.
    """
    MANTISSA: tl.constexpr = BITS - 1 - EXPONENT
    sign = (values.to(tl.int32, bitcast=True) >> (32 - BITS)) & (1 << (BITS - 1))
    size = tl.abs(values)
    binade = _least_exponent(size, LEAST)
    much = (binade + (((23 - MANTISSA) << 23) | (1 << 22))).to(tl.float32, bitcast=True)
    high = size + much
    byte = (high.to(tl.int32, bitcast=True) & 0xFF) + ((binade >> 23) - (LEAST + 127)) * (1 << MANTISSA)
    size = high - much
    byte = tl.where(size <= largest, byte, (1 << (BITS - 1)) - 1)  # NaN, too
    return sign | byte, tl.where(sign == 0, size, -size)


@triton.jit
def _from_number(bits, largest, BITS: tl.constexpr, EXPONENT: tl.constexpr, LEAST: tl.constexpr):
    """What the bits of a number stand for, fp32; more than `largest` is NaN."""
    if EXPONENT == 0:
        return ((bits << (32 - BITS)) >> (32 - BITS)).to(tl.float32)
    MANTISSA: tl.constexpr = BITS - 1 - EXPONENT
    low = bits & ((1 << (BITS - 1)) - 1)
    binade = tl.maximum(low >> MANTISSA, 1) - 1
    unit = ((binade + (LEAST - MANTISSA + 127)) << 23).to(tl.float32, bitcast=True)
    size = (low - (binade << MANTISSA)).to(tl.float32) * unit
    size = tl.where(size > largest, float("nan"), size)
    return tl.where(bits & (1 << (BITS - 1)) == 0, size, -size)


@triton.jit
def _power(exponent):
    """2 to the power of exponent - 127; 255 is NaN, and so is -1, its opposite."""
    bits = tl.where(exponent == 0, 1 << 22, exponent << 23)
    return tl.where((exponent == 255) | (exponent == -1), 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def _sound(scale):
    """No number below the smallest normal one but 0, and nothing that is not finite but NaN."""
    scale = tl.where(scale < 1.1754943508222875e-38, 0.0, scale)
    return tl.where(scale < float("inf"), scale, float("nan"))


@triton.jit
def _from_e4m3(byte):
    """The fp32 number that an e4m3 byte stands for."""
    return _from_number(byte, 448.0, 8, 4, -6)


@triton.jit
def _draws(row, words, place, length):
    """Numbers in [0, 1) for the elements at `place`."""
    bits = (tl.load(row + place % length) ^ tl.load(words + place // length)) | 0x3F800000  # from 1 to 2
    return bits.to(tl.float32, bitcast=True) - 1.0


@triton.jit
def _keep(rest, place, length, left, KEEP: tl.constexpr):
    """Write what is cut off, or add it; nothing where it is not finite."""
    left = tl.where(tl.abs(left) < float("inf"), left, 0.0)
    if KEEP == 2:
        left += tl.load(rest + place, mask=place < length, other=0.0)
    tl.store(rest + place, left, mask=place < length)


@triton.jit
def _cast(values, message, draws, words, rest, length, numel, total, draws_length, KIND: tl.constexpr,
          MANTISSA: tl.constexpr, LEAST: tl.constexpr, KEEP: tl.constexpr, NOISE: tl.constexpr,
          TILE: tl.constexpr):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    exact = tl.load(values + place, mask=place < numel, other=0.0)
    arriving = exact
    if NOISE:
        noise = _draws(draws, words, tl.where(place < numel, place, 0), draws_length)
        unit = tl.maximum(_least_exponent(exact, LEAST) - (MANTISSA << 23), 1 << 23)
        each = ((254 << 23) - unit).to(tl.float32, bitcast=True)
        arriving = tl.floor(exact * each + noise) * unit.to(tl.float32, bitcast=True)
    if KIND == "fp16":
        stored = arriving.to(tl.float16)
        arriving = stored.to(tl.float32)
    elif KIND == "bf16":
        arriving = narrowed(arriving)
        stored = (arriving.to(tl.int32, bitcast=True) >> 16).to(tl.int16)
    else:
        stored = arriving
    tl.store(message + place, stored, mask=place < total)
    if KEEP > 0:
        _keep(rest, place, length, exact - arriving, KEEP)


@triton.jit
def _number(scaled, step, noise, largest,
            BITS: tl.constexpr, EXPONENT: tl.constexpr, LEAST: tl.constexpr, NOISE: tl.constexpr):  # fmt: skip
    """The bits of each value over its scale, and what arrives of it."""
    if NOISE:
        if EXPONENT > 0:
            unit = _least_exponent(scaled, LEAST) - ((BITS - 1 - EXPONENT) << 23)
            each = ((254 << 23) - unit).to(tl.float32, bitcast=True)
            scaled = tl.floor(scaled * each + noise) * unit.to(tl.float32, bitcast=True)
        else:
            scaled = tl.floor(scaled + noise)
        scaled = tl.where(scaled > largest, largest, scaled)  # a draw just below 1 is rounded to 1 in the sum
    if EXPONENT == 0:
        arriving = _nearest(scaled)
        byte = tl.where(tl.abs(arriving) < 1024.0, arriving, 0.0).to(tl.int32)
    else:
        byte, arriving = _to_number(scaled, largest, BITS, EXPONENT, LEAST)
    return byte, arriving * step


@triton.jit
def _step(begin, within, high, top, sound, largest, MOST: tl.constexpr, SCALE: tl.constexpr):
    """Write chunks' scales for their largest magnitudes' bits, (rows, 1); what they stand for, and e8m0's opposite."""
    limit = tl.zeros_like(high).to(tl.float32) + largest
    if SCALE == "fp32":
        step = _sound(tl.div_rn(high.to(tl.float32, bitcast=True), limit))
        bits = step.to(tl.int32, bitcast=True)
        for byte in tl.static_range(4):
            tl.store(begin + within * 4 + byte, ((bits >> (8 * byte)) & 255).to(tl.uint8), mask=sound)
        return step, step
    if SCALE == "e8m0":
        bits = tl.where(high >= 0x7F800000, 255, tl.maximum((high >> 23) - MOST, 0))
        tl.store(begin + within, bits.to(tl.uint8), mask=sound)
        return _power(bits), _power(254 - bits)
    relative = tl.div_rn(tl.div_rn(high.to(tl.float32, bitcast=True), limit), tl.where(top == 0, 1.0, top))
    relative = tl.where(relative > 448.0, 448.0, tl.where(relative < 0.015625, 0.015625, relative))
    bits, narrow = _to_number(relative, 448.0, 8, 4, -6)
    tl.store(begin + within, bits.to(tl.uint8), mask=sound)
    return narrow * top, narrow


@triton.jit
def _over(values, step, factor, largest, SCALE: tl.constexpr):
    """Values over their chunk's scale; where that is a power of two, or itself rounded, at most the largest number."""
    if SCALE == "fp32":
        return tl.div_rn(values, tl.where(step == 0, 1.0, step))
    scaled = values * factor if SCALE == "e8m0" else tl.div_rn(values, tl.where(step == 0, 1.0, step))
    return tl.where(scaled > largest, largest, tl.where(scaled < -largest, -largest, scaled))


@triton.jit
def _quantise(values, message, codes, tops, draws, words, rest, length, numel, chunks, parts, distance, codes_distance,
              largest, draws_length, filled, CHUNK: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr,
              BITS: tl.constexpr, EXPONENT: tl.constexpr, LEAST: tl.constexpr, MOST: tl.constexpr, SCALE: tl.constexpr,
              WHOLE: tl.constexpr, KEEP: tl.constexpr, NOISE: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    sound = row < chunks * parts
    there = sound & (pair < CHUNK // 2)
    place = row * CHUNK + 2 * pair
    even = tl.load(values + place, mask=there & (place < numel), other=0.0)
    odd = tl.load(values + place + 1, mask=there & (place + 1 < numel), other=0.0)
    # As whole numbers, of which a NaN is the largest.
    high = tl.maximum(even.to(tl.int32, bitcast=True) & 0x7FFFFFFF, odd.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    high = tl.max(high, 1)[:, None]
    part = row // chunks
    begin = message + part * distance + WHOLE
    within = row % chunks
    top = 0.0
    if SCALE == "e4m3":
        top = tl.load(tops + part, mask=sound & (part < filled), other=0.0)
        top = _sound(tl.div_rn(top, tl.zeros_like(top) + largest * 448.0))
        for byte in tl.static_range(4):
            where = message + part * distance + byte
            bits = top.to(tl.int32, bitcast=True) >> (8 * byte)
            tl.store(where, (bits & 255).to(tl.uint8), mask=sound & (within == 0))
    step, factor = _step(begin, within, high, top, sound, largest, MOST, SCALE)
    even_scaled = _over(even, step, factor, largest, SCALE)
    odd_scaled = _over(odd, step, factor, largest, SCALE)
    noise, noise_odd = even, odd
    if NOISE:
        noise = _draws(draws, words, tl.where(there, place, 0), draws_length)
        noise_odd = _draws(draws, words, tl.where(there, place + 1, 0), draws_length)
    first, arrived = _number(even_scaled, step, noise, largest, BITS, EXPONENT, LEAST, NOISE)
    second, arrived_odd = _number(odd_scaled, step, noise_odd, largest, BITS, EXPONENT, LEAST, NOISE)
    codes += part * codes_distance
    if BITS == 4:
        tl.store(codes + within * (CHUNK // 2) + pair, ((first & 15) | (second << 4)).to(tl.uint8), mask=there)
    elif BITS == 6:
        # Two pairs take three bytes.
        latter = tl.arange(0, 2)[None, None, :] == 1
        pairs = tl.reshape((first & 63) | ((second & 63) << 6), [ROWS, HALF // 2, 2])
        four = tl.sum(tl.where(latter, pairs << 12, pairs), 2)
        for byte in tl.static_range(3):
            where = codes + within * (CHUNK // 4 * 3) + 3 * tl.arange(0, HALF // 2)[None, :] + byte
            tl.store(where, ((four >> (8 * byte)) & 255).to(tl.uint8), mask=sound)
    else:
        tl.store(codes + within * CHUNK + 2 * pair, first.to(tl.uint8), mask=there)
        tl.store(codes + within * CHUNK + 2 * pair + 1, second.to(tl.uint8), mask=there)
    if KEEP > 0:
        _keep(rest, tl.where(there, place, length), length, even - arrived, KEEP)
        _keep(rest, tl.where(there, place + 1, length), length, odd - arrived_odd, KEEP)


@triton.jit
def _bits_of_scale(begin, sound):
    """The four bytes there, which may lie anyhow, as fp32."""
    bits = tl.zeros_like(sound).to(tl.int32)
    for byte in tl.static_range(4):
        bits |= tl.load(begin + byte, mask=sound, other=0).to(tl.int32) << (8 * byte)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _restore(messages, codes, out, numel, chunks, distance, codes_distance, added, size, largest,
             CHUNK: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, BITS: tl.constexpr,
             EXPONENT: tl.constexpr, LEAST: tl.constexpr, SCALE: tl.constexpr, WHOLE: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    place = row * CHUNK + 2 * pair
    sound = row * CHUNK < numel
    there = (pair < CHUNK // 2) & (place < numel)
    begin = messages + row // chunks * distance
    numbers = codes + row // chunks * codes_distance
    within = row % chunks
    even = tl.zeros([ROWS, HALF], tl.float32)
    odd = tl.zeros([ROWS, HALF], tl.float32)
    for _ in range(added):
        if SCALE == "fp32":
            step = _bits_of_scale(begin + within * 4, sound)
        else:
            byte = tl.load(begin + WHOLE + within, mask=sound, other=0).to(tl.int32)
            step = _power(byte) if SCALE == "e8m0" else _from_e4m3(byte) * _bits_of_scale(begin, sound)
        if BITS == 4:
            both = tl.load(numbers + within * (CHUNK // 2) + pair, mask=there, other=0).to(tl.int32)
            first = both & 15
            second = both >> 4
        elif BITS == 6:
            at = numbers + within * (CHUNK // 4 * 3) + 3 * (pair // 2) + pair % 2
            both = tl.load(at, mask=there, other=0).to(tl.int32)
            both |= tl.load(at + 1, mask=there, other=0).to(tl.int32) << 8
            both = both >> (4 * (pair % 2))
            first = both & 63
            second = (both >> 6) & 63
        else:
            first = tl.load(numbers + within * CHUNK + 2 * pair, mask=there, other=0).to(tl.int32)
            second = tl.load(numbers + within * CHUNK + 2 * pair + 1, mask=there, other=0).to(tl.int32)
        even += _from_number(first, largest, BITS, EXPONENT, LEAST) * step
        odd += _from_number(second, largest, BITS, EXPONENT, LEAST) * step
        begin += distance
        numbers += codes_distance
    divisor = tl.zeros_like(even) + size
    tl.store(out + place, tl.div_rn(even, divisor), mask=there)
    tl.store(out + place + 1, tl.div_rn(odd, divisor), mask=there & (place + 1 < numel))
