"""Compare a run with the reference runs of its method and task: does it converge faster or slower?

This applies MLPerf's reference convergence points to accuracy after epochs. The range for a new seed follows from the
reference seeds' mean and the spread of seeds. The spread is pooled over all methods of the task, since three seeds
estimate it badly. Two figures are compared: the last accuracy, and the mean over all epochs, which is larger if a run
learns earlier. data/references.json.gz has the reference runs, as `wirebench study publish` writes them.
"""

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scipy import stats

from wirebench.config.plugins import current
from wirebench.utils import user_files

SHIPPED = Path(__file__).parent / "data" / "references.json.gz"
DATA = "cifar10"
"""The data set of the reference runs."""
LEVEL = 0.01
"""Significance level of both figures together: the share of runs without a difference that are flagged."""
LEAST_RUNS = 3
SHARED = {
    "model": ("model", "name"), "depth": ("model", "depth"), "width": ("model", "width"), "data": ("data", "name"),
    "pixels": ("data", "size"), "batch size": ("data", "batch_size"), "workers": ("engine", "workers"),
    "precision": ("train", "precision"), "learning rate": ("optimizer", "lr"), "epochs": ("train", "epochs"),
    "steps": ("train", "max_steps"),
}  # fmt: skip
"""Where a config has what all runs of a task share."""


class TrainedMethod(NamedTuple):
    """The reference runs of a method.

    task, method  by which they are named
    like          what all its seeds share, by `composition`
    whole         whether every run came to its end
    seeds         top-1 after each epoch, of each seed
    """

    task: str
    method: str
    like: dict[str, Any]
    whole: bool
    seeds: list[list[float]]


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


def last(accuracies: Sequence[float]) -> float:
    """The last accuracy."""
    return accuracies[-1]


Figure = Callable[[Sequence[float]], float]
FIGURES: tuple[tuple[str, tuple[str, str], Figure], ...] = (
    ("top-1 at the end", ("ends lower", "ends higher"), last),
    ("mean top-1 over all epochs", ("converges slower", "converges faster"), statistics.mean),
)
"""Name of each figure, words for a lower and a higher one, and how it is made of the accuracies after each epoch."""


def settings_of(config: Mapping[str, Any]) -> dict[str, object]:
    """What all runs of a task share, of a run's config; None for what it does not say."""
    return {name: config.get(section, {}).get(key) for name, (section, key) in SHARED.items()}


def options_of(config: Mapping[str, Any]) -> dict[str, object]:
    """What makes the method: the compressor's options and the optimizer's, of a run's config."""
    sections = ("compressor", "optimizer")
    given = {f"{name}.{key}": value for name in sections for key, value in config.get(name, {}).items()}
    return {key: current(value) if key == "compressor.name" else value for key, value in given.items()}


def composition(record: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, options and number of workers that all seeds of a method share."""
    config = record["config"]
    return {"settings": settings_of(config), "options": options_of(config), "workers": record["world_size"]}


def accuracies(history: Sequence[Mapping[str, Any]]) -> list[float]:
    """Top-1 after each epoch, of a record's history."""
    return [entry["top1"] for entry in history if entry["top1"] is not None]


@functools.cache
def shipped() -> tuple[TrainedMethod, ...]:
    """The reference runs of this version."""
    return tuple(TrainedMethod(**each) for each in user_files.read_json(SHIPPED)["methods"])


def remarks(record: Mapping[str, Any], known: Sequence[TrainedMethod] | None = None) -> list[str]:
    """A line for each figure in which the run is not as its references; none where it has no reference.

    A run that is a reference itself is compared with the others.
    """
    mine, like = accuracies(record["history"]), composition(record)
    known = shipped() if known is None else known
    task = next((each.task for each in known if each.like == like), None)
    if task is None or not mine:
        return []
    others = [each._replace(seeds=[seed for seed in each.seeds if seed != mine]) for each in known if each.task == task]
    others = [each for each in others if each.seeds]
    method = next((each for each in others if each.like == like), None)
    if method is None or len(method.seeds[0]) != len(mine):
        return []
    said = []
    for name, words, figure in FIGURES:
        reference = reference_of(method, others, figure)
        if reference is None:
            continue
        (low, high), here = reference.expected(), figure(mine)
        if not low <= here <= high:
            direction = words[int(here > high)]
            said.append(
                f"{direction} than the {reference.seeds} reference runs of {method.method} ({task}): {name} "
                f"{100 * here:.2f} %, expected {100 * low:.2f} to {100 * high:.2f} %"
            )
    return said


def reference_of(method: TrainedMethod, methods: Sequence[TrainedMethod], figure: Figure) -> Reference | None:
    """What another seed of the method is compared with; None where it has too few seeds."""
    groups = {each.method: [figure(seed) for seed in each.seeds if seed] for each in methods if each.whole}
    mine = groups.get(method.method, [])
    if len(mine) < LEAST_RUNS:
        return None
    freedom = sum(len(group) - 1 for group in groups.values() if group)
    squares = sum(statistics.variance(group) * (len(group) - 1) for group in groups.values() if len(group) > 1)
    return Reference(statistics.mean(mine), math.sqrt(squares / freedom), freedom, len(mine))
