"""Error feedback with a momentum: both memories in one launch; and what layers that go dense need."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.kernels import APART, launching, on, together
from wirebench.compressors.kernels.entries import _below
from wirebench.compressors.kernels.together import TOGETHER, meet
from wirebench.utils.device_tables import device_table

TILE = 2048
"""Elements of a program."""


@launching
def accumulate(residual: Tensor, velocity: Tensor, grad: Tensor, momentum: float, nesterov: bool) -> None:
    """Add the gradient to the velocity, and the velocity to the residual; twin: `Feedback.accumulate`."""
    _accumulate[(triton.cdiv(grad.numel(), TILE),)](
        residual, velocity, grad, grad.numel(), momentum, NESTEROV=nesterov, TILE=TILE, **APART
    )


@launching
def accumulate_clipped(
    residual: Tensor, velocity: Tensor | None, grad: Tensor, momentum: float, nesterov: bool, limit: float
) -> None:
    """As `accumulate`, of the gradient scaled down to the norm `limit`, which itself does not change; one launch.

    velocity  None: the gradient is added to the residual
    """
    many = together.programs(grad.device)
    arrived = torch.zeros(1, dtype=torch.int32, device=grad.device)
    _accumulate_clipped[(many,)](
        residual, residual if velocity is None else velocity, grad, arrived,
        torch.empty(many, dtype=torch.float64, device=grad.device), grad.numel(), momentum, float(limit),
        VELOCITY=velocity is not None, NESTEROV=nesterov, TILE=TILE, POWER=triton.next_power_of_2(many), **TOGETHER,
    )  # fmt: skip


@device_table()
def slices_of(pieces: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
    """Slices of a vector, (start, stop) each, one after the other: int64 (2, slices), where each begins among them all,
    and in the vector.
    """
    begins, place = [], 0
    for start, stop in pieces:
        begins.append(place)
        place += stop - start
    return on(device, torch.tensor([begins, [start for start, _ in pieces]]))


@launching
def take_pieces(x: Tensor, table: Tensor, numel: int) -> Tensor:
    """The `numel` elements of `x` in the slices of a table of `slices_of`, (numel,); they become 0; one launch."""
    out = x.new_empty(numel)
    many = table.shape[1]
    _take_pieces[(triton.cdiv(numel, TILE),)](x, table, out, numel, many, many.bit_length(), TILE=TILE, **APART)
    return out


@launching
def put_pieces(
    x: Tensor, table: Tensor, total: Tensor, size: int, velocity: Tensor | None, momentum: float, nesterov: bool
) -> None:
    """Write `total`, fp32 (n,), over `size` to the slices of a table of `slices_of`; one launch.

    velocity  (n,): of these numbers, as momentum SGD has it, which then writes what it makes of them; None: without it

    Twin: `DenseBelow._with_momentum`.
    """
    many = table.shape[1]
    _put_pieces[(triton.cdiv(total.numel(), TILE),)](
        x, table, total, total if velocity is None else velocity, total.numel(), many, many.bit_length(), float(size),
        momentum, VELOCITY=velocity is not None, NESTEROV=nesterov, TILE=TILE, **APART,
    )  # fmt: skip


@triton.jit
def _add(residual, velocity, place, there, fresh, momentum, VELOCITY: tl.constexpr, NESTEROV: tl.constexpr):
    left = tl.load(residual + place, mask=there, other=0.0)
    if VELOCITY:
        moving = tl.load(velocity + place, mask=there, other=0.0)
        if NESTEROV:
            moving = (moving + fresh) * momentum
            left += fresh
        else:
            moving = tl.fma(moving, tl.zeros_like(moving) + momentum, fresh)
        tl.store(velocity + place, moving, mask=there)
        left += moving
    else:
        left += fresh
    tl.store(residual + place, left, mask=there)


@triton.jit
def _accumulate(residual, velocity, grad, numel, momentum, NESTEROV: tl.constexpr, TILE: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    there = place < numel
    _add(residual, velocity, place, there, tl.load(grad + place, mask=there, other=0.0), momentum, True, NESTEROV)


@triton.jit
def _accumulate_clipped(residual, velocity, grad, arrived, parts, numel, momentum, limit,
                        VELOCITY: tl.constexpr, NESTEROV: tl.constexpr, TILE: tl.constexpr,
                        POWER: tl.constexpr):  # fmt: skip
    program, many = tl.program_id(0), tl.num_programs(0)
    squares = tl.zeros([TILE], tl.float64)
    for number in range(program, tl.cdiv(numel, TILE), many):
        place = (tl.zeros([TILE], tl.int64) + number) * TILE + tl.arange(0, TILE)
        values = tl.load(grad + place, mask=place < numel, other=0.0).to(tl.float64)
        squares += values * values
    tl.store(parts + program, tl.sum(squares, 0))
    meet(arrived, 1)
    other = tl.arange(0, POWER)
    norm = tl.sqrt(tl.sum(tl.load(parts + other, mask=other < many, other=0.0), 0)).to(tl.float32)
    # What is not finite is not scaled: infinity would become NaN, and all else 0.
    above = (norm > limit) & (norm < float("inf"))
    norm = tl.where(above, norm, 1.0)
    scale = tl.where(above, tl.div_rn(norm * 0.0 + limit, norm), 1.0)
    for number in range(program, tl.cdiv(numel, TILE), many):
        place = (tl.zeros([TILE], tl.int64) + number) * TILE + tl.arange(0, TILE)
        there = place < numel
        fresh = tl.load(grad + place, mask=there, other=0.0) * scale
        _add(residual, velocity, place, there, fresh, momentum, VELOCITY, NESTEROV)


@triton.jit
def _in_pieces(table, numel, many, steps, TILE: tl.constexpr):
    """This program's elements of all slices: their numbers, which are there, and their places."""
    number = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    there = number < numel
    piece = _below(table, many, tl.where(there, number, 0) + 1, steps) - 1
    return number, there, number - tl.load(table + piece) + tl.load(table + many + piece)


@triton.jit
def _take_pieces(x, table, out, numel, many, steps, TILE: tl.constexpr):
    number, there, place = _in_pieces(table, numel, many, steps, TILE)
    tl.store(out + number, tl.load(x + place, mask=there, other=0.0), mask=there)
    tl.store(x + place, tl.zeros([TILE], tl.float32), mask=there)


@triton.jit
def _put_pieces(x, table, total, velocity, numel, many, steps, size, momentum,
                VELOCITY: tl.constexpr, NESTEROV: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    number, there, place = _in_pieces(table, numel, many, steps, TILE)
    value = tl.load(total + number, mask=there, other=0.0)
    value = tl.div_rn(value, tl.zeros_like(value) + size)
    if VELOCITY:
        moving = tl.load(velocity + number, mask=there, other=0.0) * momentum + value
        tl.store(velocity + number, moving, mask=there)
        value = value + moving * momentum if NESTEROV else moving
    tl.store(x + place, value, mask=there)
