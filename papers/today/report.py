"""The tables and the curves of the study's tasks, and the table of what was measured on emulated hosts.

wirebench study today report                   of results/today/gpt, gpt_rates, resnet, speed ...
wirebench study today report --out FOLDER      of FOLDER/gpt and so on

table.md of each, and of a task bytes.svg and seconds.svg with the loss by bytes and by time.
"""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from papers.convergence.rows import NEEDS, Method, load
from papers.findings import Finding, with_unrun
from papers.page import Page
from papers.runner import RESULTS
from papers.today import alone, rates, verdicts
from papers.today.alone import TIMES
from papers.today.composed import refuse_others
from papers.today.emulated import measured
from papers.today.emulated.speed import SPEED
from papers.today.figures import SHOWN_GBIT, against_bytes, against_seconds
from papers.today.outcome import losses, runs_of
from papers.today.rates import OWN, RATES
from papers.today.table import document
from papers.today.tasks import DENSE, TASKS, compositions
from papers.today.times import yardstick
from wirebench.errors import UserError
from wirebench.figures.style import Figure
from wirebench.record import notes, recorded
from wirebench.record.notes import NotedRun


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for the runs of the report."""
    where = RESULTS / "today"
    parser.add_argument("--out", type=Path, default=where, metavar="FOLDER", help="of the runs (results/today)")


def pages(options: argparse.Namespace) -> list[Page]:
    """One for each task that has runs, and for the measured part."""
    found = [page(options.out / name) for name in (*TASKS, *RATES, *TIMES, SPEED)]
    there = [each for each in found if each is not None]
    if not there:
        raise UserError(f"{options.out}: has no runs TASK/METHOD-SEED; train first")
    return there


def findings(options: argparse.Namespace) -> list[Finding]:
    """The claims on each task that has runs, and the claims on the measured part."""
    places = ((name, options.out / name) for name in TASKS)
    found = ((name, _judged(each, methods_of(each))) for name, each in places)
    trained = [
        replace(each, about=", ".join(filter(None, (name, each.about)))) for name, those in found for each in those
    ]
    return [*trained, *measured.findings(measured.load(options.out / SPEED))]


def committed() -> list[list[str]]:
    """The only one, once it is there."""
    return [[]] if recorded.series(RESULTS / "today") else []


def page(folder: Path) -> Page | None:
    """The table of a task's methods and their curves, or the measured part's table; None where nothing has run."""
    if folder.name == SPEED:
        return measured.page(folder) if measured.load(folder) else None
    if folder.name in RATES:
        return rates.page(folder)
    if folder.name in TIMES:
        return alone.page(folder)
    task, methods = folder.name, methods_of(folder)
    if not methods:
        return None
    by = yardstick(methods, alone.timed(folder, methods))
    figures: dict[str, Figure | None] = {"bytes.svg": against_bytes(task, methods)}
    for name, gbit in SHOWN_GBIT.items():
        figures[name] = against_seconds(task, methods, by, gbit)
    found = with_unrun(_judged(folder, methods), verdicts.claims_of(task))
    doubts = rates.doubts(methods, rates.tried_beside(folder))
    shown = [name for name, figure in figures.items() if figure is not None]
    return Page(folder, document(task, methods, found, shown, by, doubts), figures)


def _judged(folder: Path, methods: Sequence[Method]) -> list[Finding]:
    """The claims on a task, by its runs and those at other rates and alone that lie beside it."""
    by = yardstick(methods, alone.timed(folder, methods))
    return verdicts.findings(folder.name, methods, rates.tried_beside(folder), by)


def methods_of(folder: Path) -> list[Method]:
    """All methods of a task, dense first, then by their final losses; each has its own learning rate.

    UserError where runs have different lengths, but for other forms of dense training, or other settings than their
    labels stand for.
    """
    recorded.noted(folder, {**NEEDS, "curve": list, "last_bytes": float, "rounds": int})
    found = load(folder, own=OWN)
    rates.refuse_mixed(folder, found)
    # The text is the standard library's own: another Python's is another text.
    pythons = {run.folder.name: {"python": python_of(run)} for method in found for run in method.runs}
    notes.refuse_mixed(folder, pythons)
    refuse_others(folder, runs_of(found), TASKS[folder.name], compositions(TASKS[folder.name], None))
    return sorted(found, key=lambda method: (method.label != DENSE, statistics.mean(losses(method) or [float("inf")])))


def python_of(run: NotedRun) -> str | None:
    """The version whose standard library it read: an edit of a release moves all text behind it; None: not known."""
    version: str | None = run.has("environment", "versions", "python")
    return version if run.has("config", "data", "name") == "python_sources" else None
