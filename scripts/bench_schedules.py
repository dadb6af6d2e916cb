#!/usr/bin/env python3
"""Train under every schedule on an emulated cluster, taking turns: time per step beside its prediction.

python scripts/bench_schedules.py --config configs/tables/schedules_googlenet.toml --hosts 8 --link 1gbit
python scripts/bench_schedules.py --config ... --schedulers wfbp dear,bucket_cap_mb=2 --out results/schedules/mine
python scripts/schedules_report.py results/schedules/mine              afterwards: table.md and the figure

The machine should have nothing else to do. A run that fails is reported and the others go on; exit code 1 then.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import schedulers
from scripts._cluster_runs import Planned, check, measure
from scripts._launching import ROOT, Launch, run
from wirebench.cluster.signals import Interrupted
from wirebench.config.plugins import suggest
from wirebench.errors import UserError
from wirebench.utils.cli import parser_of

LEFT_OUT = ("easgd",)
"""Not another order of the same messages, but another optimiser."""


def main(arguments: Sequence[str] | None = None, launch: Launch | None = None) -> int:
    """Run the command line: 0; 1 where a run failed; 2 with one line for a mistake of the user's."""
    try:
        options = _parser().parse_args(arguments)
        if options.turns < 1:
            raise UserError(f"--turns: must be positive, got {options.turns}")
        runs = plan(options)
        check(runs)
        failed = measure(runs, options.out.resolve(), launch or run, keeps=("trace.json",))
    except (UserError, Interrupted) as error:
        print(f"bench_schedules.py: {error}", file=sys.stderr)
        return error.exit_code
    if failed:
        print(f"bench_schedules.py: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def plan(options: argparse.Namespace) -> list[Planned]:
    """Every schedule once, then every one again."""
    known = [name for name in schedulers.available() if name not in LEFT_OUT]
    runs = []
    for turn in range(options.turns):
        for word in dict.fromkeys(options.schedulers or known):
            name, *given = word.split(",")
            if name not in schedulers.available():
                raise UserError(f"--schedulers: no {name!r}; {suggest(name, known)}")
            own = (f"scheduler.name={name}", *(("collective.name=native",) if name == "native" else ()))
            overrides = (*options.set, *own, *(f"scheduler.{option}" for option in given))
            label = " ".join((name, *given))
            folder = f"{label.replace(' ', '-')}-{turn}"
            runs.append(Planned(folder, label, options.hosts, options.link, options.config, overrides))
    return runs


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(Path(__file__).stem, __doc__)
    add = parser.add_argument
    add("--config", type=Path, required=True, metavar="FILE", help="what is trained")
    add("--schedulers", nargs="+", metavar="NAME[,OPTION=VALUE]", help="all but easgd")
    add("--hosts", type=int, default=8, help="hosts of one worker each (%(default)s)")
    add("--link", default="1gbit", help="rate of every host's link (%(default)s)")
    add("--turns", type=int, default=2, help="runs of each schedule (%(default)s)")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further settings, of all runs")
    add("--out", type=Path, default=ROOT / "results/schedules/runs", metavar="FOLDER", help="where the results go")
    return parser


if __name__ == "__main__":
    sys.exit(main())
