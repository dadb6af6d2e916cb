"""Whether runs have the settings that their labels stand for."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from papers.convergence.run import Cell
from papers.convergence.tasks import Composition, Task
from wirebench.errors import UserError
from wirebench.record import notes
from wirebench.record.notes import NotedRun

_ANY = "train.seed="
"""What begins with it differs between the runs of a method."""


def refuse_others(folder: Path, runs: Sequence[NotedRun], task: Task, known: Sequence[Composition]) -> None:
    """UserError for a run of a method that is not `known`, or of other settings than the method's.

    Those that --set and --steps lay over a method all runs have, or none.
    """
    words = _words(task, known)
    for run in runs:
        told, label = run.note.get("settings"), run.note["label"]
        if label not in words:
            raise UserError(f"{run.folder}: the study trains no {label!r} here")
        has = {word.partition("=")[0] for word in told or ()}
        lacks = [word for word in words[label] if told and word.partition("=")[0] not in has]
        if lacks:
            raise UserError(
                f"{run.folder}: was made without {', '.join(lacks)}, which {label} has; make it anew (--again)"
            )
    notes.refuse_mixed(folder, {run.folder.name: {"settings": _more(run, words)} for run in runs if _tells(run)})


def laid_over(runs: Sequence[NotedRun], task: Task, known: Sequence[Composition]) -> list[str]:
    """What --set and --steps laid over all methods of a folder that `refuse_others` lets pass."""
    telling = [run for run in runs if _tells(run)]
    return _more(telling[0], _words(task, known)) if telling else []


def _tells(run: NotedRun) -> bool:
    return bool(run.note.get("settings"))


def _words(task: Task, known: Sequence[Composition]) -> dict[str, tuple[str, ...]]:
    """By label the settings of a run, as its note has them."""
    return {each.label: Cell(task, each, 0, (), None).words for each in known}


def _more(run: NotedRun, words: Mapping[str, Sequence[str]]) -> list[str]:
    usual = words[run.note["label"]]
    return [word for word in run.note["settings"] if word not in usual and not word.startswith(_ANY)]
