"""The planner's order of the methods of today, then their steps on emulated hosts.

wirebench study today run                         70 minutes; needs root
wirebench study today run --task order_1gbit

A run that is there already is not repeated.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from papers.runner import RESULTS, Launch, Part, Planned, measure
from papers.today.emulated import order
from papers.today.emulated.order import NETWORKS
from papers.today.emulated.predicted import Predicted
from papers.today.emulated.rated import Rated
from wirebench.errors import UserError

PARTS = tuple(NETWORKS)


def flags(parser: argparse.ArgumentParser) -> None:
    """What is measured, and where."""
    add = parser.add_argument
    add("--task", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=f"{', '.join(PARTS)} (all)")
    add("--methods", nargs="+", metavar="NAME", help="dense, sparseloco, demo, ... (all of the part)")
    add("--turns", nargs="+", type=int, metavar="TURN", help="numbers of the turns (0 to 4)")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further settings, of all methods")
    add("--out", type=Path, default=RESULTS / "today", metavar="FOLDER", help="results go to FOLDER/PART")


def run(options: argparse.Namespace, launch: Launch) -> list[str]:
    """All runs that are not there yet."""
    return measure(
        {(options.out / name).resolve(): planned(options, name) for name in options.task}, launch, options.again
    )


def series(quick: bool) -> list[Part]:
    """All parts; quick: none."""
    return [] if quick else [Part(70, [])]


def planned(options: argparse.Namespace, name: str) -> Sequence[Planned]:
    """Every run of a part that the command line asks for; UserError for a mistake in it."""
    turns = options.turns or None
    if turns and len(set(turns)) < len(turns):
        raise UserError(f"--turns: one is given twice: {' '.join(map(str, turns))}")
    return [Rated(), Predicted(name, options.out / name), *order.trainings(name, options.methods, turns, options.set)]
