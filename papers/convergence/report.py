"""The tables and the curves of accuracy against epochs and bytes: table.md, epochs.svg and bytes.svg of each task.

wirebench study convergence report                   of results/convergence/quick and results/convergence/resnet20
wirebench study convergence report --out FOLDER      of FOLDER/quick and FOLDER/resnet20
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from papers.convergence.curves import against_bytes, against_epochs
from papers.convergence.rows import Method, load
from papers.convergence.table import document
from papers.convergence.tasks import TASKS
from papers.convergence.verdicts import findings as judged
from papers.findings import Finding
from papers.page import Page
from papers.runner import RESULTS
from wirebench.errors import UserError
from wirebench.figures.style import Figure


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for the runs of the report."""
    where = RESULTS / "convergence"
    parser.add_argument("--out", type=Path, default=where, metavar="FOLDER", help="of the runs (results/convergence)")


def pages(options: argparse.Namespace) -> list[Page]:
    """Return one page for each task that has runs."""
    there = [page(folder) for folder in folders(options.out) if load(folder)]
    if not there:
        raise UserError(f"{options.out}: has no runs TASK/METHOD-SEED; train first")
    return there


def findings(options: argparse.Namespace) -> list[Finding]:
    """The claims on each task that has runs."""
    tasks = ((folder.name, judged(load(folder))) for folder in folders(options.out))
    return [replace(each, about=task) for task, found in tasks for each in found]


def committed() -> list[list[str]]:
    """The only one."""
    return [[]]


def folders(out: Path) -> list[Path]:
    """Where the tasks' runs are."""
    return [out / task.folder for task in TASKS.values()]


def page(folder: Path) -> Page:
    """The table of a task's methods and their curves. The other task's runs, beside it, say whether both rank alike."""
    methods = load(folder)
    figures: dict[str, Figure | None] = {
        "epochs.svg": against_epochs(methods, folder.name), "bytes.svg": against_bytes(methods, folder.name)
    }  # fmt: skip
    return Page(folder, document(folder.name, methods, others(folder)), figures)


def others(folder: Path) -> dict[str, Sequence[Method]]:
    """The methods of the other tasks, by the task's name."""
    return {each.name: load(each) for each in folders(folder.parent) if each.name != folder.name and each.exists()}
