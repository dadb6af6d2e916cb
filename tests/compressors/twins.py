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


def laplace(numel: int, seed: int) -> Tensor:
    """Draws from Laplace's distribution."""
    uniform = torch.rand(numel, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 0.5
    return (-uniform.sign() * torch.log1p(-2 * uniform.abs())).float()


def hard_vectors(numel: int, stride: int = 97) -> dict[str, Tensor]:
    """Vectors that mislead one way of selecting or of estimating, or another; `stride` is that of a sample."""
    rng = torch.Generator().manual_seed(7)
    normal, uniform = torch.randn(numel, generator=rng), torch.rand(numel, generator=rng)
    places = torch.arange(numel)
    sampled, row = places % stride == 0, (places // 64) == min(10, numel // 64 - 1)
    poisoned = normal.clone()
    poisoned[[3, numel // 2, numel - 1]] = torch.tensor([math.nan, math.inf, -math.nan])
    return {
        "normal": normal,
        "shifted": normal + 5,
        "negative": -normal.abs() - 3,
        "laplace": laplace(numel, 3),
        "heavy tailed": torch.empty(numel).cauchy_(generator=rng),
        "uniform": uniform,
        "ascending": normal.sort().values,
        "descending": normal.abs().sort(descending=True).values,
        "constant": torch.full((numel,), -0.5),
        "two values": torch.where(uniform < 0.5, 1.0, -2.0),
        "whole numbers": torch.randint(-8, 9, (numel,), generator=rng).float(),
        "99 % zero": torch.where(uniform < 0.99, 0.0, normal),
        "one non-zero": torch.nn.functional.pad(torch.ones(1), (numel - 1, 0)),
        "zero": torch.zeros(numel),
        "one huge": torch.where(places == numel // 3, 1e30, normal),
        "all huge": normal * 1e37,
        "tiny": normal * 1e-42,
        "large at the sample": torch.where(sampled, 100 * normal, normal),
        "small at the sample": torch.where(sampled, 1e-3 * normal, normal),
        "large in one row": torch.where(row, 5 + uniform, 1e-3 * normal),
        "peak in every row": torch.where(places % 64 == 63, 3.0, normal.clamp(-1, 1)),
        "not finite": poisoned,
        "one infinite": torch.where(places == 11, math.inf, normal),
        "all NaN": torch.full((numel,), math.nan),
        "half NaN": torch.where(uniform < 0.5, math.nan, normal),
        "half infinite": torch.where(uniform < 0.5, -math.inf, normal),
    }


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
