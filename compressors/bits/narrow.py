"""Numbers of few bits with a scale for every chunk of neighbours: the wire formats of sums, and their coding.

A message is, of its parts, each: [one fp32 scale,] the chunks' scales, the numbers. `FORMATS` has the table.

- Open Compute Project, "OCP Microscaling Formats (MX) Specification", version 1.0, 2023: the numbers (section 5.3), the
  scales E8M0 and how they are found (section 6.3).
- NVIDIA, "Pretraining Large Language Models with NVFP4", 2025, arXiv 2509.25149, appendix C: two levels of scales.

Kernels do this on a GPU (`kernels/narrow.py`), loops in C on a CPU (`kernels/narrow.c`). PyTorch's functions here are
their twins, and run where those cannot.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import frexp
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from wirebench.compressors import kernels
from wirebench.compressors.bits.blocks import Run
from wirebench.compressors.bits.noise import as_float, drawn
from wirebench.compressors.kernels import native

Form = Literal[
    "fp32", "bf16", "fp16", "fp8", "fp8_e5m2", "int8", "int4",
    "mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2", "mxfp4", "nvfp4",
]  # fmt: skip
PLAIN: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Formats without scales, with the dtype of each: no chunk of them needs one."""
CHUNK, MOST_CHUNK = 256, 1 << 16
"""Elements that share a scale where the format leaves it open, and the most of them: zeros fill each rank's share."""
WIDEST = 4096
"""The longest chunk that kernels take: they hold one at once."""
TINY = torch.finfo(torch.float32).tiny
CACHED = 1 << 18
"""Elements that the CPU codes at once, about, so that all passes but the first are over its cache."""


@dataclass(frozen=True)
class Number:
    """A kind of number: a sign, then exponent and mantissa; without exponent bits a whole number, two's complement.

    largest  the largest magnitude that is used; of floating-point numbers that is the largest finite one
    """

    bits: int
    largest: float
    exponent: int = 0

    @property
    def mantissa(self) -> int:
        """Bits behind the point."""
        return self.bits - 1 - self.exponent

    @property
    def least(self) -> int:
        """The exponent of the smallest normal number; smaller ones are as far apart as there."""
        return 2 - (1 << (self.exponent - 1)) if self.exponent else 0

    @property
    def most(self) -> int:
        """The exponent of the largest number."""
        return frexp(self.largest)[1] - 1


E4M3, E5M2 = Number(8, 448.0, 4), Number(8, 57344.0, 5)
E2M3, E3M2, E2M1 = Number(6, 7.5, 2), Number(6, 28.0, 3), Number(4, 6.0, 2)
INT8, INT4 = Number(8, 127.0), Number(4, 7.0)
WIDE = {"bf16": Number(16, torch.inf, 8), "fp16": Number(16, torch.inf, 5)}
"""What is larger than their largest number becomes infinity."""


@dataclass(frozen=True)
class Format:
    """Numbers, and their scales.

    scale  fp32: the largest magnitude becomes the largest number; e8m0: the power of two that gives the largest
           magnitude the largest number's exponent, and what is larger than that number becomes it; e4m3: as fp32, but
           itself a number of 8 bits, over one fp32 scale of the whole message
    block  elements of a chunk; 0: the user chooses
    """

    number: Number
    scale: Literal["fp32", "e8m0", "e4m3"] = "fp32"
    block: int = 0

    @property
    def scale_bytes(self) -> int:
        """How many bytes the scale of a chunk has."""
        return 4 if self.scale == "fp32" else 1

    @property
    def whole_bytes(self) -> int:
        """Bytes of the scale of a whole part of a message."""
        return 4 if self.scale == "e4m3" else 0


