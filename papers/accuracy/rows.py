"""The trainings of a method, one for each seed: how accurate they became, and what all methods of a table share."""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papers.rows import Row, by_label, refuse_twice
from papers.significance import LEVEL, Comparison, compare, corrected
from wirebench.inspect.reference import options_of, settings_of
from wirebench.record import notes, recorded
from wirebench.record.notes import NotedRun

DENSE = "dense"
"""The label of what all methods are compared with."""
MARGIN = 0.01
"""Share of a loss that counts as no difference."""
NEEDS = {"label": str, "seed": int, "launch": str, "epochs": int | None, "density": float | None}
"""Keys of a run's note. Older notes lack the last two; the run's config has them."""


@dataclass(frozen=True)
class MethodRuns(Row):
    """One method's runs, one for each seed."""

    def each(self, of: Callable[[NotedRun], float | None]) -> list[float]:
        """The number of every run that has one."""
        values = [of(run) for run in self.runs]
        return [value for value in values if value is not None]

    def health(self, name: str) -> list[float]:
        """Mean reading of this name, for every run that has any."""
        return self.each(lambda run: run.has("health", name, "mean"))

    @property
    def ends(self) -> list[str]:
        """How runs ended that did not reach their end."""
        return [run.record["status"] for run in self.runs if run.record["status"] != "finished"]

    @property
    def judged(self) -> list[float]:
        """Accuracies that may be compared with another method's: none where a seed diverged, whatever others became."""
        return [] if self.ends else [100 * value for value in self.top1]

    @property
    def title(self) -> str:
        """The label, and how runs ended that did not reach their end."""
        ends = self.ends
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
    return recorded.noted(folder, NEEDS)


def load(folder: Path, own: Collection[str] = ()) -> list[MethodRuns]:
    """All methods, dense first, then by accuracy.

    UserError where the runs are not of one setting, a method's runs not of the same options, or a seed was used twice.
    own  settings, by their names in SHARED, that may differ between methods
    """
    runs = read(folder)
    shared_by_all = settings(runs).items()
    notes.refuse_mixed(
        folder, {name: {key: v for key, v in each.items() if key not in own} for name, each in shared_by_all}
    )
    methods = [MethodRuns(row.label, row.runs) for row in by_label(runs)]
    for method in methods:
        notes.refuse_mixed(folder, {run.folder.name: options_of(run.record["config"]) for run in method.runs})
        refuse_twice(f"{folder}: {method.label}", method.runs)
    return sorted(methods, key=lambda method: (method.label != DENSE, -statistics.mean(method.top1 or [0.0])))


def settings(runs: Sequence[NotedRun]) -> dict[str, dict[str, object]]:
    """What all runs of a table share, by the name of their folder; None for what a method does not have."""
    return {run.folder.name: _settings(run) for run in runs}


def shared(methods: Sequence[MethodRuns]) -> dict[str, object]:
    """The settings of them all; one that no method has is missing."""
    each = [_settings(run) for method in methods for run in method.runs]
    return {key: value for values in each for key, value in values.items() if value is not None}


def _settings(run: NotedRun) -> dict[str, object]:
    # A method that was given k reads the density in its warm-up at most.
    density = None if run.has("config", "compressor", "k") else run.has("config", "compressor", "density")
    noted = {"epochs": run.note.get("epochs"), "density": run.note.get("density", density)}
    ran = {"workers": run.record["world_size"]}
    return {**settings_of(run.record["config"]), **{key: value for key, value in (noted | ran).items() if value}}


def history(run: NotedRun) -> list[dict[str, Any]]:
    """What was measured after each epoch."""
    return run.record["history"]


def wire_bytes(entry: Mapping[str, Any]) -> float | None:
    """Bytes that a worker had sent after this epoch."""
    return entry.get("wire_bytes_total")


def target(methods: Sequence[MethodRuns]) -> float | None:
    """Where times and bytes are read: 95 % of the dense runs' mean accuracy, in whole percent; None without them."""
    dense = dense_of(methods)
    return math.floor(95 * statistics.mean(dense.top1)) / 100 if dense and dense.top1 else None


def first_reaching(run: NotedRun, accuracy: float | None) -> dict[str, Any] | None:
    """The history's first entry whose accuracy is at least that; None where no run is asked for one."""
    if accuracy is None:
        return None
    return next((e for e in history(run) if e["top1"] is not None and e["top1"] >= accuracy), None)


def tokens_per_parameter(run: NotedRun) -> float | None:
    """Tokens that all workers trained on, over the model's parameters; None for images, and without a number of it."""
    data, steps = run.has("config", "data") or {}, run.has("steps_done")
    told = steps, data.get("batch_size"), data.get("length"), run.has("world_size"), run.has("parameters")
    if not all(told):
        return None
    *factors, parameters = told
    return float(math.prod(factors) / parameters)


def tokens(runs: Iterable[NotedRun]) -> str:
    """Tokens a parameter of these runs, in words for a cell: one number, or the least to the most; "-" for images."""
    known = sorted({each for run in runs if (each := tokens_per_parameter(run)) is not None})
    shown = list(dict.fromkeys(f"{each:.2g}" if each < 1 else f"{each:.1f}" for each in known[:1] + known[-1:]))
    return " to ".join(shown) or "-"


def losses(method: MethodRuns | None) -> list[float]:
    """Final test losses; none where a seed diverged, or without the method."""
    return [] if method is None or method.ends else method.each(lambda run: run.has("final", "loss"))


def by_loss(method: MethodRuns) -> tuple[bool, float]:
    """Order of a table of losses: dense training first, then by the mean loss; what diverged stands last."""
    return method.label != DENSE, statistics.mean(losses(method) or [math.inf])


def dense_of(methods: Iterable[MethodRuns]) -> MethodRuns | None:
    """Dense training, with which the others are compared; None without it."""
    return next((method for method in methods if method.label == DENSE), None)


def bytes_of(method: MethodRuns | None) -> float | None:
    """Bytes that a worker sends in a run, mean over seeds; None without the method."""
    return statistics.mean(method.wire_bytes) if method is not None and method.wire_bytes else None


def runs_of(methods: Iterable[MethodRuns]) -> list[NotedRun]:
    """All runs."""
    return [run for method in methods for run in method.runs]


def against(mine: Sequence[float], theirs: Sequence[float], margin: float = MARGIN) -> Comparison | None:
    """Whether losses are better, which is smaller; None where one side has none. `margin`: share of their mean."""
    if not mine or not theirs:
        return None
    return compare([-loss for loss in mine], [-loss for loss in theirs], margin * statistics.mean(theirs))


def against_dense(methods: Sequence[MethodRuns], margin: float = MARGIN) -> list[Comparison | None]:
    """Every method's losses against dense training's, corrected as one family; None where one side has none."""
    dense = dense_of(methods)
    theirs = losses(dense)
    return corrected([None if each is dense else against(losses(each), theirs, margin) for each in methods])


def multiplicity(comparisons: Iterable[Comparison | None]) -> str:
    """How many tests a table makes, and what that means for a reader."""
    count = sum(each is not None and each.p is not None for each in comparisons)
    level = f"{100 * LEVEL:.0f} %"
    if not count:
        return "No methods are compared: that takes three seeds."
    return (
        f"Comparisons in this table: {count}. Each p is that of one of them all, by Holm: at {level} one table of "
        f"{1 / LEVEL:.0f} has a method that is better or worse by chance."
    )
