"""The block-shift hash of a Count-Sketch: contiguous additions, no atomics, deterministic on CPU and CUDA.

The vector is cut into blocks as long as a row of the table. Row j adds block b rotated by a random shift(j, b), times a
random sign(j, b) and a random sign for every place in a block, which all blocks and rows share.

Two elements of one block never share a cell, two of different blocks do with probability 1 / columns. Since the signs
of blocks are independent, a row's estimate is unbiased with variance (||x||^2 - ||x's block||^2) / columns, not above
the textbook's. The signs of places matter for the estimate of ||x||^2 alone: without them, two blocks of entries that
are mostly positive would add up, or cancel, all along.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wirebench.utils.rng import generator

SLICED_COLUMNS = 4096
"""On a CPU blocks of this length or more get calls of their own; shorter ones are handled many at a time, by index."""

SIGN_BIT = 63

# Elements that are handled at once: on a CPU they stay in its cache, on a GPU they are work for all of it.
CPU_FLOATS, CPU_BYTES = 1 << 17, 1 << 20
CUDA_FLOATS, CUDA_BYTES = 1 << 22, 1 << 24


class BlockHash:
    """Cells and signs of `numel` elements in `rows` rows of `columns` cells.

    Memory, in floats: `columns` for the signs of places; for adding, another `columns` on a CPU where blocks are long,
    else room for the blocks that are handled at once, twice; 4 bytes x rows x columns while codes are counted.
    """

    def __init__(self, numel: int, rows: int, columns: int, seed: int, device: torch.device) -> None:
        self.numel, self.columns = numel, columns
        self.blocks = -(-numel // columns)
        self.rows, self.device = rows, device
        places = torch.randint(2, (min(columns, numel),), generator=generator("places", seed), dtype=torch.int8)
        (self.place_sign,) = _copied(device, (1 - 2 * places.numpy()).astype(np.float32))
        self.sliced = device.type == "cpu" and columns >= SLICED_COLUMNS
        self._scratch: Tensor | None = None
        self.redraw(seed)

    def redraw(self, seed: int) -> None:
        """Draw new shifts and signs of blocks; the signs of places, which take the time of a copy, stay."""
        rng = generator("block hash", seed)
        shift = torch.randint(self.columns, (self.rows, self.blocks), generator=rng).numpy()
        negative = torch.randint(2, (self.rows, self.blocks), generator=rng).numpy()
        self.shift, self.sign = _copied(self.device, shift, (1 - 2 * negative).astype(np.float32))
        if self.sliced:
            self.block_shifts, self.block_negative = shift.T.tolist(), negative.T.tolist()
            self.block_code_starts = (shift + 2 * self.columns * negative).T.tolist()

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """What kernels know of it: shift and sign, (rows, blocks), and place_sign."""
        return self.shift, self.sign, self.place_sign

    def add(self, x: Tensor, table: Tensor) -> None:
        """Add the sketch of `x` to `table`."""
        (self._add_slices if self.sliced else self._add_windows)(x, table)

    def cells(self, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """For each row: cells and signs of the elements `index`."""
        block = torch.div(index, self.columns, rounding_mode="floor")
        place = index - block * self.columns
        place_sign = self.place_sign.index_select(0, place)
        for shift, sign in zip(self.shift, self.sign, strict=True):
            # The remainder for numbers below twice the columns; the remainder of a division takes several times as
            # long.
            cell = shift.index_select(0, block).add_(place).sub_(self.columns)
            cell.add_((cell >> SIGN_BIT).bitwise_and_(self.columns))
            yield cell, sign.index_select(0, block).mul_(place_sign)

    def counts(self, codes: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Sums over rows of the elements' codes."""
        # Twice each, so that a block rotated is a slice.
        rows = torch.cat([codes[0], codes[0], codes[1], codes[1]], dim=1)
        many = self._blocks_at_once(CPU_BYTES, CUDA_BYTES)
        buffer = codes.new_empty(min(many, self.blocks) * self.columns)
        for first in range(0, self.blocks, many):
            blocks = range(first, min(first + many, self.blocks))
            out = buffer[: len(blocks) * self.columns].view(len(blocks), self.columns)
            (self._count_slices if self.sliced else self._count_windows)(rows, blocks, out)
            start = first * self.columns
            yield start, buffer[: min(out.numel(), self.numel - start)]

    def _blocks_at_once(self, on_cpu: int, on_cuda: int) -> int:
        return max((on_cpu if self.shift.device.type == "cpu" else on_cuda) // self.columns, 1)

    def _doubled(self, x: Tensor, blocks: int) -> Tensor:
        """Room for `blocks` blocks twice, shape (blocks, 2 columns)."""
        shape = (blocks, 2 * self.columns)
        if self._scratch is None or self._scratch.shape != shape or self._scratch.dtype != x.dtype:
            self._scratch = x.new_empty(shape)
        return self._scratch

    def _fill(self, doubled: Tensor, x: Tensor) -> None:
        """Write `x`, some blocks of which the last may be short, with its places' signs twice side by side."""
        once, again = doubled[:, : self.columns], doubled[:, self.columns :]
        whole = x.numel() // self.columns
        if whole:
            torch.mul(x[: whole * self.columns].view(whole, -1), self.place_sign, out=once[:whole])
        rest = x.numel() - whole * self.columns
        if rest:
            torch.mul(x[whole * self.columns :], self.place_sign[:rest], out=once[whole, :rest])
            once[whole, rest:] = 0
        again.copy_(once)

    def _add_slices(self, x: Tensor, table: Tensor) -> None:
        rows, scratch = list(table), x.new_empty(min(self.columns, x.numel()))
        for part, shifts, negative in zip(x.split(self.columns), self.block_shifts, self.block_negative, strict=True):
            signed = torch.mul(part, self.place_sign[: part.numel()], out=scratch[: part.numel()])
            for row, shift, minus in zip(rows, shifts, negative, strict=True):
                before_wrap = self.columns - shift
                _add_to(row[shift : shift + part.numel()], signed[:before_wrap], minus)
                _add_to(row[: max(part.numel() - before_wrap, 0)], signed[before_wrap:], minus)

    def _add_windows(self, x: Tensor, table: Tensor) -> None:
        many = min(self._blocks_at_once(CPU_FLOATS, CUDA_FLOATS), self.blocks)
        doubled, columns = self._doubled(x, many), self.columns
        windows = doubled.view(-1).as_strided((doubled.numel() - columns + 1, columns), (1, 1))
        begin = torch.arange(many, device=x.device) * (2 * columns) + columns
        for number, part in enumerate(x.split(many * columns)):
            blocks = slice(number * many, min((number + 1) * many, self.blocks))
            count = blocks.stop - blocks.start
            self._fill(doubled[:count], part)
            for row, shift, sign in zip(table, self.shift[:, blocks], self.sign[:, blocks], strict=True):
                row += windows[begin[:count] - shift].mul_(sign[:, None]).sum(0)

    def _count_slices(self, rows: Tensor, blocks: range, out: Tensor) -> None:
        tables, columns = list(rows), self.columns
        for block, counts in zip(blocks, out, strict=True):
            starts = self.block_code_starts[block]
            _add_up([table[s : s + columns] for table, s in zip(tables, starts, strict=True)], counts)

    def _count_windows(self, rows: Tensor, blocks: range, out: Tensor) -> None:
        # An element's codes begin in a row of twice those for sign + and twice those for sign -.
        part = slice(blocks.start, blocks.stop)
        starts = self.shift[:, part] + 2 * self.columns * (self.sign[:, part] < 0)
        shape = (3 * self.columns + 1, self.columns)
        _add_up([row.as_strided(shape, (1, 1))[s] for row, s in zip(list(rows), starts, strict=True)], out)


def _copied(device: torch.device, *arrays: "np.ndarray[Any, Any]") -> list[Tensor]:
    """Arrays, the ones of wider numbers first, on `device`: in one copy, for which the host does not wait."""
    if device.type == "cpu":
        return [torch.from_numpy(each) for each in arrays]
    code = torch.from_numpy(np.concatenate([each.reshape(-1).view(np.uint8) for each in arrays]))
    parts = code.pin_memory().to(device, non_blocking=True).split([each.nbytes for each in arrays])
    return [part.view(torch.from_numpy(each).dtype).view(each.shape) for part, each in zip(parts, arrays, strict=True)]


def _add_to(cells: Tensor, values: Tensor, minus: bool) -> None:
    if minus:
        cells.sub_(values)
    else:
        cells.add_(values)


def _add_up(parts: list[Tensor], out: Tensor) -> None:
    if len(parts) == 1:
        out.copy_(parts[0])
        return
    torch.add(parts[0], parts[1], out=out)
    for part in parts[2:]:
        out.add_(part)
