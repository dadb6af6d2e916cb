"""Results of all-reduce benchmarks: a cell is one collective at one size on one cluster, one line of JSON in a file."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wirebench.record import cells
from wirebench.record.cells import Measurement, check_environment, check_times, decoded
from wirebench.topology.tree import Topology
from wirebench.utils import json_lines

KIND = "wirebench collectives"
MAX_ERROR = 1e-5
"""Greatest error of a sum of float32 values, relative to the sum of magnitudes; any order of adding stays far below."""


@dataclass(frozen=True)
class AllReduceResult:
    """One collective at one size.

    collective, plan    the plugin's name, and the plan's own (blueconnect may run a ring's plan)
    items, item_bytes   elements of the summed tensor, bytes of each
    ranks, layout       the world size and the topology's layout; engine, backend: who moved the bytes
    segments            parts into which the sum was cut; rounds: of one part's plan; both 0 for the engine's own
    seconds             of one all-reduce on the slowest rank, one per repeat
    max_error           largest deviation from the exact sum, relative to the sum of magnitudes; in a wire format it is
                        the format's own error
    identical           all ranks ended with the same bits
    predicted_seconds   by the cost model; None where the topology has no speeds
    machines            bytes of one all-reduce across each machine's interface, [sent, received, plan's sent, plan's
                        received]; None on a single machine, or if no interface is counted
    wire                wire format of the messages; "": fp32 as it is
    reproduced          whether the sum is the one that the same plans give on virtual ranks in one process; None
                        without a wire format, where the exact sum is known
    """

    collective: str
    plan: str
    items: int
    item_bytes: int
    ranks: int
    layout: str
    engine: str
    backend: str
    segments: int
    rounds: int
    seconds: tuple[float, ...]
    max_error: float
    identical: bool
    predicted_seconds: float | None
    machines: tuple[tuple[float, float, float, float], ...] | None
    wire: str = ""
    reproduced: bool | None = None

    @property
    def num_bytes(self) -> int:
        """The size of the summed tensor in bytes."""
        return self.items * self.item_bytes

    @property
    def label(self) -> str:
        """The collective, and its wire format if it has one."""
        return f"{self.collective} in {self.wire}" if self.wire else self.collective

    @property
    def right(self) -> bool:
        """Whether it was an all-reduce: the same bits on every rank, and the exact sum but for float32's rounding.

        In a wire format: the sum that the plans give on virtual ranks.
        """
        return self.identical and is_sum(self.max_error, self.reproduced)

    @property
    def median(self) -> float:
        """Seconds of the median repeat."""
        return float(np.median(self.seconds))

    @property
    def spread(self) -> tuple[float, float]:
        """10th and 90th percentile of the repeats' seconds."""
        low, high = np.percentile(self.seconds, [10, 90])
        return float(low), float(high)

    @property
    def algbw(self) -> float:
        """Algorithm bandwidth, bytes per second: size over time (nccl-tests)."""
        return self.num_bytes / self.median

    @property
    def busbw(self) -> float:
        """Bus bandwidth, bytes per second: algbw * 2(P-1)/P, to be compared with the link (nccl-tests)."""
        return self.algbw * 2 * (self.ranks - 1) / self.ranks

    @property
    def prediction_error(self) -> float | None:
        """(predicted - measured) / measured."""
        return None if self.predicted_seconds is None else self.predicted_seconds / self.median - 1


def is_sum(max_error: float, reproduced: bool | None) -> bool:
    """Whether a sum is what it should be, by a cell's `max_error` and `reproduced`."""
    return max_error <= MAX_ERROR if reproduced is None else reproduced


def save(path: Path, header: dict[str, Any], measured: Iterable[AllReduceResult]) -> None:
    """Write a header line and a line per cell, in one piece; UserError where the file cannot be written."""
    json_lines.save(path, {"kind": KIND, **header}, map(dataclasses.asdict, measured))


def load(path: Path) -> Measurement[AllReduceResult]:
    """Read what `save` wrote; UserError, naming file and line, for anything else."""
    return cells.load(path, KIND, "wirebench bench collectives", check_environment, _cell)


def _cell(line: Any) -> AllReduceResult:
    cell = decoded(AllReduceResult, line, newer=("wire", "reproduced"))
    check_times("seconds", cell.seconds)
    check_times("predicted_seconds", (cell.predicted_seconds or 1.0,))
    if not cell.seconds or not cell.items or not cell.item_bytes:
        raise ValueError("needs seconds, items and item_bytes")
    if Topology.parse(cell.layout).size != cell.ranks:
        raise ValueError(f"{cell.layout} has other ranks than {cell.ranks}")
    if bool(cell.wire) != (cell.reproduced is not None):
        raise ValueError("needs reproduced where there is a wire format, and only there")
    return cell


def load_all(paths: Sequence[Path]) -> list[AllReduceResult]:
    """The cells of several files, in order."""
    return [cell for path in paths for cell in load(path).cells]
