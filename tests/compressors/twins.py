"""Plain twins of fast code: slow, short, and obviously right."""

import math

import torch
from torch import Tensor

from wirebench.compressors.sketch.count_sketch import CountSketch


def top_k_reference(x: Tensor, k: int) -> Tensor:
    """The k first places of `ranking`, ascending."""
    return torch.tensor(sorted(ranking(x)[:k]), dtype=torch.int64)


def ranking(x: Tensor) -> list[int]:
    """Places of the non-zeros of `x`, NaN first, then the larger magnitude, then the smaller place."""
    values = x.tolist()
    places = [i for i, value in enumerate(values) if value != 0]
    return sorted(places, key=lambda i: (not math.isnan(values[i]), -abs(values[i]), i))


def sketch_reference(x: Tensor, rows: int, columns: int, cells: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The Count-Sketch of `x`, cell by cell; `cells` are every row's cells and signs of all elements."""
    table = torch.zeros(rows, columns, dtype=torch.float64)
    for row, (cell, sign) in zip(table, cells, strict=True):
        for value, place, side in zip(x.tolist(), cell.tolist(), sign.tolist(), strict=True):
            row[place] += side * value
    return table.to(x.dtype)


def estimates_of_all(sketch: CountSketch, table: Tensor) -> Tensor:
    """The sketch's own estimates of all elements."""
    return sketch.estimate(table, torch.arange(sketch.numel, device=table.device))


def estimates_reference(table: Tensor, cells: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The middle one of the sorted rows' estimates, for all elements."""
    by_row = [(row[cell] * sign).tolist() for row, (cell, sign) in zip(table, cells, strict=True)]
    return torch.tensor([sorted(each)[len(by_row) // 2] for each in zip(*by_row, strict=True)], dtype=table.dtype)
