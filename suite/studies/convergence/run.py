"""Train ResNet-20 on CIFAR-10 with every compressor: accuracy against epochs and against bytes.

wirebench study convergence run --data FOLDER                 every method once, 10 epochs each
wirebench study convergence run --data FOLDER --methods dense gs_sgd --seeds 0 1 2
wirebench study convergence report                            table.md and the curves, without training

A run that is there already is not repeated, nor one that diverged, and one that was interrupted goes on from its last
epoch: start it again as often as you like. Runs of other settings want another --out.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import compressors
from suite.studies.convergence import report, rows
from suite.studies.gs_sgd.claims import PUBLISHED
from suite.studies.notes import NOTE, refuse_mixed, write
from suite.studies.runner import RESULTS, Command, Launch, attempt, keep, measure, shown, within
from wirebench.config import loader
from wirebench.errors import UserError

CONFIG = "configs/tables/convergence_resnet20.toml"
PARAMETERS = 269_722  # of its model
PAPERS_K = PUBLISHED.tables["entries_sent"]["k"]
PAPERS_WARMUP = PUBLISHED.tables["warmup"]["densities"]
SETTINGS: dict[str, tuple[str, ...]] = {
    "dense": ("compressor.name=none",),
    "gs_sgd k=10000": ("compressor.name=gs_sgd", f"compressor.k={PAPERS_K}"),
    "threshold": ("compressor.name=threshold", "compressor.threshold=0.003"),
}
"""Methods that are not simply a compressor's name at the density."""

SHARES = {"gs_sgd k=10000": PAPERS_K / PARAMETERS}
"""Share of the entries that is sent after the warm-up, of methods that do not take it from the density."""


@dataclass(frozen=True)
class Task:
    """A run to come: what is trained, and where. It goes on from its last epoch.

    density  of the method after its warm-up; None for one that has none, or that sets it otherwise
    """

    method: str
    seed: int
    density: float | None
    overrides: list[str]
    epochs: int
    data: Path

    @property
    def label(self) -> str:
        """Its folder's name."""
        return f"{self.method.replace(' ', '-')}-{self.seed}"

    def check(self) -> None:
        """Nothing: what it is was asked of the compressors, and runs of other settings are refused before."""

    def is_there(self, out: Path) -> bool:
        """Whether it came to its end, or diverged."""
        return (out / self.label / NOTE).exists()

    def make(self, out: Path, launch: Launch) -> bool:
        """Train, on from the last epoch; whether that left a result."""
        folder = out / self.label
        if self.is_there(out):
            shutil.rmtree(folder)
        command = self.command(folder)
        if not attempt(command, folder, launch):
            return False
        keep(folder)
        note = {"label": self.method, "seed": self.seed, "epochs": self.epochs, "density": self.density}
        write(folder, {**note, "launch": shown(command)})
        return True

    def command(self, folder: Path) -> Command:
        """What trains in `folder`."""
        resuming = ["train.resume=auto", "train.checkpoint_every_epochs=1", "train.keep=1"]
        place = [f"data.root={self.data}", f"output.dir={within(folder)}", f"train.epochs={self.epochs}"]
        return [sys.executable, "train.py", CONFIG, *self.overrides, f"train.seed={self.seed}", *place, *resuming]


def flags(parser: argparse.ArgumentParser) -> None:
    """What is trained, for how long, where."""
    add = parser.add_argument
    add("--data", type=Path, metavar="FOLDER", help="folder that has cifar-10-batches-bin")
    add("--methods", nargs="+", metavar="NAME", help="compressors, 'dense' or 'gs_sgd k=10000' (all)")
    add("--seeds", nargs="+", type=int, default=[0], metavar="SEED", help="one run of each method for each (0)")
    add("--epochs", type=int, default=10, help="length of the schedule (%(default)s)")
    add("--density", type=float, default=0.01, help="of the sparse methods (%(default)s)")
    add("--out", type=Path, default=RESULTS / "convergence", metavar="FOLDER", help="where the results go")


def run(options: argparse.Namespace, launch: Launch) -> list[str]:
    """All runs that are not there yet, seed by seed, and the report of all that are there after each."""
    out = options.out.resolve()
    asked = tasks(options)
    refuse_others(options, asked)

    def show() -> None:
        if methods := rows.load(out):
            report.page(out, methods).write()

    failed = measure(asked, out, launch, options.again, show)
    show()
    return failed


def plan(names: Sequence[str] | None, density: float) -> dict[str, list[str]]:
    """Overrides by label: dense first, then every compressor, or those that are named."""
    known = {name: list(overrides) for name, overrides in SETTINGS.items()}
    for name in compressors.available():
        if name != "none" and name not in known:
            known[name] = [f"compressor.name={name}"]
            if "density" in compressors.PLUGINS.options(name):
                known[name].append(_density(density))
    known["gs_sgd fill=estimate"] = [*known["gs_sgd"], "compressor.fill=estimate"]
    for label, overrides in known.items():
        plugin = overrides[0].partition("=")[2]
        if "density" in compressors.PLUGINS.options(plugin):
            # Each epoch of a warm-up is sparser than the one before, and all are denser than the rest of the run.
            warmup = [each for each in PAPERS_WARMUP if each > SHARES.get(label, density)]
            overrides.append(f"compressor.warmup={warmup}")
    for name in names or ():
        if name not in known:
            raise UserError(f"--methods: no {name!r}; there is: {', '.join(known)}")
    return {name: known[name] for name in (dict.fromkeys(names) if names else known)}


def tasks(options: argparse.Namespace) -> list[Task]:
    """Every run that the command line asks for, whether it is there or not; UserError for a mistake in it."""
    if options.epochs < 1:
        raise UserError(f"--epochs: must be positive, got {options.epochs}")
    if not 0 < options.density <= 1:
        raise UserError(f"--density: lies in (0, 1], got {options.density:g}")
    chosen = plan(options.methods, options.density)
    if options.data is None:
        raise UserError("--data: which folder has cifar-10-batches-bin?")
    return [
        Task(
            label,
            seed,
            options.density if _density(options.density) in overrides else None,
            overrides,
            options.epochs,
            options.data,
        )
        for seed in options.seeds
        for label, overrides in chosen.items()
    ]


def refuse_others(options: argparse.Namespace, asked: Sequence[Task]) -> None:
    """UserError where runs that are there, or were begun, have other settings than those to come."""
    known = rows.settings(rows.read(options.out))
    for task in asked:
        folder = options.out / task.label
        if task.label not in known and (folder / "checkpoints").exists():
            # A checkpoint refuses another density by itself; another length of the schedule it takes up.
            known[task.label] = {"epochs": loader.load(folder / "config.toml").train.epochs}
    density = next((task.density for task in asked if task.density is not None), None)
    known["this call"] = {"epochs": options.epochs, "density": density}
    try:
        refuse_mixed(options.out, known)
    except UserError as error:
        raise UserError(f"{error}; --out names another folder") from error


def _density(density: float) -> str:
    return f"compressor.density={density:g}"
