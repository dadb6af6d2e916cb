"""A run beside the reference runs of its method and task: whether it converges faster or slower than they do.

MLPerf's reference convergence points, for accuracy after epochs: what a new seed may become is told from the reference
seeds' mean and from the spread of seeds, which is pooled over all methods of the task, since three seeds alone say
little of it. Two figures are compared: the last accuracy, and the mean over all epochs, which is larger where a run
learns earlier. `results/convergence` has the reference runs.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from scipy import stats

from papers.convergence import rows
from papers.convergence.rows import Method
from papers.convergence.tasks import TASKS
from papers.runner import RESULTS, ROOT
from papers.significance import LEAST_RUNS
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.record import schema

REFERENCES = RESULTS / "convergence"
DATA = "cifar10"
"""What there are reference runs of."""
LEVEL = 0.01
"""Of both figures together: so many of the runs that do not differ are flagged."""


class Reference(NamedTuple):
    """What seeds of a method became: mean, spread of a seed, its degrees of freedom, and how many seeds there are."""

    mean: float
    spread: float
    freedom: int
    seeds: int

    def expected(self) -> tuple[float, float]:
        """Between which two figures another seed lies but for LEVEL of the cases, half of it for each figure."""
        width = stats.t.ppf(1 - LEVEL / 4, self.freedom) * self.spread * math.sqrt(1 + 1 / self.seeds)
        return self.mean - width, self.mean + width


def remarks(record: Mapping[str, Any], results: Path = REFERENCES) -> list[str]:
    """A line for each figure in which the run is not as its references; none where it has no reference."""
    try:
        return _remarks(record, _tasks(results, [record]))
    except UserError as error:
        return [f"not compared with reference runs: {error}"]


def flagged(records: Iterable[Path], results: Path = REFERENCES) -> list[tuple[Path, str]]:
    """Files of records, each with a line for each figure in which its run is not as its references.

    A run that is a reference itself is compared with the others. UserError for a reference that cannot be read.
    """
    runs = [(path, schema.read(path)) for path in records]
    trained = [(path, record) for path, record in runs if record["config"].get("data", {}).get("name") == DATA]
    tasks = _tasks(results, [record for _, record in trained])
    return [(path, said) for path, record in trained for said in _remarks(record, tasks)]


def _tasks(results: Path, records: Iterable[Mapping[str, Any]]) -> dict[str, list[Method]]:
    """The reference runs by their task: of the tasks whose model any of these runs trained."""
    depths = {rows.settings_of(record["config"])["depth"] for record in records}
    asked = [task for task in TASKS.values() if loader.load(ROOT / task.config, []).model.options["depth"] in depths]
    folders = {task.name: results / task.folder for task in asked}
    return {name: rows.load(folder) for name, folder in folders.items() if folder.is_dir()}


def _remarks(record: Mapping[str, Any], tasks: Mapping[str, Sequence[Method]]) -> list[str]:
    accuracies, found = _accuracies(record["history"]), _of(record, tasks)
    if found is None or not accuracies:
        return []
    task, method, methods = found
    said = []
    for name, words, figure in FIGURES:
        reference = reference_of(method, methods, figure)
        if reference is None or len(accuracies) != len(_accuracies(rows.history(method.runs[0]))):
            continue
        (low, high), here = reference.expected(), figure(accuracies)
        if not low <= here <= high:
            direction = words[int(here > high)]
            said.append(
                f"{direction} than the {reference.seeds} reference runs of {method.label} ({task}): {name} "
                f"{100 * here:.2f} %, expected {100 * low:.2f} to {100 * high:.2f} %"
            )
    return said


def last(accuracies: Sequence[float]) -> float:
    """The last accuracy."""
    return accuracies[-1]


FIGURES = (
    ("top-1 at the end", ("ends lower", "ends higher"), last),
    ("mean top-1 over all epochs", ("converges slower", "converges faster"), statistics.mean),
)
"""Name of each figure, words for a lower and a higher one, and how it is made of the accuracies after each epoch."""


def reference_of(method: Method, methods: Sequence[Method], figure: Any) -> Reference | None:
    """What another seed of the method is compared with; None where it has too few seeds."""
    groups = {each.label: _figures(each, figure) for each in methods if not each.ends}
    mine = groups.get(method.label, [])
    if len(mine) < LEAST_RUNS:
        return None
    freedom = sum(len(group) - 1 for group in groups.values())
    squares = sum(statistics.variance(group) * (len(group) - 1) for group in groups.values() if len(group) > 1)
    return Reference(statistics.mean(mine), math.sqrt(squares / freedom), freedom, len(mine))


def _of(
    record: Mapping[str, Any], tasks: Mapping[str, Sequence[Method]]
) -> tuple[str, Method, Sequence[Method]] | None:
    """The task, the method and all methods that the run is one more seed of; None where no runs are as it is."""
    mine = _composition(record)
    for task, known in tasks.items():
        if any(_composition(method.runs[0].record) == mine for method in known):
            methods = _others(known, record)
            same = (method for method in methods if _composition(method.runs[0].record) == mine)
            return next(((task, method, methods) for method in same), None)
    return None


def _composition(record: Mapping[str, Any]) -> tuple[object, ...]:
    """What all seeds of a method share."""
    config = record["config"]
    return rows.settings_of(config), rows.options_of(config), record["world_size"]


def _others(methods: Sequence[Method], record: Mapping[str, Any]) -> list[Method]:
    """Methods without the run itself, where it is a reference: it would be compared with itself."""
    kept = [replace(method, runs=tuple(run for run in method.runs if run.record != record)) for method in methods]
    return [method for method in kept if method.runs]


def _figures(method: Method, figure: Any) -> list[float]:
    return [figure(each) for run in method.runs if (each := _accuracies(rows.history(run)))]


def _accuracies(history: Sequence[Mapping[str, Any]]) -> list[float]:
    return [entry["top1"] for entry in history if entry["top1"] is not None]
