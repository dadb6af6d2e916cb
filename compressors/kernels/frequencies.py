"""DeMo's blocks: momentum, cosine transform, choice and what stays in a launch; the mean and its signs in another."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.bits.packing import bytes12
from wirebench.compressors.kernels import APART, launching, stacked
from wirebench.compressors.kernels.chunk_messages import _number12, _write12
from wirebench.compressors.kernels.chunks import picked_of
from wirebench.compressors.kernels.entries import KINDS, _arriving, _stored_bits, _value, _word

SIDE = 64
"""The longest side of a block."""
PAIRS = 256
"""Of entries, which a program writes."""


@launching
def send(
    momentum: Tensor, grad: Tensor, beta: float, table: Tensor, firsts: Tensor, total: int, cosines: Tensor,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """The message of the largest frequencies of each block of beta `momentum` + `grad`, which leave `momentum`.

    table    int64 (4, blocks): of each block its first element, the distance of its rows, its height and width
    firsts   int64 (blocks + 1,): how many are chosen of the blocks before, of which all are `total`
    cosines  fp32 (65, 64, 64): the orthonormal DCT-II of each length, zero beyond it
    dtype    fp32 or bf16, in which values travel

    Two launches; products are in fp32. Equal magnitudes are taken from the front. Twin: `demo._message`.
    """
    within, values = firsts.new_empty(total), grad.new_empty(total)
    blocks = table.shape[1]
    _send[(blocks,)](
        momentum, grad, within, values, table, blocks, firsts, cosines, beta,
        KIND=KINDS[dtype], SIDE=SIDE, num_warps=8, **APART,
    )  # fmt: skip
    message = torch.empty(bytes12(total) + dtype.itemsize * total, dtype=torch.uint8, device=grad.device)
    _pack[(triton.cdiv(total, 2 * PAIRS),)](
        within, values, message, total, bytes12(total), KIND=KINDS[dtype], BYTES=dtype.itemsize, PAIRS=PAIRS, **APART
    )
    return message


@launching
def receive(
    out: Tensor, messages: Sequence[Tensor], table: Tensor, firsts: Tensor, total: int, most: int, cosines: Tensor,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    """Write the signs of the elements whose frequencies are the means over those messages that have them, NaN for what
    is not finite, to `out`; one launch. For the rest see `send`.

    most  entries of a block, at most. Twin: `demo._signs`.
    """
    rows, counts = stacked(messages), torch.empty_like(out, dtype=torch.int16)
    blocks = table.shape[1]
    _receive[(blocks,)](
        out, counts, rows, table, blocks, firsts, cosines, rows.stride(0), len(rows), bytes12(total),
        KIND=KINDS[dtype], BYTES=dtype.itemsize, LANES=triton.next_power_of_2(most), SIDE=SIDE, num_warps=8, **APART,
    )  # fmt: skip


@triton.jit
def _block(table, blocks, SIDE: tl.constexpr):
    """This program's block: its elements' places, which are there, its height and width."""
    table += tl.program_id(0)
    height, width = tl.load(table + 2 * blocks), tl.load(table + 3 * blocks)
    row, column = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    places = tl.load(table) + row * tl.load(table + blocks) + column
    return places, (row < height) & (column < width), height, width


@triton.jit
def _turned(block, cosines, height, width, BACK: tl.constexpr, SIDE: tl.constexpr):
    """The cosine transform of a block, or the way back."""
    row, column = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    square, turned = row * SIDE + column, column * SIDE + row
    left, right = (turned, square) if BACK else (square, turned)
    down = tl.load(cosines + height * (SIDE * SIDE) + left)
    across = tl.load(cosines + width * (SIDE * SIDE) + right)
    return tl.dot(tl.dot(down, block, input_precision="ieee"), across, input_precision="ieee")


@triton.jit
def _send(momentum, grad, chosen, values, table, blocks, firsts, cosines, beta,
          KIND: tl.constexpr, SIDE: tl.constexpr):  # fmt: skip
    """A program a block. The k-th magnitude is found bit by bit, then what is above it, and as many that equal it."""
    places, inside, height, width = _block(table, blocks, SIDE)
    held = tl.load(momentum + places, mask=inside, other=0.0)
    held = tl.fma(held, tl.zeros_like(held) + beta, tl.load(grad + places, mask=inside, other=0.0))
    spectrum = _turned(held, cosines, height, width, False, SIDE)
    keys = tl.reshape(tl.where(inside, spectrum.to(tl.int32, bitcast=True) & 0x7FFFFFFF, -1), [SIDE * SIDE])
    first = tl.load(firsts + tl.program_id(0))
    count = (tl.load(firsts + tl.program_id(0) + 1) - first).to(tl.int32)
    picked = picked_of(keys, count)
    lane = tl.arange(0, SIDE * SIDE)
    at = first + tl.cumsum(picked, 0) - picked
    arriving = _arriving(spectrum, KIND)
    tl.store(chosen + at, lane // SIDE * width + lane % SIDE, mask=picked > 0)
    tl.store(values + at, tl.reshape(arriving, [SIDE * SIDE]), mask=picked > 0)
    kept = tl.where(tl.reshape(picked, [SIDE, SIDE]) > 0, arriving, 0.0)
    tl.store(momentum + places, held - _turned(kept, cosines, height, width, True, SIDE), mask=inside)


@triton.jit
def _pack(within, values, message, total, places, KIND: tl.constexpr, BYTES: tl.constexpr, PAIRS: tl.constexpr):
    pair = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    numbers = tl.zeros([PAIRS], tl.int32)
    for odd in tl.static_range(2):
        entry = 2 * pair + odd
        there = entry < total
        numbers |= tl.load(within + entry, mask=there, other=0).to(tl.int32) << (12 * (1 - odd))
        bits = _stored_bits(tl.load(values + entry, mask=there, other=0.0), KIND)
        for byte in tl.static_range(BYTES):
            where = message + places + entry * BYTES + byte
            tl.store(where, ((bits >> (8 * byte)) & 255).to(tl.uint8), mask=there)
    _write12(message, pair, numbers >> 12, numbers & 4095, places)


@triton.jit
def _receive(out, counts, messages, table, blocks, firsts, cosines, distance, ranks, packed,
             KIND: tl.constexpr, BYTES: tl.constexpr, LANES: tl.constexpr, SIDE: tl.constexpr):  # fmt: skip
    """A program a block, in whose place in `out` it adds each message's frequencies in turn, row by row."""
    places, inside, height, width = _block(table, blocks, SIDE)
    tl.store(out + places, tl.zeros([SIDE, SIDE], tl.float32), mask=inside)
    tl.store(counts + places, tl.zeros([SIDE, SIDE], tl.int16), mask=inside)
    begin, between = tl.load(table + tl.program_id(0)), tl.load(table + blocks + tl.program_id(0))
    first = tl.load(firsts + tl.program_id(0))
    there = tl.arange(0, LANES) < tl.load(firsts + tl.program_id(0) + 1) - first
    entry = first + tl.arange(0, LANES)
    message = messages
    for _ in range(ranks):
        tl.debug_barrier()
        number = _number12(message, entry, there)
        at = begin + number // width * between + number % width
        value = _value(_word(message + packed, BYTES * entry, there, BYTES), KIND)
        tl.store(out + at, tl.load(out + at, mask=there, other=0.0) + value, mask=there)
        tl.store(counts + at, tl.load(counts + at, mask=there, other=0) + 1, mask=there)
        message += distance
    tl.debug_barrier()
    count = tl.load(counts + places, mask=inside, other=1).to(tl.float32)
    mean = tl.div_rn(tl.load(out + places, mask=inside, other=0.0), tl.where(count > 0, count, 1.0))
    block = _turned(mean, cosines, height, width, True, SIDE)
    signs = (block > 0).to(tl.float32) - (block < 0).to(tl.float32) + block * 0
    tl.debug_barrier()
    tl.store(out + places, signs, mask=inside)
