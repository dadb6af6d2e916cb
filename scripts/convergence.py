#!/usr/bin/env python3
"""Train ResNet-20 on CIFAR-10 with every compressor, and show accuracy against epochs and against bytes.

python scripts/convergence.py --data FOLDER                             every method once, 10 epochs each
python scripts/convergence.py --data FOLDER --methods dense gs_sgd --seeds 0 1 2
python scripts/convergence.py --report                                  table.md and the curves, without training

A run that is there already is not repeated, and one that was interrupted goes on from its last epoch: start it again as
often as you like.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import compressors
from scripts import convergence_report
from scripts._launching import ROOT, Launch, keep, run, shown
from scripts.cluster import Parser
from wirebench.cluster.signals import Interrupted
from wirebench.errors import UserError
from wirebench.files import write_atomically

CONFIG = "configs/tables/convergence_resnet20.toml"
PAPERS_WARMUP = (0.25, 0.0625, 0.015625, 0.004)
SETTINGS: dict[str, tuple[str, ...]] = {
    "dense": ("compressor.name=none",),
    "gs_sgd k=10000": ("compressor.name=gs_sgd", "compressor.k=10000"),
    "threshold": ("compressor.name=threshold", "compressor.threshold=0.003"),
}
"""Methods that are not simply a compressor's name at the density."""


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
                known[name].append(f"compressor.density={density:g}")
    known["gs_sgd fill=estimate"] = [*known["gs_sgd"], "compressor.fill=estimate"]
    for overrides in known.values():
        plugin = overrides[0].partition("=")[2]
        if "density" in compressors.PLUGINS.options(plugin):
            warmup = [each for each in PAPERS_WARMUP if each > density]
            overrides.append(f"compressor.warmup={warmup}")
    for name in names or ():
        if name not in known:
            raise UserError(f"--methods: no {name!r}; there is: {', '.join(known)}")
    return {name: known[name] for name in (dict.fromkeys(names) if names else known)}


def train(options: argparse.Namespace, launch: Launch) -> list[str]:
    """All runs that are not there yet, seed by seed; returns the names of those that failed."""
    chosen, failed = plan(options.methods, options.density), []
    if options.data is None:
        raise UserError("--data: which folder has cifar-10-batches-bin?")
    for seed in options.seeds:
        for label, overrides in chosen.items():
            folder = options.out.resolve() / f"{label.replace(' ', '-')}-{seed}"
            if (folder / "method.json").exists():
                continue
            command = _command(options, [*overrides, f"train.seed={seed}"], folder)
            if launch(command) == 0:
                keep(folder)
                note = {"label": label, "seed": seed, "launch": shown(command)}
                write_atomically(folder / "method.json", json.dumps(note, indent=1) + "\n")
            else:
                failed.append(folder.name)
            convergence_report.write(options.out, quietly=True)
    return failed


def _command(options: argparse.Namespace, overrides: Sequence[str], folder: Path) -> list[str]:
    where = folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder
    again = ["train.resume=auto", "train.checkpoint_every_epochs=1", "train.keep=1"]
    place = [f"data.root={options.data}", f"output.dir={where}", f"train.epochs={options.epochs}"]
    return [sys.executable, "train.py", CONFIG, *overrides, *place, *again]


def _parser() -> argparse.ArgumentParser:
    summary, _, examples = str(__doc__).partition("\n")
    parser = Parser(
        description=summary, epilog="examples:" + examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
