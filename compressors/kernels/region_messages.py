"""What lies above a threshold, as a message for each region of a vector (`sparse/regions.py`)."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.kernels import APART, launching
from wirebench.compressors.kernels.entries import KINDS, LANES, _arriving, _below_in, _stored_bits, _word, table_of
from wirebench.compressors.kernels.selection import _key
from wirebench.utils.device_tables import device_table

TILE, PROGRAMS = 2048, 512
"""Elements that a program reads at once, and programs, at most."""
LIMITS = 6


class Above:
    """How many elements of each region of `x`, fp32, have a magnitude whose bits are above each limit.

    starts  where each region begins, and where the last one ends
    limits  LIMITS of them, or one
    counts  int64 (limits, regions), on the host, which waits for it after one launch
    """

    counts: "np.ndarray[Any, np.dtype[np.int64]]"

    def __init__(self, x: Tensor, starts: Sequence[int], limits: Sequence[int]) -> None:
        self.x, self.limits, many = x, list(limits), len(starts) - 1
        self.share = max(PROGRAMS // many, 1)
        self.edges = _edges(tuple(starts), self.share, x.device)
        self.tallies = torch.empty((len(limits), many * self.share), dtype=torch.int32, device=x.device)
        _launch_count(x, self.edges, self.tallies, self.limits)
        tallies = self.tallies.cpu().numpy().astype(np.int64)
        self.counts = tallies.reshape(len(limits), many, self.share).sum(2)

    def messages(
        self, number: int, dtype: torch.dtype, rest: Tensor | None = None
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """What is above the limit of this number, ascending, in one launch: places, int64; values as they arrive, fp32;
        and a message for each region, of places in it. What rounding cuts off is added to `rest`, a vector like `x`.
        """
        counts = self.counts[number].tolist()
        index = torch.empty(sum(counts), dtype=torch.int64, device=self.x.device)
        arriving = self.x.new_empty(sum(counts))
        message = torch.empty(sum(counts) * (4 + dtype.itemsize), dtype=torch.uint8, device=self.x.device)
        if sum(counts):
            _launch_write(
                self.x, self.edges, self.tallies[number], index, arriving, message, rest, self.limits[number],
                self.share, dtype,
            )  # fmt: skip
        return index, arriving, list(message.split([count * (4 + dtype.itemsize) for count in counts]))


@launching
def keep_rest_of(
    residual: Tensor, index: Tensor, arriving: Tensor, messages: Sequence[Tensor], bases: Sequence[int],
    dtype: torch.dtype,
) -> None:  # fmt: skip
    """Take `arriving` out of `residual` at those places of `index` that a message has; one launch.

    bases  places that each message's begin from, ascending
    """
    if index.numel():
        table = table_of(messages, 4 + dtype.itemsize, bases, residual.device)
        most = max(each.numel() for each in messages) // (4 + dtype.itemsize)
        _keep_rest_of[(triton.cdiv(index.numel(), LANES),)](
            residual, index, arriving, messages[0], table, index.numel(), len(messages), most.bit_length(),
            LANES=LANES, **APART,
        )  # fmt: skip


@device_table(maxsize=256)
def _edges(starts: tuple[int, ...], share: int, device: torch.device) -> Tensor:
    """Where each program begins, of which a region has `share`, and where the last one ends."""
    parts = [np.linspace(a, b, share, endpoint=False, dtype=np.int64) for a, b in pairwise(starts)]
    return torch.from_numpy(np.concatenate([*parts, np.array(starts[-1:])])).to(device)


@launching
def _launch_count(x: Tensor, edges: Tensor, tallies: Tensor, limits: list[int]) -> None:
    limits = limits + limits[:1] * (LIMITS - len(limits))
    _count[(tallies.shape[1],)](x, edges, tallies, *limits, tallies.shape[1], MANY=len(tallies) > 1, TILE=TILE, **APART)


@launching
def _launch_write(
    x: Tensor, edges: Tensor, tallies: Tensor, index: Tensor, arriving: Tensor, message: Tensor, rest: Tensor | None,
    limit: int, share: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    _write_messages[(len(tallies),)](
        x, edges, tallies, index, arriving, message, x if rest is None else rest, limit, share, len(tallies),
        KIND=KINDS[dtype], BYTES=dtype.itemsize, REST=rest is not None, TILE=TILE,
        PROGRAMS=triton.next_power_of_2(len(tallies)), **APART,
    )  # fmt: skip


@triton.jit
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
def _write_messages(x, edges, tallies, index, arrivals, message, rest, limit, share, programs,
                    KIND: tl.constexpr, BYTES: tl.constexpr, REST: tl.constexpr, TILE: tl.constexpr,
                    PROGRAMS: tl.constexpr):  # fmt: skip
    program = tl.program_id(0)
    head = program // share * share
    each = tl.arange(0, PROGRAMS)
    found = tl.load(tallies + each, mask=each < programs, other=0).to(tl.int64)
    before = tl.sum(tl.where(each < program, found, 0), 0)
    cut = tl.sum(tl.where(each < head, found, 0), 0)
    many = tl.sum(tl.where((each >= head) & (each < head + share), found, 0), 0)
    base = tl.load(edges + head)
    end = tl.load(edges + program + 1)
    message += cut * (4 + BYTES)
    for start in range(tl.load(edges + program), end, TILE):
        place = start + tl.arange(0, TILE)
        value = tl.load(x + place, mask=place < end, other=0.0)
        chosen = (_key(value) > limit).to(tl.int32)
        at = before + tl.cumsum(chosen, 0) - chosen
        arriving = _arriving(value, KIND)
        tl.store(index + at, place, mask=chosen > 0)
        tl.store(arrivals + at, arriving, mask=chosen > 0)
        within = (place - base).to(tl.int32)
        bits = _stored_bits(arriving, KIND)
        for byte in tl.static_range(4):
            tl.store(message + 4 * (at - cut) + byte, ((within >> (8 * byte)) & 255).to(tl.uint8), mask=chosen > 0)
        for byte in tl.static_range(BYTES):
            where = message + 4 * many + BYTES * (at - cut) + byte
            tl.store(where, ((bits >> (8 * byte)) & 255).to(tl.uint8), mask=chosen > 0)
        if REST:
            left = value - arriving
            left = tl.where(tl.abs(left) < float("inf"), left, 0.0)
            tl.store(rest + place, tl.load(rest + place, mask=chosen > 0, other=0.0) + left, mask=chosen > 0)
        before += tl.sum(chosen, 0)


@triton.jit
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
