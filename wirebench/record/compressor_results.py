"""Results of compressor benchmarks: a cell is one method at one size, one line of JSON in a file.

Times are given in copies: as multiples of what a copy of the same vector took at the same time on the same machine.
"""

import dataclasses
import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from wirebench.record import cells
from wirebench.record.cells import MOST, Measurement, check_environment, check_times, decoded
from wirebench.utils import json_lines

KIND = "wirebench compressors"
ITEM_BYTES = 4

Part = Literal["update", "select", "encode", "recover", "decode", "merge", "other"]
PARTS: tuple[Part, ...] = ("update", "select", "encode", "recover", "decode", "merge", "other")
"""The phases (phases.py), where `recover` is what is selected again after another round, as from a summed sketch; what
`Merge` combines; and what a method does outside of its phases."""


@dataclass(frozen=True)
class CompressorResult:
    """One method at one size.

    method         its name and the options that were given
    rival          whether it is a baseline to compare with, not a compressor of this suite
    model, layers  the model whose layers the vector has, and how many they are
    items          elements of the vector, fp32
    seconds        of every part (PARTS), one per turn
    copy_seconds   of a copy of the vector, taken beside every turn
    message_bytes  bytes that the rank handed to the network, one per turn
    state_bytes    bytes of its state dictionary; None where memory was not measured
    held_bytes     bytes allocated between steps: the state, and buffers that are used again
    peak_bytes     the most bytes allocated within a step, held_bytes included
    error          why it could not be measured; "" where it was
    """

    method: str
    rival: bool
    model: str
    items: int
    layers: int
    seconds: dict[Part, tuple[float, ...]] = field(default_factory=dict)
    copy_seconds: tuple[float, ...] = ()
    message_bytes: tuple[int, ...] = ()
    state_bytes: int | None = None
    held_bytes: int | None = None
    peak_bytes: int | None = None
    error: str = ""

    @property
    def turns(self) -> int:
        """Turns in which it was measured: steps, each beside a copy."""
        return len(self.copy_seconds)

    @functools.cached_property
    def parts(self) -> dict[Part, float]:
        """Seconds of every part: means over the middle half of the turns by total, so that they sum to a mean total."""
        totals = self._totals()
        order = np.argsort(totals, kind="stable")
        cut = self.turns // 4
        middle = order[cut : self.turns - cut]
        return {part: float(np.asarray(seconds)[middle].mean()) for part, seconds in self.seconds.items()}

    @property
    def copies(self) -> dict[Part, float]:
        """Every part in copies: `parts` over the copies' median."""
        copy = self.copy
        return {part: seconds / copy for part, seconds in self.parts.items()}

    @functools.cached_property
    def copy(self) -> float:
        """Seconds of the median copy."""
        return float(np.median(self.copy_seconds))

    @property
    def total(self) -> float:
        """Copies of all parts together."""
        return sum(self.copies.values())

    @property
    def total_seconds(self) -> float:
        """Seconds of all parts together."""
        return sum(self.parts.values())

    @property
    def spread(self) -> tuple[float, float]:
        """10th and 90th percentile of each turn's total over the copy beside it."""
        low, high = np.percentile(self._totals() / np.asarray(self.copy_seconds), [10, 90])
        return float(low), float(high)

    @property
    def least(self) -> float:
        """The quickest turn over the quickest copy: the figure that other load on the machine disturbs least."""
        return float(self._totals().min() / min(self.copy_seconds))

    def multiple(self, num_bytes: int | None) -> float | None:
        """Bytes as a multiple of the vector's."""
        return None if num_bytes is None else num_bytes / (ITEM_BYTES * self.items)

    def _totals(self) -> np.ndarray:
        return np.sum([self.seconds[part] for part in self.seconds], axis=0)


def save(path: Path, header: dict[str, Any], measured: Iterable[CompressorResult]) -> None:
    """Write a header line and a line per cell, in one piece; UserError where the file cannot be written."""
    json_lines.save(path, {"kind": KIND, **header}, (brief(dataclasses.asdict(cell)) for cell in measured))


def brief(line: dict[str, Any]) -> dict[str, Any]:
    """A cell as a line has it: what is the same in all turns stands once."""
    line.pop("budget", None)  # what a method was to take at most, in files of version 0.1
    once = {key: list(value)[:1] for key, value in line["seconds"].items() if len(set(value)) == 1}
    sent = line["message_bytes"]
    return {**line, "seconds": line["seconds"] | once, "message_bytes": sent[:1] if len(set(sent)) == 1 else sent}


def _whole(cell: CompressorResult) -> CompressorResult:
    """The cell with what `brief` wrote once in each of its turns."""
    seconds = {part: each * max(cell.turns, 1) if len(each) == 1 else each for part, each in cell.seconds.items()}
    sent = cell.message_bytes
    return dataclasses.replace(cell, seconds=seconds, message_bytes=sent * cell.turns if len(sent) == 1 else sent)


def load(path: Path) -> Measurement[CompressorResult]:
    """Read what `save` wrote; UserError, naming file and line, for anything else."""
    return cells.load(path, KIND, "wirebench bench compressors", _check, _cell)


def _check(header: dict[str, Any]) -> None:
    """Raises ValueError for a header that readers of the cells could not use: its types and its ranges."""
    check_environment(header)
    density, workers = header.get("density", ""), header.get("workers")
    if type(workers) is not int or not 0 < workers < MOST or type(header.get("threads")) is not int:
        raise ValueError("needs numbers of workers and threads")
    if not isinstance(header.get("device", 0), str | None) or not isinstance(density, int | float | None):
        raise ValueError("needs a device and a density, or null")


def _cell(line: Any) -> CompressorResult:
    if isinstance(line, dict):
        line.pop("budget", None)
    cell = _whole(decoded(CompressorResult, line))
    check_times("copy_seconds", cell.copy_seconds)
    for part, seconds in cell.seconds.items():
        check_times(part, seconds, zero=True)
    wanted = set() if cell.error else set(PARTS)
    if not wanted <= set(cell.seconds) or not cell.items or (wanted and not cell.turns):
        raise ValueError("needs seconds of all parts, copy_seconds and items")
    if any(len(seconds) != cell.turns for seconds in cell.seconds.values()):
        raise ValueError("needs as many seconds of each part as copy_seconds")
    return cell
