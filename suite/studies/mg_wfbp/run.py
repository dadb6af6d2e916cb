"""Train under every schedule on an emulated cluster, taking turns: time per step beside its prediction.

wirebench study mg_wfbp run --config configs/tables/schedules_googlenet.toml --hosts 8 --link 1gbit
wirebench study mg_wfbp run --config ... --schedulers wfbp dear,bucket_cap_mb=2 --out results/schedules/mine
wirebench study mg_wfbp report results/schedules/mine              afterwards: table.md and the figure

The machine should have nothing else to do. A run that fails is reported and the others go on; exit code 1 then.
"""

import argparse
from pathlib import Path

import schedulers
from suite.studies.runner import RESULTS, Launch, measure
from suite.studies.trainings import Cluster, Training
from wirebench.errors import UserError
from wirebench.utils.names import suggest

LEFT_OUT = ("easgd",)
"""Not another order of the same messages, but another optimiser."""


def flags(parser: argparse.ArgumentParser) -> None:
    """What is trained, under which schedules, on what."""
    add = parser.add_argument
    add("--config", type=Path, required=True, metavar="FILE", help="what is trained")
    add("--schedulers", nargs="+", metavar="NAME[,OPTION=VALUE]", help="all but easgd")
    add("--hosts", type=int, default=8, help="hosts of one worker each (%(default)s)")
    add("--link", default="1gbit", help="rate of every host's link (%(default)s)")
    add("--turns", type=int, default=2, help="runs of each schedule (%(default)s)")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further settings, of all runs")
    add("--out", type=Path, default=RESULTS / "schedules/runs", metavar="FOLDER", help="where the results go")


def run(options: argparse.Namespace, launch: Launch) -> list[str]:
    """Every schedule once, then every one again."""
    if options.turns < 1:
        raise UserError(f"--turns: must be positive, got {options.turns}")
    return measure(plan(options), options.out.resolve(), launch, options.again)


def plan(options: argparse.Namespace) -> list[Training]:
    """The runs, in the order of their turns."""
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
            cluster = Cluster(options.link, options.hosts)
            runs.append(Training(folder, label, cluster, options.config, overrides, keeps=("trace.json",)))
    return runs
