"""Chosen entries: out of a vector into a message, and from all ranks' messages or sums into the average.

Places ascend, and none comes twice among one rank's. A message is as `sparse/encoding.py` has it for int32 indices.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.kernels import APART, launching, on
from wirebench.utils.device_tables import device_table

SPAN, LANES = 4096, 128
"""Places that a program of a decoding owns, and entries that a program handles at once."""
TILE, PROGRAMS = 4096, 512
"""Numbers that a program looks at at once, and programs, at most."""
KINDS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


@launching
def take(
    vector: Tensor, index: Tensor, values: Tensor, *, places: Tensor | None = None, arriving: Tensor | None = None,
    rest: Tensor | None = None, clear: Tensor | None = None, flags: Tensor | None = None,
) -> None:  # fmt: skip
    """Write what `vector`, fp32, holds at `index` to `values`, fp32, fp16 or bf16; one launch.

    places    int32: `index` is written to it
    arriving  fp32: what arrives of the values is written to it
    rest      vector: what arrives is taken away from it at `index`; left is 0 where that is not finite
    clear     vector that becomes 0 at `index`
    flags     as from `unsound`: where one is set all values become NaN

    Entries of `index` below 0 are none: their values are 0.

    Twins: `base.taken`, `places.values_at`.
    """
    count = index.numel()
    if count:
        _take[(triton.cdiv(count, LANES),)](
            vector, index, _bits(values), index if places is None else places, vector if arriving is None else arriving,
            vector if rest is None else rest, vector if clear is None else clear, index if flags is None else flags,
            count, KIND=KINDS[values.dtype], PLACES=places is not None, ARRIVING=arriving is not None,
            REST=rest is not None, CLEAR=clear is not None, FLAGS=0 if flags is None else flags.numel(), LANES=LANES,
            **APART,
        )  # fmt: skip


@launching
def unsound(x: Tensor, divisor: float = 1.0) -> Tensor:
    """Flags, int32, of which one at least is set where a number of `x` over `divisor` is not finite; one launch."""
    programs = min(triton.next_power_of_2(max(triton.cdiv(x.numel(), TILE), 1)), PROGRAMS)
    flags = torch.empty(programs, dtype=torch.int32, device=x.device)
    tiles = triton.cdiv(triton.cdiv(x.numel(), TILE), programs)
    _unsound[(programs,)](_bits(x), flags, x.numel(), float(divisor), tiles, KIND=KINDS[x.dtype], TILE=TILE, **APART)
    return flags


@launching
def place(out: Tensor, index: Tensor, total: Tensor, divisor: float) -> None:
    """Write `total` over `divisor` at `index` of `out`, 0 elsewhere; NaN where a quotient is not finite; two launches.

    Twin: `places.write_average`.
    """
    flags = unsound(total, divisor)
    _place[(triton.cdiv(out.numel(), SPAN),)](
        out, index, _bits(total), flags, out.numel(), index.numel(), float(divisor), index.numel().bit_length(),
        KIND=KINDS[total.dtype], FLAGS=flags.numel(), SPAN=SPAN, LANES=LANES, **APART,
    )  # fmt: skip


@launching
def average(
    out: Tensor, messages: Sequence[Tensor], dtype: torch.dtype, size: int, bases: Sequence[int] = (),
    listed: tuple[Tensor, Tensor] | None = None,
) -> None:  # fmt: skip
    """Write the sum of all ranks' messages, in their order, over `size` to `out`; one launch. Twin: `base.average_of`.

    bases   the place from which each message's places count; by default 0
    listed  of messages whose places are no int32: these, and a table, as from `index_codes.listed`, which has the bases
    """
    index, table, most = places_of(messages, dtype, bases, out.device, listed)
    _average[(max(triton.cdiv(out.numel(), SPAN), 1),)](
        out, index, messages[0], table, out.numel(), len(messages), float(size), most.bit_length(),
        KIND=KINDS[dtype], BYTES=dtype.itemsize, RANKS=triton.next_power_of_2(len(messages)), SPAN=SPAN, LANES=LANES,
        **APART,
    )  # fmt: skip


@launching
def put_back(residual: Tensor, index: Tensor, values: Tensor, survivors: Tensor, kept: bool = False) -> None:
    """Add `values` to `residual` at those places of `index` that are not among `survivors`; one launch.

    kept  at those that are. What is 0 may have any place
    """
    if index.numel():
        _put_back[(triton.cdiv(index.numel(), LANES),)](
            residual, index, values, survivors, index.numel(), survivors.numel(), survivors.numel().bit_length(),
            KEPT=kept, LANES=LANES, **APART,
        )  # fmt: skip


def _bits(numbers: Tensor) -> Tensor:
    """bf16 as whole numbers, which Triton's interpreter reads; all else unchanged."""
    return numbers.view(torch.int16) if numbers.dtype == torch.bfloat16 else numbers


