#!/usr/bin/env python3
"""Train ResNet-20 on CIFAR-10 with every compressor, and show accuracy against epochs and against bytes.

python scripts/convergence.py --data FOLDER                             every method once, 10 epochs each
python scripts/convergence.py --data FOLDER --methods dense gs_sgd --seeds 0 1 2
python scripts/convergence.py --report                                  table.md and the curves, without training

A run that is there already is not repeated, nor one that diverged, and one that was interrupted goes on from its last
epoch: start it again as often as you like. Runs of other settings want another --out.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import compressors
from scripts import _convergence_runs, _method_runs, convergence_report
from scripts._launching import ROOT, Launch, attempt, keep, run, shown
from wirebench.cluster.signals import Interrupted
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.utils.cli import parser_of

CONFIG = "configs/tables/convergence_resnet20.toml"
PARAMETERS = 269_722  # of its model
PAPERS_K = 10_000
PAPERS_WARMUP = (0.25, 0.0625, 0.015625, 0.004)
SETTINGS: dict[str, tuple[str, ...]] = {
    "dense": ("compressor.name=none",),
    "gs_sgd k=10000": ("compressor.name=gs_sgd", f"compressor.k={PAPERS_K}"),
    "threshold": ("compressor.name=threshold", "compressor.threshold=0.003"),
}
"""Methods that are not simply a compressor's name at the density."""

SHARES = {"gs_sgd k=10000": PAPERS_K / PARAMETERS}
"""Share of the entries that is sent after the warm-up, of methods that do not take it from the density."""


class Task(NamedTuple):
    """A run to come: what is trained, and where.

    density  of the method after its warm-up; None for one that has none, or that sets it otherwise
    """

    label: str
    seed: int
    density: float | None
    overrides: list[str]
    folder: Path


def main(arguments: Sequence[str] | None = None, launch: Launch | None = None) -> int:
    """Run the command line: 0; 1 where a run failed; 2 with one line for a mistake of the user's."""
    try:
        options = _parser().parse_args(arguments)
        failed = [] if options.report else train(options, launch or run)
        convergence_report.write(options.out)
    except (UserError, Interrupted) as error:
        print(f"convergence.py: {error}", file=sys.stderr)
        return error.exit_code
    if failed:
        print(f"convergence.py: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


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


def train(options: argparse.Namespace, launch: Launch) -> list[str]:
    """All runs that are not there yet, seed by seed; returns the names of those that failed.

    One that diverged has not failed: it is a result, and is not repeated either.
    """
    asked, failed = tasks(options), []
    refuse_others(options, asked)
    for task in asked:
        if (task.folder / _method_runs.NOTE).exists():
            continue
        command = _command(options, task)
        if attempt(command, task.folder, launch):
            keep(task.folder)
            note = {"label": task.label, "seed": task.seed, "epochs": options.epochs, "density": task.density}
            _method_runs.write(task.folder, {**note, "launch": shown(command)})
        else:
            failed.append(task.folder.name)
        convergence_report.write(options.out, quietly=True)
    return failed


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
            options.out.resolve() / f"{label.replace(' ', '-')}-{seed}",
        )
        for seed in options.seeds
        for label, overrides in chosen.items()
    ]


def refuse_others(options: argparse.Namespace, asked: Sequence[Task]) -> None:
    """UserError where runs that are there, or were begun, have other settings than those to come."""
    known = _convergence_runs.settings(_convergence_runs.read(options.out))
    for task in asked:
        if task.folder.name not in known and (task.folder / "checkpoints").exists():
            # A checkpoint refuses another density by itself; another length of the schedule it takes up.
            known[task.folder.name] = {"epochs": loader.load(task.folder / "config.toml").train.epochs}
    density = next((task.density for task in asked if task.density is not None), None)
    known["this call"] = {"epochs": options.epochs, "density": density}
    try:
        _method_runs.refuse_mixed(options.out, known)
    except UserError as error:
        raise UserError(f"{error}; --out names another folder") from error


def _density(density: float) -> str:
    return f"compressor.density={density:g}"


def _command(options: argparse.Namespace, task: Task) -> list[str]:
    where = task.folder.relative_to(ROOT) if task.folder.is_relative_to(ROOT) else task.folder
    again = ["train.resume=auto", "train.checkpoint_every_epochs=1", "train.keep=1"]
    place = [f"data.root={options.data}", f"output.dir={where}", f"train.epochs={options.epochs}"]
    return [sys.executable, "train.py", CONFIG, *task.overrides, f"train.seed={task.seed}", *place, *again]


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(Path(__file__).stem, __doc__)
    add = parser.add_argument
    add("--data", type=Path, metavar="FOLDER", help="folder that has cifar-10-batches-bin")
    add("--methods", nargs="+", metavar="NAME", help="compressors, 'dense' or 'gs_sgd k=10000' (all)")
    add("--seeds", nargs="+", type=int, default=[0], metavar="SEED", help="one run of each method for each (0)")
    add("--epochs", type=int, default=10, help="length of the schedule (%(default)s)")
    add("--density", type=float, default=0.01, help="of the sparse methods (%(default)s)")
    add("--report", action="store_true", help="only write the table and the figures again")
    add("--out", type=Path, default=ROOT / "results/convergence", metavar="FOLDER", help="where the results go")
    return parser


if __name__ == "__main__":
    sys.exit(main())
