"""What is trained: a task's config, its length, its methods, and where its runs lie."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from papers.accuracy.rows import MethodRuns, load, runs_of
from papers.runner import ROOT
from papers.trainings import OwnCluster, settings
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.record import notes
from wirebench.record.notes import NotedRun


class Composition(NamedTuple):
    """A method of a task: its label, its overrides, and the density after a warm-up; None where no option says.

    seeds  how many it has, where that is not the task's number
    """

    label: str
    overrides: tuple[str, ...]
    density: float | None = None
    seeds: int | None = None


Methods = Callable[["Task", Sequence[str] | None, float], list[Composition]]
"""The methods of a task, or those that are named, at a density; UserError for one that there is not."""


@dataclass(frozen=True)
class Task:
    """What is learned.

    series      folder of results/ that its runs are in
    seeds       runs of each method
    parameters  of its model
    methods     what is trained
    data        whether it needs a folder of CIFAR-10
    shared      overrides of all its runs
    settings    by label a method's overrides, where these are a list
    own         settings, by their names in SHARED, that may differ between methods
    place       where it runs; None: all workers in one process here
    """

    name: str
    series: str
    config: str
    epochs: int
    seeds: int
    parameters: int
    methods: Methods
    data: bool = True
    shared: tuple[str, ...] = ()
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    own: tuple[str, ...] = ()
    place: OwnCluster | None = None

    @property
    def folder(self) -> Path:
        """The folder of its runs, below the one of all results."""
        return Path(self.series, self.name)

    def words(self, method: Composition, seed: int = 0, more: Sequence[str] = ()) -> tuple[str, ...]:
        """All that is laid over the config; of two values for a key the later one."""
        words = (f"train.epochs={self.epochs}", *self.shared, *method.overrides, f"train.seed={seed}", *more)
        return tuple({word.partition("=")[0]: word for word in words}.values())

    def composed(self, method: Composition, seed: int = 0, more: Sequence[str] = ()) -> loader.Config:
        """All that a method is trained with; UserError for a mistake in it."""
        return loader.load(ROOT / self.config, list(self.words(method, seed, more)))

    def known(self, names: Sequence[str] | None, density: float) -> list[Composition]:
        """All of its methods, or the named ones."""
        if names is None:
            return self.methods(self, None, density)
        found: dict[str, Composition] = {}
        for name in names:
            try:
                found |= {each.label: each for each in self.methods(self, [name], density)}
            except UserError:
                continue
        return list(found.values())


def listed(task: Task, names: Sequence[str] | None, density: float = 0.0) -> list[Composition]:
    """The methods of a task that has a list of them, all or those that are named; UserError for another name."""
    for name in names or ():
        if name not in task.settings:
            raise UserError(f"--methods: no {name!r}; there is: {', '.join(task.settings)}")
    return [Composition(name, task.settings[name]) for name in dict.fromkeys(names or task.settings)]


def methods_in(folder: Path, task: Task) -> list[MethodRuns]:
    """The methods of a task by the runs in a folder; UserError for a run of another method, or of other settings.

    Those that --set and --steps lay over a method all runs have, or none.
    """
    methods = load(folder, own=task.own)
    words, runs = _words(task) if methods else {}, runs_of(methods)
    for run in runs:
        told, label = words_of(run), run.note["label"]
        if label not in words:
            raise UserError(f"{run.folder}: the study trains no {label!r} here")
        has = {word.partition("=")[0] for word in told}
        lacks = [word for word in words[label] if told and word.partition("=")[0] not in has]
        if lacks:
            raise UserError(
                f"{run.folder}: was made without {', '.join(lacks)}, which {label} has; make it anew (--again)"
            )
    more = {run.folder.name: {"settings": _more(run, words)} for run in runs if words_of(run)}
    notes.refuse_mixed(folder, more)
    return methods


def laid_over(runs: Sequence[NotedRun], task: Task) -> list[str]:
    """What --set and --steps laid over all methods of a folder that `methods_in` lets pass."""
    telling = [run for run in runs if words_of(run)]
    return _more(telling[0], _words(task)) if telling else []


def _words(task: Task) -> dict[str, tuple[str, ...]]:
    """By label what is laid over the config of each method."""
    return {each.label: task.words(each) for each in task.known(None, 0.0)}


def words_of(run: NotedRun) -> list[str]:
    """What was laid over the config, by the run's launch."""
    return settings(run.note["launch"])[1:]


def _more(run: NotedRun, words: Mapping[str, Sequence[str]]) -> list[str]:
    usual = words[run.note["label"]]
    return [word for word in words_of(run) if word not in usual and not word.startswith("train.seed=")]
