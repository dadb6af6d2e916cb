"""Train on CIFAR-10 with every compressor: accuracy against epochs and against bytes, over several seeds.

wirebench study convergence run --data FOLDER                 both tasks: about 12 h on two quiet cores
wirebench study convergence run --data FOLDER --task quick --methods dense topk gs_sgd
wirebench study convergence run --data FOLDER --task resnet20 --methods dense --seeds 0 1 --set train.epochs=2 --out X
wirebench study convergence report                            the tables and the curves, without training

The quick task is a narrow ResNet-8 on images of 16 x 16 pixels, with five seeds of every method. The long one is
ResNet-20 on whole images, with three seeds of some. vgg16 is for a GPU. digits need no --data and show within
minutes that the study works. A method's seeds run one after the other, so that whatever stops the study, its rows
are whole but for the last. A run that is there already is not repeated, nor one that diverged. An interrupted one
continues from its last epoch: start it again as often as you like. Runs of other settings want another --out.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papers.convergence import report, rows
from papers.convergence.tasks import CONTRASTS, QUICK, TASKS, USUAL, Composition, Task, compositions
from papers.runner import RESULTS, ROOT, Command, Launch, Part, attempt, measure, shown, within
from papers.significance import LEAST_RUNS
from papers.trainings import part_of
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.record import recorded
from wirebench.record.notes import refuse_mixed


@dataclass(frozen=True)
class Cell:
    """A run to come: a method of a task with a seed. It continues from its last epoch.

    more  overrides of the command line; data: the folder of CIFAR-10
    """

    task: Task
    method: Composition
    seed: int
    more: tuple[str, ...]
    data: Path | None

    @property
    def label(self) -> str:
        """Its name."""
        return f"{self.method.label.replace(' ', '-')}-{self.seed}"

    def check(self) -> None:
        """UserError for settings that no run can have."""
        self.config()

    def is_there(self, out: Path) -> bool:
        """Whether it came to its end, or diverged."""
        return recorded.at(out / self.label) is not None

    def make(self, out: Path, launch: Launch) -> bool:
        """Train, on from the last epoch; whether that left a result."""
        made = part_of(out / self.label)
        if not attempt(self.command(made), made, launch):
            return False
        launched = shown(self.command(out / self.label))
        note = {**self.noted(made), "task": self.task.name, "epochs": self.epochs, "launch": launched}
        recorded.append(out, self.label, note, made)
        shutil.rmtree(made)
        return True

    def noted(self, folder: Path) -> dict[str, Any]:
        """What its note says of it, beside task, epochs and launch; the run's folder has all its files yet."""
        return {"label": self.method.label, "seed": self.seed, "density": self.method.density}

    @property
    def words(self) -> tuple[str, ...]:
        """All that is laid over the task's config; of two values for a key the later one."""
        words = (f"train.epochs={self.task.epochs}", *self.method.overrides, f"train.seed={self.seed}", *self.more)
        return tuple({word.partition("=")[0]: word for word in words}.values())

    @property
    def epochs(self) -> int:
        """Length of its schedule."""
        return self.config().train.epochs

    def config(self) -> loader.Config:
        """All that it is trained with; UserError for a mistake in it."""
        return loader.load(ROOT / self.task.config, list(self.words))

    def command(self, folder: Path) -> Command:
        """Return the command that trains in `folder`."""
        resuming = ["train.resume=auto", "train.checkpoint_every_epochs=1", "train.keep=1"]
        place = [*([f"data.root={self.data}"] if self.task.data else []), f"output.dir={within(folder)}"]
        return [sys.executable, "train.py", self.task.config, *self.words, *place, *resuming]


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for what is trained, for how long, and where."""
    add = parser.add_argument
    add("--data", type=Path, metavar="FOLDER", help="folder that has cifar-10-batches-bin")
    add("--task", nargs="+", default=list(USUAL), choices=list(TASKS), help="what is learned (quick and resnet20)")
    add("--methods", nargs="+", metavar="NAME", help="compressors, 'dense', 'gs_sgd literal', ... (the task's)")
    add("--seeds", nargs="+", type=int, metavar="SEED", help="one run of each method for each (the task's: 0, 1, ...)")
    add("--density", type=float, default=0.01, help="of the sparse methods (%(default)s)")
    add("--steps", type=int, default=0, metavar="N", help="end every run after N steps, to try the study (0: run on)")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further settings, of all methods")
    add("--out", type=Path, default=RESULTS / "convergence", metavar="FOLDER", help="results go to FOLDER/TASK")


def run(options: argparse.Namespace, launch: Launch) -> list[str]:
    """All runs that are not there yet, task by task, and the report of all that are there after each."""
    tasks = [TASKS[name] for name in options.task]
    cells = {(options.out / task.folder).resolve(): planned(options, task) for task in tasks}
    for out, those in cells.items():
        refuse_others(out, those)
    failed = measure(cells, launch, options.again, _show)
    for out in cells:
        _show(out)
    return failed


def _show(out: Path) -> None:
    """Write the report of a task's runs, if there are any."""
    if rows.read(out):
        report.page(out).write()


def series(quick: bool) -> list[Part]:
    """Both tasks; quick: a few methods with three seeds, on digits, and a few steps on CIFAR-10."""
    if not quick:
        return [Part(16 * 60, ["--data", "{data}"])]
    few = ["--steps", "60", "--set", "train.epochs=1", "--seeds", "0", "1", "2", "--methods", *QUICK]
    return [Part(3, ["--task", "digits"]), Part(3, ["--data", "{data}", "--task", "quick", *few])]


def planned(options: argparse.Namespace, task: Task) -> list[Cell]:
    """Every run of a task that the command line asks for, whether it is there or not; UserError for a mistake in it."""
    if not 0 < options.density <= 1:
        raise UserError(f"--density: lies in (0, 1], got {options.density:g}")
    if options.steps < 0:
        raise UserError(f"--steps: is positive, or 0 for whole runs, got {options.steps}")
    chosen = compositions(task, options.methods, options.density)
    if options.data is None and task.data:
        raise UserError("--data: which folder has cifar-10-batches-bin?")
    seeds = options.seeds or []
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds: one is given twice: {' '.join(map(str, seeds))}")
    more = (*([f"train.max_steps={options.steps}"] if options.steps else []), *options.set)
    return [
        Cell(task, method, seed, more, options.data)
        for method in chosen
        for seed in seeds or range(LEAST_RUNS if method.label in CONTRASTS else task.seeds)
    ]


def refuse_others(out: Path, cells: Sequence[Cell]) -> None:
    """UserError where runs that are there, or were begun, have other settings than those to come."""
    there = rows.read(out)
    known = rows.settings(there)
    for cell in cells:
        folder = part_of(out / cell.label)
        if cell.label not in known and (folder / "checkpoints").exists():
            # A checkpoint refuses another density by itself; another length of the schedule it takes up.
            known[cell.label] = {"epochs": loader.load(folder / "config.toml").train.epochs}
    density = next((cell.method.density for cell in cells if cell.method.density is not None), None)
    known["this call"] = {**rows.settings_of(loader.to_dict(cells[0].config())), "density": density}
    wanted = {cell.method.label: rows.options_of(loader.to_dict(resolve(cell.config()))) for cell in cells}
    try:
        refuse_mixed(out, known)
        for label, options in wanted.items():
            made = {
                run.folder.name: rows.options_of(run.record["config"]) for run in there if run.note["label"] == label
            }
            refuse_mixed(out, {**made, "this call": options})
    except UserError as error:
        raise UserError(f"{error}; --out names another folder") from error
