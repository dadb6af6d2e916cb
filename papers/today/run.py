"""Train a GPT and a ResNet with the methods of today and the classics, and measure exchanges on emulated hosts.

wirebench study today run --data FOLDER                       all parts: about 24 h on one quiet core
wirebench study today run                                     without the ResNet, which alone reads CIFAR-10
wirebench study today run --task gpt --methods dense demo dion --seeds 0
wirebench study today run --task gpt_rates                    other learning rates, one seed
wirebench study today run --task gpt_times                    short runs that have the machine for themselves
wirebench study today run --task speed                        steps per second, 40 minutes; needs root
wirebench study today run --quick                             two short runs, into build/tables/today
wirebench study today report                                  the tables and the figures, without training

A run that is there already is not repeated, and an interrupted training continues from its last checkpoint. The
times of trainings are measured computing and a simulated network, so that one run serves all four rates. A training
uses one core: two series, of other methods, may run side by side, but for those that time steps or emulate hosts. A
part that has none of the methods that are named is left out.
"""

import argparse
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papers.convergence.run import Cell
from papers.runner import RESULTS, ROOT, Launch, Part, Planned, measure, within
from papers.today import report
from papers.today.alone import TIMES, alone
from papers.today.curve import curve_of
from papers.today.emulated import speed
from papers.today.emulated.speed import SPEED
from papers.today.rates import RATES, SEARCHED, at_other_rates
from papers.today.tasks import GPT, OTHER_DENSE, QUICK, SETTINGS, TASKS, compositions
from papers.trainings import refuse_another
from wirebench.compose.resolve import resolve
from wirebench.errors import UserError
from wirebench.record import recorded, schema

CIFAR10 = "cifar-10-batches-bin"
TRAINED = {**TASKS, **RATES, **TIMES}
PARTS = (*TRAINED, SPEED)
SHORT, SHALLOW = 30, "model.depth=2"
"""A quick run's steps, which equal the local steps before the first exchange, and a model that is soon evaluated."""


