"""Runs with the prediction in their record, and how near predictions come to what was measured."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papers.prediction.repeats import STEADY, repeats_to
from papers.published import load
from wirebench.errors import UserError
from wirebench.record import recorded
from wirebench.record.notes import NotedRun

CLAIM = load(Path(__file__).parent).claims["near"]
NEAR = CLAIM.tolerance
"""A prediction that is off by no more than this share is a good one."""


@dataclass(frozen=True)
class Predicted:
    """One run: its folder's name, and the prediction in its record."""

    name: str
    run: NotedRun

    @property
    def record(self) -> dict[str, Any]:
        """The run's record."""
        return self.run.record

    @property
    def found(self) -> dict[str, float]:
        """The record's prediction."""
        numbers: dict[str, float] = self.record["prediction"]
        return numbers

    @property
    def seconds(self) -> float:
        """Seconds of the measured step."""
        return self.found["measured_seconds"]

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.found["error"]

    @property
    def repeats(self) -> float | None:
        """Share of the measured step to which another run would repeat it (repeats.py)."""
        return repeats_to(self.record)

    @property
    def steady(self) -> bool:
        """Whether that is at most STEADY."""
        return self.repeats is not None and self.repeats <= STEADY

    def plugin(self, section: str) -> str:
        """Name of its scheduler, compressor or collective."""
        return str(self.record["config"].get(section, {}).get("name", "-"))


def collect(folder: Path) -> list[Predicted]:
    """All runs below `folder` whose record has a prediction, by name; UserError if there are none."""
    if not folder.is_dir() and recorded.at(folder) is None:
        raise UserError(f"{folder}: is no folder")
    predicted = []
    for run in recorded.below(folder):
        if run.record.get("prediction"):
            inside = str(run.folder.relative_to(folder))
            predicted.append(Predicted(folder.resolve().name if inside == "." else inside, run))
    if not predicted:
        raise UserError(f"{folder}: has no run with a prediction; runs of several processes have one")
    return predicted


def near(error: float) -> bool:
    """Whether a prediction that is off by this share is a good one."""
    return CLAIM.judge(1 + error).good


def where_steady(runs: Sequence[Predicted], errors: Mapping[str, float]) -> str:
    """Return a sentence: how near predictions come where the machine repeats itself; "" for none.

    errors  of some of the runs, by name
    """
    if not errors:
        return ""
    steady = {each.name for each in runs if each.steady}
    judged = {name: error for name, error in errors.items() if name in steady}
    if not judged:
        return f"None of these steps repeats itself to {100 * STEADY:.0f} %."
    worst = max(judged, key=lambda name: abs(judged[name]))
    return (
        f"{len(judged)} of these {len(errors)} steps repeat themselves to {100 * STEADY:.0f} %: of these predictions "
        f"{sum(map(near, judged.values()))} are within {100 * NEAR:.0f} %, the mean error is "
        f"{100 * statistics.fmean(map(abs, judged.values())):.1f} %, the largest {100 * judged[worst]:+.1f} % "
        f"({worst})."
    )