def places_of(
    messages: Sequence[Tensor], dtype: torch.dtype, bases: Sequence[int], device: torch.device,
    listed: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor, int]:  # fmt: skip
    """Where messages' places lie, as bytes; a table of the messages; and places that one of them has, at most."""
    if listed is None:
        table = table_of(messages, 4 + dtype.itemsize, bases or [0] * len(messages), device)
        return messages[0], table, max(each.numel() for each in messages) // (4 + dtype.itemsize)
    rows, table = listed
    return rows.view(-1).view(torch.uint8), table, rows.shape[1]


def table_of(messages: Sequence[Tensor], entry_bytes: int, bases: Sequence[int], device: torch.device) -> Tensor:
    """int64 (4, messages): where each begins, in bytes from the first one, wherever it lies; its entries; its base;
    where its values begin.
    """
    begins = tuple(each.data_ptr() - messages[0].data_ptr() if each.numel() else 0 for each in messages)
    counts = tuple(each.numel() // entry_bytes for each in messages)
    values = tuple(begin + 4 * count for begin, count in zip(begins, counts, strict=True))
    return _table(begins, counts, tuple(bases), device, values)


@device_table()
def _table(
    begins: tuple[int, ...], counts: tuple[int, ...], bases: tuple[int, ...], device: torch.device,
    values: tuple[int, ...] = (),
) -> Tensor:  # fmt: skip
    return on(device, torch.tensor([begins, counts, bases, *([values] if values else [])]))


@triton.jit
def _arriving(values, KIND: tl.constexpr):
    """What arrives of fp32 `values`, fp32; too large for fp16 becomes its largest number, infinity stays."""
    if KIND == "fp16":
        size = tl.abs(values)
        most = tl.where(values < 0, -65504.0, 65504.0)
        return tl.where((size > 65504.0) & (size < float("inf")), most, values).to(tl.float16).to(tl.float32)
    elif KIND == "bf16":
        bits = values.to(tl.int32, bitcast=True)
        bits = tl.where(values == values, bits + 0x7FFF + ((bits >> 16) & 1), 0x7FC00000)
        return ((bits >> 16) << 16).to(tl.float32, bitcast=True)
    else:
        return values


@triton.jit
def _as_stored(values, KIND: tl.constexpr):
    """fp32 numbers that `_arriving` gave, as a message has them."""
    if KIND == "fp16":
        return values.to(tl.float16)
    elif KIND == "bf16":
        return (values.to(tl.int32, bitcast=True) >> 16).to(tl.int16)
    else:
        return values


@triton.jit
def _stored_bits(values, KIND: tl.constexpr):
    """The bits of `_as_stored`, int32."""
    stored = _as_stored(values, KIND)
    return stored.to(tl.int32, bitcast=True) if KIND == "fp32" else stored.to(tl.int16, bitcast=True).to(tl.int32)


@triton.jit
def _loaded(numbers, KIND: tl.constexpr):
    """The inverse of `_as_stored`."""
    if KIND == "bf16":
        return (numbers.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return numbers.to(tl.float32)


@triton.jit
def _any(flags, FLAGS: tl.constexpr):
    """Whether one of the flags is set, which are a power of two in number."""
    return tl.max(tl.load(flags + tl.arange(0, FLAGS)), 0) > 0


@triton.jit(do_not_specialize=["count"])
def _take(vector, index, values, places, arrivals, rest, clear, flags, count,
          KIND: tl.constexpr, PLACES: tl.constexpr, ARRIVING: tl.constexpr, REST: tl.constexpr, CLEAR: tl.constexpr,
          FLAGS: tl.constexpr, LANES: tl.constexpr):  # fmt: skip
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    inside = lane < count
    at = tl.load(index + lane, mask=inside, other=0).to(tl.int64)
    there = inside & (at >= 0)
    arriving = _arriving(tl.load(vector + at, mask=there, other=0.0), KIND)
    sent = arriving
    if FLAGS > 0:
        sent = tl.where(_any(flags, FLAGS), float("nan"), arriving)
    tl.store(values + lane, _as_stored(sent, KIND), mask=inside)
    if PLACES:
        tl.store(places + lane, at.to(tl.int32), mask=inside)
    if ARRIVING:
        tl.store(arrivals + lane, arriving, mask=inside)
    if REST:
        left = tl.load(rest + at, mask=there, other=0.0) - arriving
        tl.store(rest + at, tl.where(tl.abs(left) < float("inf"), left, 0.0), mask=there)
    if CLEAR:
        tl.store(clear + at, tl.zeros([LANES], tl.float32), mask=there)


@triton.jit(do_not_specialize=["tiles"])
def _unsound(x, flags, numel, divisor, tiles, KIND: tl.constexpr, TILE: tl.constexpr):
    found = tl.zeros([TILE], tl.int32)
    for number in range(tiles):
        places = (tl.program_id(0).to(tl.int64) * tiles + number) * TILE + tl.arange(0, TILE)
        values = _loaded(tl.load(x + places, mask=places < numel, other=0), KIND)
        sound = tl.abs(tl.div_rn(values, tl.zeros_like(values) + divisor)) < float("inf")
        found = found | (1 - sound.to(tl.int32))
    tl.store(flags + tl.program_id(0), tl.max(found, 0))


@triton.jit
def _below(places, count, target, steps):
    """How many of `count` ascending places are below each target, int64."""
    low = target * 0
    high = low + count
    for _ in range(steps):
        middle = (low + high) // 2
        inside = low < high
        less = inside & (tl.load(places + middle, mask=inside, other=0) < target)
        high = tl.where(inside & (less == 0), middle, high)
        low = tl.where(less, middle + 1, low)
    return low


@triton.jit(do_not_specialize=["count", "steps"])
def _place(out, index, total, flags, numel, count, divisor, steps,
           KIND: tl.constexpr, FLAGS: tl.constexpr, SPAN: tl.constexpr, LANES: tl.constexpr):  # fmt: skip
    """A program owns SPAN places: all of them are filled, then the entries of `index` that lie there are written."""
    begin = tl.program_id(0).to(tl.int64) * SPAN
    own = begin + tl.arange(0, SPAN)
    fill = tl.where(_any(flags, FLAGS), float("nan"), 0.0)
    tl.store(out + own, tl.zeros([SPAN], tl.float32) + fill, mask=own < numel)
    end = tl.arange(0, 2)
    cuts = _below(index, count, begin + end.to(tl.int64) * SPAN, steps)
    first = tl.sum(tl.where(end == 0, cuts, 0), 0)
    last = tl.sum(tl.where(end == 1, cuts, 0), 0)
    tl.debug_barrier()
    for start in range(first, last, LANES):
        lane = start + tl.arange(0, LANES)
        at = tl.load(index + lane, mask=lane < last, other=0)
        value = _loaded(tl.load(total + lane, mask=lane < last, other=0), KIND)
        tl.store(out + at, tl.div_rn(value, tl.zeros_like(value) + divisor), mask=lane < last)


@triton.jit
def _word(data, at, mask, BYTES: tl.constexpr):
    """The whole number of `BYTES` bytes at any place of a message."""
    bits = tl.load(data + at, mask=mask, other=0).to(tl.int32)
    for byte in tl.static_range(1, BYTES):
        bits |= tl.load(data + at + byte, mask=mask, other=0).to(tl.int32) << (8 * byte)
    return bits


@triton.jit
def _value(bits, KIND: tl.constexpr):
    """The fp32 number of a value's bits, int32."""
    if KIND == "fp16":
        return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    elif KIND == "bf16":
        return (bits << 16).to(tl.float32, bitcast=True)
    else:
        return bits.to(tl.float32, bitcast=True)


@triton.jit
def _below_in(data, begins, counts, target, steps):
    """How many entries of each message have a place below `target`, int64."""
    low = begins * 0
    high = low + counts
    for _ in range(steps):
        middle = (low + high) // 2
        inside = low < high
        less = inside & (_word(data, begins + 4 * middle, inside, 4) < target)
        high = tl.where(inside & (less == 0), middle, high)
        low = tl.where(less, middle + 1, low)
    return low


@triton.jit(do_not_specialize=["steps"])
def _average(out, index, data, table, numel, ranks, size, steps,
             KIND: tl.constexpr, BYTES: tl.constexpr, RANKS: tl.constexpr, SPAN: tl.constexpr,
             LANES: tl.constexpr):  # fmt: skip
    """A program owns SPAN places, to which it adds the entries that lie there, rank after rank.

    index, data  have the entries' places, and their values
    """
    begin = tl.program_id(0).to(tl.int64) * SPAN
    own = begin + tl.arange(0, SPAN)
    tl.store(out + own, tl.zeros([SPAN], tl.float32), mask=own < numel)
    each = tl.arange(0, RANKS)
    begins = tl.load(table + each, mask=each < ranks, other=0)
    counts = tl.load(table + ranks + each, mask=each < ranks, other=0)
    bases = tl.load(table + 2 * ranks + each, mask=each < ranks, other=0)
    firsts = _below_in(index, begins, counts, begin - bases, steps)
    lasts = _below_in(index, begins, counts, begin + SPAN - bases, steps)
    for rank in range(ranks):
        here = each == rank
        message, values = tl.load(table + rank), tl.load(table + 3 * ranks + rank)
        base = tl.load(table + 2 * ranks + rank)
        last = tl.sum(tl.where(here, lasts, 0), 0)
        tl.debug_barrier()
        for start in range(tl.sum(tl.where(here, firsts, 0), 0), last, LANES):
            lane = start + tl.arange(0, LANES)
            at = base + _word(index, message + 4 * lane, lane < last, 4)
            value = _value(_word(data, values + BYTES * lane, lane < last, BYTES), KIND)
            tl.store(out + at, tl.load(out + at, mask=lane < last, other=0.0) + value, mask=lane < last)
    tl.debug_barrier()
    total = tl.load(out + own, mask=own < numel, other=0.0)
    tl.store(out + own, tl.div_rn(total, tl.zeros_like(total) + size), mask=own < numel)


@triton.jit(do_not_specialize=["count", "survived", "steps"])
def _put_back(residual, index, values, survivors, count, survived, steps, KEPT: tl.constexpr, LANES: tl.constexpr):
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    at = tl.load(index + lane, mask=lane < count, other=0).to(tl.int64)
    near = _below(survivors, survived, at, steps)
    survives = tl.load(survivors + near, mask=near < survived, other=-1) == at
    value = tl.load(values + lane, mask=lane < count, other=0.0)
    back = (value != 0.0) & (survives if KEPT else survives == 0)
    tl.store(residual + at, tl.load(residual + at, mask=back, other=0.0) + value, mask=back)
