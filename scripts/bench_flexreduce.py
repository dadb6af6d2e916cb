#!/usr/bin/env python3
"""Measure what the FlexReduce paper measures, on emulated clusters of 2 and 3 machines.

python scripts/bench_flexreduce.py                       all-reduce latency on the paper's nine layouts
python scripts/bench_flexreduce.py --full --layouts 2+3  120 million floats too: minutes per layout
python scripts/bench_flexreduce.py --end-to-end          training of ResNet-18, the collectives taking turns
python scripts/flexreduce_report.py                      afterwards: table.md and the figures

The machine should have nothing else to do. A layout that fails is reported and the others go on; exit code 1 then.
"""

import argparse
import dataclasses
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts._launching import ROOT, Command, Launch, keep, run, shown
from suite.bench.collectives import parse_size
from wirebench import cells
from wirebench.cluster.rates import parse_rate
from wirebench.cluster.signals import Interrupted
from wirebench.errors import UserError
from wirebench.files import write_atomically
from wirebench.paper_flexreduce import LAYOUTS
from wirebench.utils.cli import parser_of

CONFIG = "configs/tables/flexreduce_resnet18.toml"
TIMED = ("ring", "flexreduce", "blueconnect", "native")
TRAINED = ("ring", "blueconnect", "flexreduce", "native")
SIZES, FULL_SIZE = ("60kf", "120kf", "1200kf", "3000kf"), "120mf"
LATENCY_ONLY, TRAINING_ONLY = ("layouts", "sizes", "full", "seconds"), ("turns", "end_to_end_layouts")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to run on every layout.

    link     rate of every machine's link, as cluster.py reads it
    out      folder of the results
    sizes    of the sums, as bench_collectives.py reads them; seconds: for each of them
    turns    trainings of each collective
    """

    link: str
    out: Path
    sizes: tuple[str, ...]
    seconds: float
    turns: int


def main(arguments: Sequence[str] | None = None, launch: Launch | None = None) -> int:
    """Run the command line: 0; 1 where a layout failed; 2 with one line for a mistake of the user's."""
    try:
        options = _parser().parse_args(arguments)
        plan = _plan(options)
        measure = train if options.end_to_end else time_collectives
        layouts = (options.end_to_end_layouts or ["2+3"]) if options.end_to_end else (options.layouts or LAYOUTS)
        failed = [layout for layout in dict.fromkeys(layouts) if not measure(plan, layout, launch or run)]
    except (UserError, Interrupted) as error:
        print(f"bench_flexreduce.py: {error}", file=sys.stderr)
        return error.exit_code
    if failed:
        print(f"bench_flexreduce.py: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def time_collectives(plan: Plan, layout: str, launch: Launch) -> bool:
    """Measure the cells of one layout; whether it went well. Cells of an earlier run stay where it did not."""
    file = plan.out / "cells" / f"{layout}.jsonl"
    command = timing_command(plan, layout, file)
    if launch(command) != 0:
        return False
    found = cells.load(file)
    # The ranks do not know how fast their links are.
    cells.save(file, {**found.header, "link": plan.link, "launch": shown(command)}, found.cells)
    return True


def train(plan: Plan, layout: str, launch: Launch) -> bool:
    """Train with every collective in turn (A B C D A B C D) on one layout; whether all runs went well.

    Of a run's folder only KEPT stays, and nothing of a run that failed.
    """
    folder = plan.out / "end_to_end" / layout
    # Turns of an earlier measurement, perhaps on other links, are none of this one's.
    shutil.rmtree(folder, ignore_errors=True)
    well = True
    for turn in range(plan.turns):
        for name in TRAINED:
            directory = folder / f"{name}-{turn}"
            shutil.rmtree(directory, ignore_errors=True)
            if launch(training_command(plan, layout, name, directory)) == 0:
                keep(directory)
            else:
                print(f"bench_flexreduce.py: {layout}: {name} failed in turn {turn}", file=sys.stderr)
                shutil.rmtree(directory, ignore_errors=True)
                well = False
    if folder.exists():
        example = shown(training_command(plan, layout, "NAME", folder / "NAME-TURN"))
        note = {"link": plan.link, "turns": plan.turns, "launch": example}
        write_atomically(folder / "cluster.json", json.dumps(note, indent=1) + "\n")
    return well


def timing_command(plan: Plan, layout: str, file: Path) -> Command:
    """All collectives at all sizes on one layout."""
    return [
        *_cluster(plan, layout),
        "python",
        "scripts/bench_collectives.py",
        "--collectives",
        *TIMED,
        "--sizes",
        *plan.sizes,
        "--seconds",
        f"{plan.seconds:g}",
        "--json",
        _relative(file),
    ]


def training_command(plan: Plan, layout: str, name: str, directory: Path) -> Command:
    """One training run."""
    settings = [f"collective.name={name}", f"output.dir={_relative(directory)}"]
    return [*_cluster(plan, layout), "python", "train.py", CONFIG, *settings]


def _cluster(plan: Plan, layout: str) -> Command:
    return [sys.executable, "scripts/cluster.py", "run", "--layout", layout, "--link", plan.link, "--"]


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def _plan(options: argparse.Namespace) -> Plan:
    """The settings; UserError for those that cannot be read, or have no part in what is asked for."""
    unused = LATENCY_ONLY if options.end_to_end else TRAINING_ONLY
    for name in unused:
        if getattr(options, name) is not None:
            where = "is about all-reduces alone" if options.end_to_end else "needs --end-to-end"
            raise UserError(f"--{name.replace('_', '-')}: {where}")
    parse_rate(options.link)
    sizes = tuple(options.sizes or SIZES) + ((FULL_SIZE,) if options.full else ())
    for size in sizes:
        parse_size(size)
    seconds = 25.0 if options.seconds is None else options.seconds
    turns = 2 if options.turns is None else options.turns
    if seconds <= 0 or turns < 1:
        raise UserError("--seconds and --turns: must be positive")
    return Plan(options.link, options.out.resolve(), sizes, seconds, turns)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(Path(__file__).stem, __doc__)
    add = parser.add_argument
    out = ROOT / "results" / "flexreduce"
    add("--link", default="100mbit", help="rate of every machine's link (%(default)s)")
    add("--out", type=Path, default=out, metavar="FOLDER", help="where the results go (results/flexreduce)")
    add("--layouts", nargs="+", choices=LAYOUTS, metavar="LAYOUT", help=f"ranks per machine ({' '.join(LAYOUTS)})")
    add("--sizes", nargs="+", metavar="SIZE", help=f"sums; 60kf is 60,000 floats ({' '.join(SIZES)})")
    add("--full", action="store_true", default=None, help=f"{FULL_SIZE} too: a minute per call at 100mbit")
    add("--seconds", type=float, help="time for a size (25)")
    add("--end-to-end", action="store_true", help=f"train {CONFIG} instead")
    add("--end-to-end-layouts", nargs="+", choices=LAYOUTS, metavar="LAYOUT", help="where to train (2+3)")
    add("--turns", type=int, help="trainings of each collective (2)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
