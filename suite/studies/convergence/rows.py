"""The trainings of a method, one for each seed: how accurate they became, and what all methods of a table share."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.studies import notes
from suite.studies.notes import NotedRun
from suite.studies.rows import Row, by_label

DENSE = "dense"
TARGET = 0.8
NEEDS = {"label": str, "seed": int, "launch": str, "epochs": int | None, "density": float | None}
"""Of method.json. Older ones have neither of the last two; the run's config does."""


@dataclass(frozen=True)
class Method(Row):
    """One method's runs, one for each seed."""

    def each(self, of: Callable[[NotedRun], float | None]) -> list[float]:
        """The number of every run that has one."""
        values = [of(run) for run in self.runs]
        return [value for value in values if value is not None]

    def health(self, name: str) -> list[float]:
        """Of every run that has readings of this name, their mean."""
        return self.each(lambda run: run.has("health", name, "mean"))

    @property
    def title(self) -> str:
        """The label, and how runs ended that did not reach their end."""
        ends = [run.record["status"] for run in self.runs if run.record["status"] != "finished"]
        if not ends:
            return self.label
        count = f"{len(ends)} of {len(self.runs)} " if len(self.runs) > 1 else ""
        return f"{self.label} ({count}{', '.join(dict.fromkeys(ends))})"

    @property
    def top1(self) -> list[float]:
        """Final accuracies; a run that diverged has none."""
        return self.each(lambda run: run.has("final", "top1"))

    @property
    def best(self) -> list[float]:
        """The best accuracy after any epoch, of each run."""
        tested = [[entry["top1"] for entry in history(run) if entry["top1"] is not None] for run in self.runs]
        return [max(accuracies) for accuracies in tested if accuracies]

    @property
    def wire_bytes(self) -> list[float]:
        """Bytes that a worker sent in a whole run; one that diverged sent less, which is no merit."""
        return self.each(lambda run: wire_bytes(history(run)[-1]) if history(run) and not run.diverged else None)

    @property
    def owns_momentum(self) -> bool:
        """Whether the method applied the momentum, so that the optimizer had none."""
        return any((run.has("config", "compressor", "momentum") or 0) > 0 for run in self.runs)


def read(folder: Path) -> list[NotedRun]:
    """All runs in `folder`; UserError for one that is damaged."""
    return notes.read(folder, NEEDS)


def load(folder: Path) -> list[Method]:
    """All methods, dense first, then by accuracy; UserError where their runs are not of one setting."""
    runs = read(folder)
    notes.refuse_mixed(folder, settings(runs))
    methods = [Method(label, seeds) for label, seeds in by_label(runs).items()]
    return sorted(methods, key=lambda method: (method.label != DENSE, -statistics.mean(method.top1 or [0.0])))


def settings(runs: Sequence[NotedRun]) -> dict[str, dict[str, object]]:
    """What all runs of a table share, by the name of their folder; None for what a method does not have."""
    return {run.folder.name: _settings(run) for run in runs}


def shared(methods: Sequence[Method]) -> dict[str, object]:
    """The settings of them all; one that no method has is missing."""
    each = [_settings(run) for method in methods for run in method.runs]
    return {key: value for values in each for key, value in values.items() if value is not None}


def _settings(run: NotedRun) -> dict[str, object]:
    # A method that was given k reads the density in its warm-up at most.
    density = None if run.has("config", "compressor", "k") else run.has("config", "compressor", "density")
    return {
        "epochs": run.note.get("epochs", run.has("config", "train", "epochs")),
        "density": run.note.get("density", density),
        "workers": run.record["world_size"],
        "batch size": run.has("config", "data", "batch_size"),
        "data": run.has("config", "data", "name"),
        "model": run.has("config", "model", "name"),
        "depth": run.has("config", "model", "depth"),
        "precision": run.has("config", "train", "precision"),
        "learning rate": run.has("config", "optimizer", "lr"),
    }


def history(run: NotedRun) -> list[dict[str, Any]]:
    """What was measured after each epoch."""
    return run.record["history"]


def wire_bytes(entry: Mapping[str, Any]) -> float | None:
    """Bytes that a worker had sent after this epoch."""
    return entry.get("wire_bytes_total")


def first_reaching(run: NotedRun, target: float = TARGET) -> dict[str, Any] | None:
    """The history's first entry whose accuracy is at least `target`."""
    return next((e for e in history(run) if e["top1"] is not None and e["top1"] >= target), None)
