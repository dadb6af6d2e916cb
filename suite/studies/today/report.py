"""The tables and the curves of the study's tasks: table.md, bytes.png and seconds.png of each.

wirebench study today report                   of results/today/gpt and results/today/resnet
wirebench study today report --out FOLDER      of FOLDER/gpt and FOLDER/resnet
"""

import argparse
import statistics
from dataclasses import replace
from pathlib import Path

from suite.studies import notes
from suite.studies.convergence.rows import NEEDS, Method, load
from suite.studies.findings import Finding, with_unrun
from suite.studies.page import Page
from suite.studies.runner import RESULTS
from suite.studies.today import verdicts
from suite.studies.today.figures import against_bytes, against_seconds
from suite.studies.today.table import document, losses
from suite.studies.today.tasks import DENSE, TASKS
from wirebench.errors import UserError


def flags(parser: argparse.ArgumentParser) -> None:
    """Whose report."""
    where = RESULTS / "today"
    parser.add_argument("--out", type=Path, default=where, metavar="FOLDER", help="of the runs (results/today)")


def pages(options: argparse.Namespace) -> list[Page]:
    """One for each task that has runs."""
    there = [page(options.out / name) for name in TASKS if methods_of(options.out / name)]
    if not there:
        raise UserError(f"{options.out}: has no TASK/METHOD-SEED/method.json; train first")
    return there


def findings(options: argparse.Namespace) -> list[Finding]:
    """The claims on each task that has runs."""
    found = ((name, verdicts.findings(name, methods_of(options.out / name))) for name in TASKS)
    return [replace(each, about=name) for name, those in found for each in those]


def committed() -> list[list[str]]:
    """The only one, once it is there."""
    return [[]] if any((RESULTS / "today").glob("*/[!.]*/method.json")) else []


def page(folder: Path) -> Page:
    """The table of a task's methods and their curves."""
    task, methods = folder.name, methods_of(folder)
    figures = {"bytes.png": against_bytes(task, methods), "seconds.png": against_seconds(task, methods)}
    found = with_unrun(verdicts.findings(task, methods), verdicts.claims_of(task))
    return Page(folder, document(task, methods, found), figures)


def methods_of(folder: Path) -> list[Method]:
    """All methods of a task, dense first, then by their final losses; each has its own learning rate."""
    notes.read(folder, {**NEEDS, "curve": list, "last_bytes": float})
    found = load(folder, own=("learning rate",))
    return sorted(found, key=lambda method: (method.label != DENSE, statistics.mean(losses(method) or [float("inf")])))
