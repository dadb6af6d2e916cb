"""How long compressors work: measured on one machine in copies of the same vector, and carried to another by its copy.

A copy reads and writes every element once, so it is what memory allows; scripts/bench_compressors.py measures methods
in copies. On a GPU that was not measured the same number of copies, at its memory's bandwidth, is an estimate.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from wirebench import compressor_cells
from wirebench.compressor_cells import Cell
from wirebench.simulate import Compressing

SHIPPED = Path(__file__).resolve().parents[1] / "results" / "cpu-2core" / "compressors" / "cells.jsonl"
FLOAT_BYTES = 4


class _Cost(NamedTuple):
    """fixed: seconds of an exchange whatever its size; copies: (elements, copies of so many), of rising size."""

    fixed: float
    copies: tuple[tuple[int, float], ...]


class Rates:
    """What every method takes, from a file of cells; of one that was measured with several options, the fewest."""

    def __init__(self, path: Path = SHIPPED) -> None:
        cells: dict[str, list[Cell]] = {}
        for cell in compressor_cells.load(path).cells:
            if not cell.rival and not cell.error:
                cells.setdefault(cell.method, []).append(cell)
        # Shortest last, so that it stays.
        plainest = {_name(method): cells[method] for method in sorted(cells, key=len, reverse=True)}
        self._costs = {name: _cost(sorted(found, key=lambda cell: cell.items)) for name, found in plainest.items()}

    def knows(self, compressor: str) -> bool:
        """Whether the method was measured."""
        return compressor in self._costs

    def on(self, compressor: str, bytes_per_second: float) -> Compressing:
        """Seconds on hardware whose memory moves so much; for a method that was not measured, 0.

        Copies lie on straight lines over the logarithm of the size. What an exchange of few elements takes beyond them
        is the calls' own cost, which the host pays on any hardware.
        """
        cost = self._costs.get(compressor)

        def seconds(numel: int) -> float:
            if cost is None or not numel:
                return 0.0
            return cost.fixed + _between(cost.copies, numel) * 2 * FLOAT_BYTES * numel / bytes_per_second

        return seconds


def _cost(cells: Sequence[Cell]) -> _Cost:
    first, *rest = cells
    if not rest:
        return _Cost(0.0, ((first.items, first.total),))
    fixed = max(0.0, first.total - rest[0].total) * first.copy
    return _Cost(fixed, tuple((cell.items, cell.total) for cell in rest))


def _name(method: str) -> str:
    return method.partition(":")[0].partition(" ")[0]


def _between(points: Sequence[tuple[int, float]], numel: int) -> float:
    if numel <= points[0][0]:
        return points[0][1]
    for (low, copies), (high, more) in pairwise(points):
        if numel <= high:
            return copies + (more - copies) * math.log(numel / low) / math.log(high / low)
    return points[-1][1]