FORMATS: dict[str, Format] = {
    "fp8": Format(E4M3),
    "fp8_e5m2": Format(E5M2),
    "int8": Format(INT8),
    "int4": Format(INT4),
    "mxfp8": Format(E4M3, "e8m0", 32),
    "mxfp8_e5m2": Format(E5M2, "e8m0", 32),
    "mxfp6": Format(E2M3, "e8m0", 32),
    "mxfp6_e3m2": Format(E3M2, "e8m0", 32),
    "mxfp4": Format(E2M1, "e8m0", 32),
    "nvfp4": Format(E2M1, "e4m3", 16),
}
"""fp8: e4m3. MXFP8 and MXFP6 have two kinds of numbers each; the one with the longer mantissa has the plain name."""
LOOPS = [*FORMATS, *WIDE]
"""Formats that the loops in C know, by their place here."""


def chunk_of(form: Form, chunk: int) -> int:
    """Elements that share a scale: the format's own number, else `chunk`; 1 where there is no scale."""
    return 1 if form in PLAIN else FORMATS[form].block or chunk


def chunk_fault(chunk: int, *forms: str) -> str:
    """What is wrong with elements that are to share a scale in these formats; "" where nothing is."""
    if not 4 <= chunk <= MOST_CHUNK or chunk % 4:
        return f"needs a multiple of 4 up to {MOST_CHUNK}, got {chunk}"
    if chunk != CHUNK and all(form in PLAIN or FORMATS[form].block for form in forms):
        return f"is of no use to {' and '.join(dict.fromkeys(forms))}, got {chunk}"
    return ""


def value_bytes(numel: int, form: Form) -> int:
    """Bytes of the numbers of `numel` elements, a multiple of 4, without scales."""
    bits = 8 * PLAIN[form].itemsize if form in PLAIN else FORMATS[form].number.bits
    return numel * bits // 8


def message_bytes(numel: int, chunk: int, form: Form) -> int:
    """Bytes of `numel` elements, a multiple of `chunk`, in a message of one part: numbers, and scales."""
    if form in PLAIN:
        return value_bytes(numel, form)
    own = FORMATS[form]
    return value_bytes(numel, form) + numel // chunk * own.scale_bytes + own.whole_bytes


