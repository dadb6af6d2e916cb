"""Numbers of 4 or 8 bits with a scale for every chunk: the way there, which leaves the error, and back."""

import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.bits.narrow import LARGEST, Form, message_bytes
from wirebench.compressors.kernels import APART, launching

TILE = 4096
"""Elements that a program reads, about."""


@launching
def quantise(values: Tensor, chunk: int, form: Form, message: Tensor) -> None:
    """Write the message of `values`, and leave in them what it cuts off; one launch. Twin: `narrow.quantised`."""
    rows, half = _rows(chunk, form)
    chunks = message.numel() // message_bytes(chunk, chunk, form)
    _quantise[(triton.cdiv(chunks, rows),)](
        values, message, values.numel(), chunks, LARGEST[form], CHUNK=chunk, HALF=half, ROWS=rows, FORM=form,
        **APART,
    )  # fmt: skip


@launching
def restore(messages: Tensor, chunk: int, form: Form, out: Tensor, added: int, size: int) -> None:
    """Write what arrives of `messages`, (count, bytes), over `size`, to `out`; one launch. Twin: `narrow.restored`.

    added  messages whose numbers are added, 1 for messages that follow each other
    """
    rows, half = _rows(chunk, form)
    chunks = messages.shape[1] // message_bytes(chunk, chunk, form)
    _restore[(triton.cdiv(triton.cdiv(out.numel(), chunk), rows),)](
        messages, out, out.numel(), chunks, messages.stride(0), added, size,
        CHUNK=chunk, HALF=half, ROWS=rows, FORM=form, BYTES=message_bytes(chunk, chunk, form),
        **APART,
    )  # fmt: skip