@dataclass(frozen=True)
class Traced(Cell):
    """A run whose note also has the loss on the way, by bytes, and the settings that it was made with."""

    def check(self) -> None:
        """UserError for settings that no run can have."""
        try:
            resolve(self.config())
        except UserError as error:
            raise UserError(f"{self.task.name}, {self.label}: {error}") from error

    def is_there(self, out: Path) -> bool:
        """Whether it came to its end, or diverged; UserError for a run of other settings."""
        there = super().is_there(out)
        if there:
            run = recorded.at(out / self.label)
            refuse_another(out / self.label, {} if run is None else run.note, {"settings": list(self.words)})
        return there

    def noted(self, folder: Path) -> dict[str, Any]:
        """The note of a convergence run, with the settings and the curve of its steps."""
        record = schema.read(folder)
        # The history ends with the last whole epoch, which is not where a run ends that diverged.
        last = record["history"][-1] if record["status"] == "finished" and record["history"] else {}
        curve = curve_of(folder / "steps.jsonl", last.get("wire_bytes_total"))
        return {**super().noted(folder), "settings": list(self.words), **curve}


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for what is trained, for how long, and where."""
    add = parser.add_argument
    add("--data", type=Path, metavar="FOLDER", help=f"folder that has {CIFAR10}; without it: no resnet")
    add("--task", nargs="+", choices=list(PARTS), metavar="PART", help=f"what is made: {', '.join(TRAINED)}, or on "
        f"emulated hosts {SPEED} (all)")  # fmt: skip
    add("--methods", nargs="+", metavar="NAME", help="dense, sparseloco, demo, ... (all of the task)")
    add("--seeds", nargs="+", type=int, metavar="SEED", help="one run of each method for each (0 1 2; of rates 0); on "
        "emulated hosts the turns (0 to 4)")  # fmt: skip
    add("--steps", type=int, default=0, metavar="N", help="end every run after N steps, to try the study (0: run on)")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further settings, of all methods")
    add("--out", type=Path, metavar="FOLDER", help="results go to FOLDER/TASK (results/today)")
    add("--quick", action="store_true", help=f"without other flags: {' and '.join(QUICK)} on half the {GPT.name}, "
        f"one seed, {SHORT} steps, into build/tables/today")  # fmt: skip


def run(options: argparse.Namespace, launch: Launch) -> list[str]:
    """All runs that are not there yet, seed by seed, then the report of all that are there."""
    chosen = completed(options)
    cells = {(chosen.out / name).resolve(): planned(chosen, name) for name in with_methods(chosen, tasks(chosen))}
    failed = measure(cells, launch, chosen.again)
    for out in cells:
        page = report.page(out)
        if page is not None:
            page.write()
            print(f"table: {within(page.path)}", file=sys.stderr)
    return failed


def series(quick: bool) -> list[Part]:
    """Both tasks and the measured part; quick: a few steps of two methods of the GPT."""
    if quick:
        short = ["--seeds", "0", "--steps", str(SHORT), "--set", SHALLOW, "--methods", *QUICK]
        return [Part(2, ["--task", GPT.name, *short])]
    return [
        Part(40, ["--task", SPEED]),
        Part(15.0 * 60, ["--task", "gpt", "gpt_rates", "gpt_times"]),
        Part(5.3 * 60, ["--task", "resnet", "resnet_rates", "resnet_times", "--data", "{data}"]),
    ]


def completed(options: argparse.Namespace) -> argparse.Namespace:
    """The options with what was not said. Short runs stay away from the committed ones."""
    usual: dict[str, Any] = {"task": list(PARTS), "out": RESULTS / "today"}
    if options.quick:
        usual = {"task": [GPT.name], "methods": list(QUICK), "seeds": [0], "steps": SHORT, "set": [SHALLOW]}
        usual["out"] = ROOT / "build/tables/today"
    return argparse.Namespace(**{**vars(options), **{k: v for k, v in usual.items() if not getattr(options, k)}})


def tasks(options: argparse.Namespace) -> list[str]:
    """The tasks that were asked for and have their data; missing ones are named on stderr. UserError where none has."""
    if options.data is not None and not (options.data / CIFAR10).is_dir():
        raise UserError(f"--data: {options.data}: has no {CIFAR10}")
    given = [name for name in options.task if options.data is not None or name == SPEED or not TRAINED[name].data]
    left_out = ", ".join(name for name in options.task if name not in given)
    if not given:
        raise UserError(f"--data: which folder has the {CIFAR10} of {left_out}?")
    if left_out:
        print(f"left out without --data: {left_out}", file=sys.stderr)
    return given


def with_methods(options: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Of these parts those that have one of the methods that were named, all without any; UserError for a name that
    no part has. The others are named on stderr.
    """
    known = {name: known_in(name) for name in names}
    for method in options.methods or ():
        if not any(method in those for those in known.values()):
            there = dict.fromkeys(each for those in known.values() for each in those)
            raise UserError(f"--methods: no {method!r} in {', '.join(names)}; there is: {', '.join(there)}")
    given = [name for name in names if not options.methods or set(known[name]) & set(options.methods)]
    left_out = ", ".join(name for name in names if name not in given)
    if left_out:
        print(f"left out without one of the methods: {left_out}", file=sys.stderr)
    return given


def known_in(part: str) -> Collection[str]:
    """The methods that a part has."""
    if part == SPEED:
        return speed.MEASURED
    if part in RATES:
        return SEARCHED[TRAINED[part].name]
    every = SETTINGS[TRAINED[part].name]
    return every if part in TASKS else [name for name in every if name not in OTHER_DENSE]


def planned(options: argparse.Namespace, name: str) -> Sequence[Planned]:
    """Every run of a part that the command line asks for; UserError for a mistake in it. A seed's methods lie together:
    whatever stops the study, the methods that are there can be compared.
    """
    if options.steps < 0:
        raise UserError(f"--steps: is positive, or 0 for whole runs, got {options.steps}")
    seeds, methods = options.seeds or None, [each for each in options.methods or () if each in known_in(name)] or None
    if seeds and len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds: one is given twice: {' '.join(map(str, seeds))}")
    more = (*([f"train.max_steps={options.steps}"] if options.steps else []), *options.set)
    if name == SPEED:
        return speed.trainings(methods, seeds, more)
    task = TRAINED[name]
    of = compositions if name in TASKS else at_other_rates if name in RATES else alone
    chosen, usual = of(task, methods), range(task.seeds if name in TASKS else 1)
    return [Traced(task, method, seed, more, options.data) for seed in seeds or usual for method in chosen]