def quantised(
    values: Tensor,
    chunk: int,
    form: Form,
    numel: int,
    parts: int = 1,
    keep: bool = True,
    generator: torch.Generator | None = None,
    rest: Tensor | None = None,
) -> Tensor:
    """The message of fp32 `values`, (n,), as uint8, in `parts` parts of one length.

    numel      at least n, a multiple of parts x chunk; zeros follow the values
    keep       leave in `values` what the message cuts off, but for what is not finite
    rest       a vector no longer than `values`, to which that is added, while `values` are used up
    generator  round up or down at random, right on average; None: to the nearest, halves to even
    """
    on_gpu = kernels.usable(values) and (form in PLAIN or chunk <= WIDEST)
    if rest is not None and not on_gpu:
        message = quantised(values, chunk, form, numel, parts, keep, generator)
        rest.add_(values[: rest.numel()])
        return message
    kept = rest if rest is not None else values if keep else None
    draws = drawn(numel, numel, 0, generator) if generator else None
    if form in PLAIN:
        return _cast(values, form, numel, kept, draws)
    own, each = FORMATS[form], numel // parts
    message = torch.empty((parts, message_bytes(each, chunk, form)), dtype=torch.uint8, device=values.device)
    if not each:
        return message.zero_().view(-1)  # a scale of the whole part at most
    if not on_gpu and native.usable(values):
        native.quantise(values, chunk, LOOPS.index(form), message, each // chunk, keep, draws)
        return message.view(-1)
    if on_gpu:
        from wirebench.compressors.kernels.narrow import quantise

        tops = _largest_of_parts(values, each) if own.whole_bytes else values
        codes = message[:, own.whole_bytes + each // chunk * own.scale_bytes :]
        quantise(values, chunk, own, message, each // chunk, codes, tops, kept, draws)
        return message.view(-1)
    tops = _tops(values, own, message, each) if own.whole_bytes else message
    for part, begin in zip(message, range(0, numel, each), strict=True):
        mine = values[begin : begin + each]
        _, scales, codes = _sections(part, each // chunk, own)
        top = tops[begin // each]
        for first, count in _blocks(each, chunk):
            some = mine[first : first + count]
            rows = (pad(some, (0, count - some.numel())) if some.numel() < count else some).view(-1, chunk)
            coded, step, scaled = _scaled(rows, own, top)
            scales[first // chunk :][: len(coded)] = coded
            if draws:
                _draw(scaled, own.number, _noise(draws, begin + first, count).view(-1, chunk))
            numbers, arriving = _rounded(scaled, own.number, keep)
            codes[value_bytes(first, form) :][: value_bytes(count, form)] = _packed(numbers, own.number.bits)
            if keep:
                some.sub_((arriving * step).view(-1)[: some.numel()]).nan_to_num_(0.0, 0.0, 0.0)
    return message.view(-1)


def restored(messages: Sequence[Tensor], chunk: int, form: Form, out: Tensor, size: int = 1) -> Tensor:
    """Write the numbers that arrive of `messages`, each of one part, one after the other, over `size` to `out`, (n,);
    returns it.
    """
    if form not in PLAIN and kernels.usable(out) and chunk <= WIDEST:
        from wirebench.compressors.kernels.narrow import restore

        together = kernels.stacked(messages)
        restore(together, _codes(together, chunk, form), chunk, FORMATS[form], out, 1, size)
        return out
    place = 0
    if form in LOOPS and native.usable(out):
        for each in messages:
            numel = _numel(each, chunk, form)
            native.restore([each], chunk, LOOPS.index(form), numel // chunk, out[place : place + numel], size)
            place += numel
        return out
    for each in messages:
        place += _arrived(each, chunk, form, out[place:])
    return out.div_(size) if size > 1 else out


def added(messages: Sequence[Tensor], chunk: int, form: Form) -> Tensor:
    """The sum of the numbers that arrive of `messages`, each of one part, in their order, fp32 (n,)."""
    first = messages[0]
    if form not in PLAIN and kernels.usable(first) and chunk <= WIDEST:
        from wirebench.compressors.kernels.narrow import restore

        total = torch.empty(_numel(first, chunk, form), device=first.device)
        together = kernels.stacked(messages)
        restore(together, _codes(together, chunk, form), chunk, FORMATS[form], total, len(messages), 1)
        return total
    total = torch.empty(_numel(first, chunk, form), device=first.device)
    if form in LOOPS and native.usable(total):
        native.restore(messages, chunk, LOOPS.index(form), total.numel() // chunk, total)
        return total
    for number, each in enumerate(messages):
        _arrived(each, chunk, form, total, add=number > 0)
    return total


def _codes(messages: Tensor, chunk: int, form: Form) -> Tensor:
    """The numbers of messages, (count, bytes)."""
    return messages[:, messages.shape[1] - value_bytes(_numel(messages[0], chunk, form), form) :]


def _cast(
    values: Tensor, form: Form, numel: int, keep: Tensor | None, draws: tuple[Tensor, Tensor] | None
) -> Tensor:  # fmt: skip
    """A message without scales. keep: `values`, or with kernels another vector, where what is cut off stays."""
    if form in LOOPS and native.usable(values):
        message = torch.empty((1, value_bytes(numel, form)), dtype=torch.uint8)
        native.quantise(values, 1, LOOPS.index(form), message, numel, keep is not None, draws)
        return message[0]
    if kernels.usable(values):
        from wirebench.compressors.kernels.narrow import cast

        message = torch.empty(numel, dtype=PLAIN[form], device=values.device)
        cast(values, message, WIDE.get(form), keep, draws if form in WIDE else None)
        return message.view(torch.uint8)
    message = torch.zeros(numel, dtype=PLAIN[form], device=values.device)
    if draws and form in WIDE:
        for first, count in _blocks(values.numel(), 1):
            some = values[first : first + count].clone()
            _draw(some, WIDE[form], _noise(draws, first, count))
            message[first : first + count] = some
    else:
        message[: values.numel()] = values
    if keep is not None:
        values.sub_(message[: values.numel()]).nan_to_num_(0.0, 0.0, 0.0)
    return message.view(torch.uint8)


def _largest_of_parts(values: Tensor, each: int) -> Tensor:
    """By kernels, the largest magnitude of every `each` values, fp32; the last of them may be fewer."""
    from wirebench.compressors.kernels.segments import reduced

    whole, rest = divmod(values.numel(), each)
    groups = ((Run(each, whole),) if whole else ()) + ((Run(rest, 1),) if rest else ())
    return reduced(values, groups, "largest")[0]


def _tops(values: Tensor, own: Format, message: Tensor, each: int) -> Tensor:
    """The one scale of each part of the message, which it is written to, fp32 (parts,)."""
    missing = len(message) * each - values.numel()
    whole = (pad(values, (0, missing)) if missing else values).view(len(message), each)
    largest = torch.maximum(whole.amax(1), whole.amin(1).neg_())
    tops = _sound(largest / (own.number.largest * E4M3.largest))
    message[:, : own.whole_bytes] = tops.view(torch.uint8).view(len(message), own.whole_bytes)
    return tops


def _numel(message: Tensor, chunk: int, form: Form) -> int:
    if form in PLAIN:
        return message.numel() // PLAIN[form].itemsize
    own = FORMATS[form]
    return (message.numel() - own.whole_bytes) // (own.scale_bytes + value_bytes(chunk, form)) * chunk


def _sections(part: Tensor, chunks: int, own: Format) -> tuple[Tensor, Tensor, Tensor]:
    """Of a part of a message: the bytes of its one scale, of the chunks' scales, (chunks, bytes), of the numbers."""
    whole, scales, codes = part.split(
        [own.whole_bytes, chunks * own.scale_bytes, part.numel() - own.whole_bytes - chunks * own.scale_bytes]
    )
    return whole, scales.view(chunks, own.scale_bytes), codes


def _blocks(numel: int, chunk: int) -> Iterator[tuple[int, int]]:
    """The begin and the length of each stretch that the CPU works on at once: whole chunks."""
    length = max(CACHED // chunk, 1) * chunk
    for first in range(0, numel, length):
        yield first, min(length, numel - first)


def _sound(scales: Tensor) -> Tensor:
    """Scales that are no normal numbers are 0, and what is not finite is NaN.

    A chunk of zeros has scale 0, and stays one. So does a chunk below 8e-38 (int4) to 5e-36 (fp8): its scale would be
    so inexact that the largest number overflows. With NaN all of a chunk is NaN when it arrives.
    """
    scales = scales.masked_fill(scales < TINY, 0.0)
    return scales.masked_fill_(scales.isfinite().logical_not_(), torch.nan)


def _scaled(rows: Tensor, own: Format, top: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The scales of the chunks, (chunks, n), as bytes and as what they stand for, and the chunks over them."""
    largest = torch.maximum(rows.amax(1, keepdim=True), rows.amin(1, keepdim=True).neg_()).abs_()  # a NaN's sign, too
    limit = own.number.largest
    if own.scale == "fp32":
        step = _sound(largest / limit)
        return step.view(torch.uint8), step, rows / step.masked_fill(step == 0, 1.0)
    if own.scale == "e8m0":
        exponent = largest.view(torch.int32) >> 23
        coded = (exponent - own.number.most).clamp_(min=0).masked_fill_(exponent == 255, 255)
        return coded.to(torch.uint8), _power(coded), rows.mul(_power(254 - coded)).clamp_(-limit, limit)
    relative = largest / limit / torch.where(top == 0, 1.0, top)
    narrow = relative.clamp_(2.0**E4M3.least, E4M3.largest).to(torch.float8_e4m3fn)
    step = narrow.to(torch.float32) * top
    return narrow.view(torch.uint8), step, rows.div(step.masked_fill(step == 0, 1.0)).clamp_(-limit, limit)


def _power(exponent: Tensor) -> Tensor:
    """2 to the power of `exponent` - 127, int32 in [-1, 255]; 255, and -1 as its opposite, stand for NaN.

    The smallest is no normal number.
    """
    bits = (exponent << 23).masked_fill_(exponent == 0, 1 << 22)
    return bits.masked_fill_((exponent == 255) | (exponent == -1), 0x7FC00000).view(torch.float32)


def _noise(draws: tuple[Tensor, Tensor], begin: int, count: int) -> Tensor:
    """Numbers in [0, 1) for `count` elements from place `begin` of a message."""
    row, words = draws
    first = begin // row.numel()
    some = words[0, first : -(-(begin + count) // row.numel())]
    noise = (row ^ some[:, None] | as_float(0)).view(torch.float32).view(-1)[begin - first * row.numel() :][:count]
    return noise - 1


def _draw(scaled: Tensor, number: Number, noise: Tensor) -> None:
    """Move each value to one of the two numbers beside it, at random.

    A draw just below 1 is rounded to 1 in the sum, so that the largest number has to be kept by a limit.
    """
    if number.exponent:
        unit = _exponent(scaled, number).sub_(number.mantissa << 23).clamp_(min=1 << 23)
        scaled.mul_(((254 << 23) - unit).view(torch.float32)).add_(noise).floor_().mul_(unit.view(torch.float32))
    else:
        scaled.add_(noise).floor_()
    scaled.clamp_(-number.largest, number.largest)


def _exponent(values: Tensor, number: Number) -> Tensor:
    """The exponents of fp32 values, int32, at their place in the bits, at least the smallest of the numbers' own."""
    return (values.view(torch.int32) & 0x7F800000).clamp_(min=number.least + 127 << 23)


def _rounded(scaled: Tensor, number: Number, keep: bool) -> tuple[Tensor, Tensor]:
    """The numbers nearest to `scaled`, (chunks, n), which it overwrites: their bits, uint8, a byte each, and with
    `keep` what they stand for.
    """
    if not number.exponent:
        whole = scaled.round_().nan_to_num(0.0, 0.0, 0.0) if keep else scaled.round_().nan_to_num_(0.0, 0.0, 0.0)
        return whole.to(torch.int8).view(torch.uint8), scaled
    if number == E2M1:
        return _to_e2m1(scaled, keep)
    # Six bits are rounded as the eight-bit numbers with the same mantissa, down where those have the same distances.
    wide, dtype = (E4M3, torch.float8_e4m3fn) if number.mantissa == 3 else (E5M2, torch.float8_e5m2)
    if number.bits == 6:
        scaled *= 2.0 ** (wide.least - number.least)
    bits = scaled.to(dtype).view(torch.uint8)
    if number.bits == 6:
        bits = (bits & 31) | ((bits & 128) >> 2)
    return bits, _standing_for(bits, number, torch.empty_like(scaled)) if keep else scaled


def _to_e2m1(scaled: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """As `_rounded`. Adding what leaves one bit behind the point rounds; the bits of that sum hold the number's."""
    size = scaled.abs()
    much = _exponent(size, E2M1).add_((23 - E2M1.mantissa << 23) | (1 << 22)).view(torch.float32)
    high = size.add_(much)
    bits = high.view(torch.int32)
    # The mantissa has the number in units of its distance; the exponent counts the binades below it.
    codes = (bits >> 23 - E2M1.mantissa).add_(bits).to(torch.uint8)
    codes.sub_(((E2M1.least + 150 - E2M1.mantissa) << E2M1.mantissa) + (1 << E2M1.mantissa - 1) & 255)
    codes = codes & 7 | (scaled.view(torch.int32) >> 28).to(torch.uint8) & 8
    return codes, torch.copysign(high.sub_(much), scaled) if keep else scaled


@cache
def _table(number: Number, device: torch.device) -> Tensor:
    """What each byte stands for, (256, numbers in a byte); of 6 bits a byte has one."""
    byte = torch.arange(256, dtype=torch.uint8)
    codes = torch.stack((byte & 15, byte >> 4), 1) if number.bits == 4 else byte[:, None]
    sign = 1 << number.bits - 1
    codes = codes.to(torch.int32) & 2 * sign - 1
    if not number.exponent:
        return (codes - 2 * (codes & sign)).to(torch.float32).to(device)
    size = codes & sign - 1
    exponent = (size >> number.mantissa).clamp(min=1)
    mantissa = size - (exponent - 1 << number.mantissa)  # with the bit before the point
    values = torch.ldexp(mantissa.to(torch.float32), exponent - 1 + number.least - number.mantissa)
    values = torch.where(values > number.largest, torch.nan, values)
    return torch.where(codes & sign == 0, values, -values).contiguous().to(device)


def _standing_for(bits: Tensor, number: Number, out: Tensor) -> Tensor:
    """Write what the bytes stand for to `out`, and return it: a number each, or two of 4 bits."""
    if number == INT8:
        return out.copy_(bits.view(torch.int8).view(out.shape))
    table = _table(number, bits.device)
    if table.shape[1] == 2:
        # Both numbers of a byte are looked up at once.
        pairs = table.view(torch.int64).view(-1).index_select(0, bits.view(-1).to(torch.int32))
        return out.copy_(pairs.view(torch.float32).view(out.shape))
    return torch.index_select(table.view(-1), 0, bits.view(-1).to(torch.int32), out=out.view(-1)).view(out.shape)


def _packed(codes: Tensor, bits: int) -> Tensor:
    """Numbers of 8, 6 or 4 bits, a byte each, without a bit between them: the first is the lowest."""
    if bits == 8:
        return codes.view(-1)
    if bits == 4:
        codes = codes & 15
        both = codes.view(-1).view(torch.int16)
        return both.bitwise_or(both >> 4).to(torch.uint8)
    one, two, three, four = codes.view(-1, 4).unbind(1)
    return torch.stack((one | two << 6, two >> 2 | three << 4, three >> 4 | four << 2), 1).view(-1)


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    """Numbers of 6 bits, a byte each; numbers of 8 and of 4 bits do not change."""
    if bits != 6:
        return packed
    one, two, three = packed.reshape(-1, 3).unbind(1)
    parts = (one & 63, one >> 6 | (two & 15) << 2, two >> 4 | (three & 3) << 4, three >> 2)
    return torch.stack(parts, 1).view(-1)


def _arrived(message: Tensor, chunk: int, form: Form, out: Tensor, add: bool = False) -> int:
    """Write, or add, what a message of one part stands for to the begin of `out`; returns its elements."""
    numel = _numel(message, chunk, form)
    out = out[:numel]
    if form in PLAIN:
        aligned = message.storage_offset() % PLAIN[form].itemsize == 0
        numbers = (message if aligned else message.clone()).view(PLAIN[form])[: out.numel()]
        out.add_(numbers) if add else out.copy_(numbers)
        return numel
    own = FORMATS[form]
    whole, scales, codes = _sections(message, numel // chunk, own)
    for first, count in _blocks(numel, chunk):
        coded = scales[first // chunk :][: count // chunk].contiguous()
        if own.scale == "fp32":
            steps = coded.clone().view(torch.float32)
        elif own.scale == "e8m0":
            steps = _power(coded.to(torch.int32))
        else:
            steps = coded.view(torch.float8_e4m3fn).to(torch.float32) * whole.clone().view(torch.float32)
        packed = codes[value_bytes(first, form) :][: value_bytes(count, form)].contiguous()
        numbers = torch.empty((count // chunk, chunk), device=out.device)
        _standing_for(_unpacked(packed, own.number.bits), own.number, numbers).mul_(steps)
        mine = out[first : first + count]
        arriving = numbers.view(-1)[: mine.numel()]
        mine.add_(arriving) if add else mine.copy_(arriving)
    return numel