def _rows(chunk: int, form: Form) -> tuple[int, int]:
    """Chunks of a program, and the columns of its block: pairs of elements."""
    half = triton.next_power_of_2(chunk // 2)
    return max(TILE // (2 * half), 1), half


@triton.jit
def _nearest(values):
    """Rounded to the nearest whole number, halves to even, of up to 2^22: the sum has no bits for a fraction."""
    return (values + 12582912.0) - 12582912.0


@triton.jit
def _to_fp8(values):
    """The bits of float8_e4m3fn, int32, and its number, rounded to nearest, halves to even; for at most 448.

    By whole numbers, since not every GPU, and no interpreter, converts so.
    """
    sign = (values.to(tl.int32, bitcast=True) >> 24) & 128
    size = tl.abs(values)
    bits = size.to(tl.int32, bitcast=True)
    # What is added leaves three bits of the mantissa: 1.5 times 2 to the exponent plus 20; below 2^-6 always as there.
    exponent = tl.maximum(bits >> 23, 121) + 20
    much = ((exponent << 23) | (1 << 22)).to(tl.float32, bitcast=True)
    size = (size + much) - much
    bits = size.to(tl.int32, bitcast=True)
    byte = tl.where(size < 0.015625, (size * 512.0).to(tl.int32), (bits >> 20) - 960)
    byte = tl.where(size <= 448.0, byte, 127)  # NaN, too
    return sign | byte, tl.where(sign == 0, size, -size)


@triton.jit
def _from_fp8(byte):
    """The number of float8_e4m3fn's bits, fp32."""
    low = byte & 127
    size = tl.where(low < 8, low.to(tl.float32) / 512.0, ((low << 20) + (120 << 23)).to(tl.float32, bitcast=True))
    size = tl.where(low == 127, float("nan"), size)
    return tl.where(byte < 128, size, -size)


@triton.jit
def _number(values, scale, FORM: tl.constexpr):
    """The byte of each value, and what arrives of it."""
    scaled = tl.div_rn(values, tl.where(scale == 0, 1.0, scale))
    if FORM == "fp8":
        byte, arriving = _to_fp8(scaled)
    else:
        arriving = _nearest(scaled)
        byte = tl.where(tl.abs(arriving) < 1024.0, arriving, 0.0).to(tl.int32)
    return byte, arriving * scale


@triton.jit
def _quantise(values, message, numel, chunks, largest,
              CHUNK: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, FORM: tl.constexpr):  # fmt: skip
    BYTES: tl.constexpr = 4 + (CHUNK // 2 if FORM == "int4" else CHUNK)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    there = (row < chunks) & (pair < CHUNK // 2)
    place = row * CHUNK + 2 * pair
    even = tl.load(values + place, mask=there & (place < numel), other=0.0)
    odd = tl.load(values + place + 1, mask=there & (place + 1 < numel), other=0.0)
    # As whole numbers, of which a NaN is the largest.
    high = tl.maximum(even.to(tl.int32, bitcast=True) & 0x7FFFFFFF, odd.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    scale = tl.max(high, 1)[:, None].to(tl.float32, bitcast=True)
    scale = tl.div_rn(scale, tl.zeros_like(scale) + largest)
    scale = tl.where(scale < 1.1754943508222875e-38, 0.0, scale)
    bits = scale.to(tl.int32, bitcast=True)
    for byte in tl.static_range(4):
        tl.store(message + row * BYTES + byte, ((bits >> (8 * byte)) & 255).to(tl.uint8), mask=row < chunks)
    first, arrived = _number(even, scale, FORM)
    second, arrived_odd = _number(odd, scale, FORM)
    if FORM == "int4":
        tl.store(message + row * BYTES + 4 + pair, ((first & 15) | (second << 4)).to(tl.uint8), mask=there)
    else:
        tl.store(message + row * BYTES + 4 + 2 * pair, first.to(tl.uint8), mask=there)
        tl.store(message + row * BYTES + 5 + 2 * pair, second.to(tl.uint8), mask=there)
    left, left_odd = even - arrived, odd - arrived_odd
    infinity = float("inf")
    tl.store(values + place, tl.where(tl.abs(left) < infinity, left, 0.0), mask=there & (place < numel))
    tl.store(values + place + 1, tl.where(tl.abs(left_odd) < infinity, left_odd, 0.0), mask=there & (place + 1 < numel))


@triton.jit
def _signed(byte, FORM: tl.constexpr):
    """The number of a byte, fp32."""
    if FORM == "fp8":
        return _from_fp8(byte)
    return ((byte << 24) >> 24).to(tl.float32)


@triton.jit
def _restore(messages, out, numel, chunks, distance, added, size,
             CHUNK: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr, FORM: tl.constexpr,
             BYTES: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    place = row * CHUNK + 2 * pair
    there = (pair < CHUNK // 2) & (place < numel)
    begin = row // chunks * distance + row % chunks * BYTES
    even = tl.zeros([ROWS, HALF], tl.float32)
    odd = tl.zeros([ROWS, HALF], tl.float32)
    for _ in range(added):
        bits = tl.zeros([ROWS, 1], tl.int32)
        for byte in tl.static_range(4):
            bits |= tl.load(messages + begin + byte, mask=row * CHUNK < numel, other=0).to(tl.int32) << (8 * byte)
        scale = bits.to(tl.float32, bitcast=True)
        if FORM == "int4":
            both = tl.load(messages + begin + 4 + pair, mask=there, other=0).to(tl.int32)
            even += ((both << 28) >> 28).to(tl.float32) * scale
            odd += ((both << 24) >> 28).to(tl.float32) * scale
        else:
            first = tl.load(messages + begin + 4 + 2 * pair, mask=there, other=0).to(tl.int32)
            second = tl.load(messages + begin + 5 + 2 * pair, mask=there, other=0).to(tl.int32)
            even += _signed(first, FORM) * scale
            odd += _signed(second, FORM) * scale
        begin += distance
    divisor = tl.zeros_like(even) + size
    tl.store(out + place, tl.div_rn(even, divisor), mask=there)
    tl.store(out + place + 1, tl.div_rn(odd, divisor), mask=there & (place + 1 < numel))
