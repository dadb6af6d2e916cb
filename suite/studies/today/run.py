"""Train a GPT and a ResNet with the methods of today and the classics: loss by bytes and by time on four networks.

wirebench study today run --data FOLDER                       both tasks, 3 seeds: about 6 h on two quiet cores
wirebench study today run --task gpt --methods dense demo dion --seeds 0
wirebench study today report                                  the tables and the figures, without training

The GPT reads the Python standard library and needs no --data. A run that is there already is not repeated. The times
are measured computing and a simulated network, so that one run serves all four rates.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.studies.convergence.run import Cell
from suite.studies.convergence.tasks import Task
from suite.studies.runner import RESULTS, Launch, Part, measure
from suite.studies.today import report
from suite.studies.today.curve import curve_of
from suite.studies.today.tasks import QUICK, TASKS, compositions
from wirebench.errors import UserError


@dataclass(frozen=True)
class Traced(Cell):
    """A run whose note also has the loss on the way, by bytes."""

    def noted(self, folder: Path) -> dict[str, Any]:
        """As that of a convergence run, with the curve of its steps."""
        return {**super().noted(folder), **curve_of(folder / "steps.jsonl")}


def flags(parser: argparse.ArgumentParser) -> None:
    """What is trained, for how long, where."""
    add = parser.add_argument
    add("--data", type=Path, metavar="FOLDER", help="folder that has cifar-10-batches-bin, for the task resnet")
    add("--task", nargs="+", default=list(TASKS), choices=list(TASKS), help="what is learned (%(default)s)")
    add("--methods", nargs="+", metavar="NAME", help="dense, sparseloco, demo, ... (all of the task)")
    add("--seeds", nargs="+", type=int, metavar="SEED", help="one run of each method for each (0 1 2)")
    add("--steps", type=int, default=0, metavar="N", help="end every run after N steps, to try the study (0: run on)")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further settings, of all methods")
    add("--out", type=Path, default=RESULTS / "today", metavar="FOLDER", help="results go to FOLDER/TASK")


def run(options: argparse.Namespace, launch: Launch) -> list[str]:
    """All runs that are not there yet, seed by seed, and the report of all that are there after each task."""
    cells = {name: planned(options, TASKS[name]) for name in options.task}
    failed = []
    for name, those in cells.items():
        out = (options.out / name).resolve()
        failed += measure(those, out, launch, options.again)
        if report.methods_of(out):
            report.page(out).write()
    return failed


def series(quick: bool) -> list[Part]:
    """Both tasks; quick: a few steps of a few methods of the GPT."""
    if quick:
        return [Part(2, ["--task", "gpt", "--methods", *QUICK, "--seeds", "0", "--steps", "30"])]
    return [Part(3 * 60, ["--task", "gpt"]), Part(3 * 60, ["--task", "resnet", "--data", "{data}"])]


def planned(options: argparse.Namespace, task: Task) -> Sequence[Traced]:
    """Every run of a task that the command line asks for; UserError for a mistake in it. A seed's methods lie together:
    whatever stops the study, the methods that are there can be compared.
    """
    if options.steps < 0:
        raise UserError(f"--steps: is positive, or 0 for whole runs, got {options.steps}")
    if options.data is None and task.data:
        raise UserError("--data: which folder has cifar-10-batches-bin?")
    seeds = options.seeds or list(range(task.seeds))
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds: one is given twice: {' '.join(map(str, seeds))}")
    more = (*([f"train.max_steps={options.steps}"] if options.steps else []), *options.set)
    chosen = compositions(task, options.methods)
    return [Traced(task, method, seed, more, options.data) for seed in seeds for method in chosen]
