"""Measure what the FlexReduce paper measures, on emulated clusters of 2 and 3 machines.

  wirebench study flexreduce run                       all-reduce latency on the paper's nine layouts
  wirebench study flexreduce run --full --layouts 2+3  120 million floats too: minutes per layout
  wirebench study flexreduce run --end-to-end          training of ResNet-18 on each, the collectives taking turns
  wirebench study flexreduce run --end-to-end --set data.batch_size=32 --out FOLDER   the same with other settings
  wirebench study flexreduce report                    afterwards: table.md and the figures

The machine should have nothing else to do. A layout that fails is reported and the others go on; exit code 1 then.
"""

import argparse
from pathlib import Path

from papers.flexreduce.measured import LAYOUTS, PUBLISHED, TRAININGS
from papers.launched import FEW, Timed, Trained, refuse_set
from papers.runner import RESULTS, Launch, Part, measure, refuse_not_positive
from papers.timings import Timing
from papers.trainings import OwnCluster, Training
from wirebench.errors import UserError
from wirebench.record.rules import TURNS

CONFIG = Path("configs/tables/flexreduce_resnet18.toml")
TIMED = ("ring", "flexreduce", "blueconnect", "native")
TRAINED = ("ring", "blueconnect", "flexreduce", "native")
SIZES, FULL_SIZE = ("60kf", "120kf", "1200kf", "3000kf"), f"{PUBLISHED.tables['sizes']['large'] // 10**6}mf"
PAPERS = "configs/papers/imagenet_resnet18_flexreduce.toml"
ON_CLUSTER = {
    "cells": Timed("Fig. 4 (a) to (e), NCCL's as `native` with --device cuda", TIMED, (*SIZES, FULL_SIZE), LAYOUTS),
    TRAININGS: Trained(
        "Fig. 4 (f)",
        {name: (PAPERS, (f"collective.name={name}",)) for name in TRAINED},
        FEW,
        layouts=LAYOUTS,
        needs="images",
    ),
}
QUICK = ("2+2", "2+3", "3+3+3", "3+3+4")
LATENCY_ONLY, TRAINING_ONLY = ("layouts", "sizes", "full", "seconds"), ("turns", "end_to_end_layouts", "set")


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for what is measured, on which layouts, for how long."""
    add = parser.add_argument
    add("--link", default="100mbit", help="rate of every machine's link (%(default)s)")
    add(
        "--out",
        type=Path,
        default=RESULTS / "flexreduce",
        metavar="FOLDER",
        help="where the results go (results/flexreduce)",
    )
    add("--layouts", nargs="+", choices=LAYOUTS, metavar="LAYOUT", help=f"ranks per machine ({' '.join(LAYOUTS)})")
    add("--sizes", nargs="+", metavar="SIZE", help=f"sums; 60kf is 60,000 floats ({' '.join(SIZES)})")
    add("--full", action="store_true", default=None, help=f"{FULL_SIZE} too: a minute per call at 100mbit")
    add("--seconds", type=float, help="time for a size (25)")
    add("--end-to-end", action="store_true", help=f"train {CONFIG} instead")
    add("--end-to-end-layouts", nargs="+", choices=LAYOUTS, metavar="LAYOUT", help="where to train (all)")
    add("--turns", type=int, help=f"trainings of each collective ({TURNS})")
    add("--set", nargs="+", action="extend", metavar="KEY=VALUE", help="further settings, of all trainings")


def run(options: argparse.Namespace, launch: Launch) -> list[str]:
    """Time the collectives on every layout, or train with each of them in turn (A B C D A B C D)."""
    _refuse_unused(options)
    refuse_not_positive(options, "seconds", "turns")
    planned = trainings(options) if options.end_to_end else timings(options)
    return measure({options.out.resolve(): planned}, launch, options.again)


def series(quick: bool) -> list[Part]:
    """All layouts, one of them with the large size, and training on all; quick: a few, and training on one."""
    training = ["--end-to-end", "--link", "400mbit"]
    if not quick:
        return [Part(40, []), Part(25, ["--full", "--layouts", "2+3"]), Part(180, training)]
    few = ["--layouts", *QUICK, "--sizes", "120kf", "1200kf", "--seconds", "4"]
    return [Part(4, few), Part(3, [*training, "--end-to-end-layouts", "2+3", "--turns", "1"])]


def timings(options: argparse.Namespace) -> list[Timing]:
    """A file of cells for every layout."""
    sizes = tuple(options.sizes or SIZES) + ((FULL_SIZE,) if options.full else ())
    seconds = 25.0 if options.seconds is None else options.seconds
    layouts = dict.fromkeys(options.layouts or LAYOUTS)
    return [Timing(layout, OwnCluster(options.link, layout=layout), TIMED, sizes, seconds) for layout in layouts]


def trainings(options: argparse.Namespace) -> list[Training]:
    """Every collective once, then every one again, layout by layout."""
    turns = TURNS if options.turns is None else options.turns
    more = tuple(options.set or ())
    refuse_set(more, {"output.dir", "collective.name"}, TRAININGS)
    return [
        Training(
            f"{TRAININGS}/{layout}/{name}-{turn}",
            f"{layout}: {name} in turn {turn}",
            OwnCluster(options.link, layout=layout),
            CONFIG,
            (f"collective.name={name}", *more),
            may_diverge=False,
        )
        for layout in dict.fromkeys(options.end_to_end_layouts or LAYOUTS)
        for turn in range(turns)
        for name in TRAINED
    ]


def _refuse_unused(options: argparse.Namespace) -> None:
    """UserError for a flag that has no part in what is asked for."""
    for name in LATENCY_ONLY if options.end_to_end else TRAINING_ONLY:
        if getattr(options, name) is not None:
            where = "is about all-reduces alone" if options.end_to_end else "needs --end-to-end"
            raise UserError(f"--{name.replace('_', '-')}: {where}")
