"""The tables and the figures of the study's tasks.

wirebench study accuracy report                   of results/convergence/quick, results/today/gpt, ...
wirebench study accuracy report --out FOLDER      of FOLDER/convergence/quick and so on

table.md of each task. Of every compressor on CIFAR-10 also epochs.svg and bytes.svg with the accuracy, of the methods
of today bytes.svg and seconds.svg with the loss.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from papers.accuracy import alone, formats, grid, loss_table, rates, sizes, top1_table, verdicts
from papers.accuracy.figures import (
    SHOWN_GBIT,
    accuracy_by_bytes,
    accuracy_by_epochs,
    loss_by_bytes,
    loss_by_seconds,
)
from papers.accuracy.rows import NEEDS, MethodRuns, by_loss, load
from papers.accuracy.task import Task, methods_in
from papers.accuracy.tasks import ALONE, AT_OTHER_RATES, BY_FORMAT, CLASSICS, MODERN, TASKS
from papers.accuracy.times import yardstick
from papers.findings import Finding, with_unrun
from papers.page import Page
from papers.runner import RESULTS
from wirebench.errors import UserError
from wirebench.figures.style import Figure
from wirebench.record import notes, recorded
from wirebench.record.notes import NotedRun


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for the runs of the report."""
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="of the runs (results)")


def pages(options: argparse.Namespace) -> list[Page]:
    """Make a page for each task that has runs."""
    each = [page(options.out / task.folder) for task in TASKS.values()]
    there = [made for made in (*each, sizes.summary(options.out), grid.summary(options.out)) if made is not None]
    if not there:
        raise UserError(f"{options.out}: has no runs SERIES/TASK/METHOD-SEED; train first")
    return there


def findings(options: argparse.Namespace) -> list[Finding]:
    """The claims on each task that has runs."""
    tasks = (*MODERN, *CLASSICS, *sizes.JUDGED)
    found = ((task, _judged(options.out / task.folder, task, _methods(options.out, task))) for task in tasks)
    return [
        replace(each, about=", ".join(filter(None, (task.name, each.about)))) for task, those in found for each in those
    ]


def page(folder: Path) -> Page | None:
    """The table of a task's methods and their figures; None where nothing has run."""
    task = TASKS[folder.name]
    if task in AT_OTHER_RATES:
        return rates.page(folder, task)
    if task in ALONE:
        return alone.page(folder)
    if task in sizes.SEARCHES:
        return sizes.search_page(folder, task)
    if task in sizes.SIZED:
        return sizes.page(folder, task)
    if task in grid.CELLS:
        return grid.page(folder, task)
    if task in BY_FORMAT:
        return formats.page(folder, task)
    methods = _methods(folder.parents[1], task)
    if not methods:
        return None
    return _of_losses(folder, task, methods) if task in MODERN else _of_accuracies(folder, task, methods)


def _of_accuracies(folder: Path, task: Task, methods: Sequence[MethodRuns]) -> Page:
    """Other tasks' runs, beside it, say whether they rank alike."""
    figures: dict[str, Figure | None] = {
        "epochs.svg": accuracy_by_epochs(methods, task.name), "bytes.svg": accuracy_by_bytes(methods, task.name)
    }  # fmt: skip
    beside = {each.name: load(folder.with_name(each.name)) for each in CLASSICS if each != task}
    found = _judged(folder, task, methods)
    return Page(folder, top1_table.document(task.name, methods, found, beside), figures)


def _of_losses(folder: Path, task: Task, methods: Sequence[MethodRuns]) -> Page:
    by = yardstick(methods, alone.timed(folder, methods))
    figures: dict[str, Figure | None] = {"bytes.svg": loss_by_bytes(task.name, methods)}
    for name, gbit in SHOWN_GBIT.items():
        figures[name] = loss_by_seconds(task.name, methods, by, gbit)
    found = with_unrun(_judged(folder, task, methods), verdicts.claims_of(task))
    doubts = rates.doubts(methods, _tried(folder))
    shown = [name for name, figure in figures.items() if figure is not None]
    return Page(folder, loss_table.document(task, methods, found, shown, by, doubts), figures)


def _judged(folder: Path, task: Task, methods: Sequence[MethodRuns]) -> list[Finding]:
    """The claims on a task, by its runs and those at other rates and alone that lie beside it."""
    if task not in MODERN:
        return verdicts.findings(task, methods, None if task in sizes.JUDGED else ())
    by = yardstick(methods, alone.timed(folder, methods))
    return verdicts.findings(task, methods, _tried(folder), by)


def _tried(folder: Path) -> list[MethodRuns]:
    """The runs at other rates of the task in this folder."""
    beside = f"{folder.name}{rates.SUFFIX}"
    return rates.tried(folder.with_name(beside), TASKS[beside])


def _methods(out: Path, task: Task) -> list[MethodRuns]:
    if task in sizes.JUDGED:
        # Until a method has all its seeds at a size, claims on it are judged at the size before.
        return [each for each in methods_in(out / task.folder, task) if len(each.runs) >= task.seeds]
    return methods_of(out / task.folder) if task in MODERN else load(out / task.folder)


def methods_of(folder: Path) -> list[MethodRuns]:
    """All methods of a task of today, dense first, then by their final losses; each has its own learning rate.

    UserError where runs have different lengths, but for other forms of dense training, or other settings than their
    labels stand for.
    """
    task = TASKS[folder.name]
    recorded.noted(folder, {**NEEDS, "curve": list, "last_bytes": float, "rounds": int})
    found = methods_in(folder, task)
    rates.refuse_mixed(folder, found)
    # The text is the standard library's own: another Python's is another text.
    pythons = {run.folder.name: {"python": python_of(run)} for method in found for run in method.runs}
    notes.refuse_mixed(folder, pythons)
    return sorted(found, key=by_loss)


def python_of(run: NotedRun) -> str | None:
    """The version whose standard library it read: an edit of a release moves all text behind it; None: not known."""
    version: str | None = run.has("environment", "versions", "python")
    return version if run.has("config", "data", "name") == "python_sources" else None
