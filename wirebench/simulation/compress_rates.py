"""How long compressors work: measured on one machine in copies of a vector, scaled to another by its speed of copying.

A copy reads and writes every element once, so it is what memory allows; wirebench bench compressors measures methods
in copies. For a GPU that was not measured those of the one that was, at its memory's bandwidth, are an estimate. A
CPU's would be none: on a GPU most methods start more kernels than their data keeps busy (results/README.md).
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.errors import UserError
from wirebench.record import compressor_results
from wirebench.record.compressor_results import CompressorResult, Part
from wirebench.simulation.roofline import of_hardware
from wirebench.simulation.simulator import FLOAT_BYTES, Compressing

_RESULTS = Path(__file__).resolve().parents[2] / "results"
SHIPPED = _RESULTS / "cpu-2core" / "compressors" / "cells.jsonl"
SHIPPED_GPU = _RESULTS / "h200" / "compressors" / "cells.jsonl"
MEASURED_AGAIN = (_RESULTS / "h200" / "chunk_topk" / "cells.jsonl",)
"""Of methods that were changed since."""
HANDLING_COPIES = 2
"""Of a replayed gradient: it is copied from noise (models/replay.py), and then into its bucket (exchange/lane.py)."""
GROWING: tuple[Part, ...] = ("decode", "merge")
"""What takes longer among more workers."""


class _Cost(NamedTuple):
    """What a method's work costs.

    fixed   seconds of an exchange whatever its size
    copies  (elements, cost in copies of a vector of so many), by rising size: all work but decoding and merging
    decode  likewise, of decoding what was gathered
    merge   likewise, of what a rank of the measured world combines, one message after the other
    spread  the quickest and the slowest tenth of its measured turns, over what is counted with
    """

    fixed: float
    copies: tuple[tuple[int, float], ...]
    decode: tuple[tuple[int, float], ...]
    merge: tuple[tuple[int, float], ...]
    spread: tuple[float, float]


class Rates:
    """What every method's work costs, from a file of compressor results.

    A method that was measured with several options counts with the fewest.

    workers           world size of the measurement
    device            the GPU's name where one was measured, else ""
    bytes_per_second  memory traffic of a copy of the largest vector there, read and written
    cpu, utc          of that machine, as a record's environment describes it, and when; empty where the file does not
    """

    def __init__(self, path: Path = SHIPPED) -> None:
        measured = compressor_results.load(path)
        self.workers = int(measured.header["workers"])
        self.device = str(measured.header.get("device") or "")
        if not measured.cells:
            raise UserError(f"{path}: has no cells")
        environment = measured.header.get("environment", {})
        self.cpu: dict[str, Any] = environment.get("cpu", {})
        self.utc = str(environment.get("utc") or "")
        largest = max(measured.cells, key=lambda cell: cell.items if cell.turns else 0)
        self.bytes_per_second = 2 * FLOAT_BYTES * largest.items / largest.copy if largest.turns else math.inf
        self._costs: dict[str, _Cost] = {}
        self.add(measured.cells)

    def add(self, measured: Sequence[CompressorResult]) -> None:
        """What else was measured in the same way, among as many workers; rivals and failures do not count."""
        cells: dict[str, list[CompressorResult]] = {}
        for cell in measured:
            if not cell.rival and not cell.error:
                cells.setdefault(cell.method, []).append(cell)
        # A label is the name and the given options. The shortest comes last, so that it is the one that stays.
        plainest = {_name(method): cells[method] for method in sorted(cells, key=len, reverse=True)}
        for name, results in plainest.items():
            self._costs[name] = _cost(sorted(results, key=lambda cell: cell.items))

    @classmethod
    def shipped(cls, *, on_gpu: bool) -> "Rates":
        """Ours, of a GPU or of a CPU."""
        if not on_gpu:
            return cls(SHIPPED)
        rates = cls(SHIPPED_GPU)
        for path in MEASURED_AGAIN:
            rates.add(compressor_results.load(path).cells)
        return rates

    def achieved_on(self, nominal: float) -> float:
        """Bytes per second that a copy moves in a GPU's memory of so many by its data sheet: as large a share as on the
        measured GPU; all of them if it was a CPU, or a GPU that is not known.
        """
        measured = of_hardware(self.device) if self.device else None
        return nominal * self.bytes_per_second / (measured.memory_gbs * 1e9) if measured else nominal

    @property
    def gradient_seconds_per_byte(self) -> float:
        """Of a gradient that a replayed backward pass makes and copies into its bucket, on the measured machine."""
        return HANDLING_COPIES * 2 / self.bytes_per_second

    def knows(self, compressor: str) -> bool:
        """Whether the method was measured."""
        return compressor in self._costs

    def spread(self, compressor: str) -> tuple[float, float]:
        """How far its measured turns lay apart: factors on its seconds around 1; (1, 1) for an unknown one."""
        cost = self._costs.get(compressor)
        return (1.0, 1.0) if cost is None else cost.spread

    def on(self, compressor: str, bytes_per_second: float, gathered: float = 1.0, merged: float = 1.0) -> Compressing:
        """Seconds of a bucket by its elements, on hardware whose memory moves so many bytes; 0 for an unknown method.

        gathered  factor on decoding: how many times as much is gathered as among the measured workers
        merged    factor on merging: how many times as many messages are combined in turn as among them

        Costs in copies lie on straight lines over the logarithm of the size. What an exchange of few elements takes
        beyond them is the calls' own cost, which the host pays on any hardware.
        """
        cost = self._costs.get(compressor)

        def seconds(numel: int) -> float:
            if cost is None or not numel:
                return 0.0
            copies = _between(cost.copies, numel) + gathered * _between(cost.decode, numel)
            copies += merged * _between(cost.merge, numel)
            return cost.fixed + copies * 2 * FLOAT_BYTES * numel / bytes_per_second

        return seconds

    def decoding(self, compressor: str, bytes_per_second: float, gathered: float = 1.0) -> Compressing:
        """Of the seconds of `on` those in which answers are read and the average is written; they count as the last."""
        cost = self._costs.get(compressor)

        def seconds(numel: int) -> float:
            if cost is None or not numel:
                return 0.0
            return gathered * _between(cost.decode, numel) * 2 * FLOAT_BYTES * numel / bytes_per_second

        return seconds


def _cost(cells: Sequence[CompressorResult]) -> _Cost:
    # Of each cell once: whoever asks for its copies has its turns sorted.
    seen = [(cell, copies, sum(copies.values())) for cell, copies in ((cell, cell.copies) for cell in cells)]
    fixed = max(0.0, seen[0][2] - seen[1][2]) * cells[0].copy if len(seen) > 1 else 0.0
    known = seen[1:] or seen
    decode, merge = (tuple((cell.items, copies[part]) for cell, copies, _ in known) for part in GROWING)
    rest = tuple((cell.items, total - sum(copies[part] for part in GROWING)) for cell, copies, total in known)
    spreads = [(*cell.spread, total) for cell, _, total in known if total]
    low = min((quick / total for quick, _, total in spreads), default=1.0)
    high = max((slow / total for _, slow, total in spreads), default=1.0)
    return _Cost(fixed, rest, decode, merge, (min(low, 1.0), max(high, 1.0)))


def _name(method: str) -> str:
    return method.partition(":")[0].partition(" ")[0]


def _between(points: Sequence[tuple[int, float]], numel: int) -> float:
    if numel <= points[0][0]:
        return points[0][1]
    for (low, copies), (high, more) in pairwise(points):
        if numel <= high:
            return copies + (more - copies) * math.log(numel / low) / math.log(high / low)
    return points[-1][1]
