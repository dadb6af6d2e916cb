"""Run what the planner ranks first on six emulated clusters, taking turns: is its first choice the fastest?

wirebench study ranking run                       the ten best of each cluster, into results/ranking
wirebench study ranking run --clusters resnet20_2x100mbit
wirebench study ranking report                    afterwards: table.md and the figure of each

The planner is asked before anything runs, and its answer is kept in ranking.json; --again asks anew. What it knows of
this machine's cores is fitted to other runs on it (`wirebench study prediction run`, then `report --simulate`). The
machine should have nothing else to do.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from papers.ranking import ranked
from papers.ranking.ranked import FILE, Clustered, Ranked, Ranking
from papers.runner import RESULTS, Launch, Part, measure, within
from papers.trainings import Training
from wirebench.errors import UserError
from wirebench.planner import ranges
from wirebench.record import recorded
from wirebench.record.rules import TURNS
from wirebench.utils.cli import check_outputs
from wirebench.utils.names import suggest

RESNET, VGG = (Path(f"configs/tables/{name}.toml") for name in ("prediction_resnet20", "break_even_vgg16_gtx1080ti"))
MORE = ("train.max_steps=42",)
"""Thirty counted steps instead of twelve, since steps of a large model vary more."""
CLUSTERS = {
    f"{model}_{hosts}x{link}": Clustered(config, hosts, link, more)
    for model, config, hosts, link, more in (
        ("resnet20", RESNET, 2, "100mbit", ()),
        ("resnet20", RESNET, 4, "500mbit", ()),
        ("resnet20", RESNET, 8, "1gbit", ()),
        ("vgg16", VGG, 2, "1gbit", MORE),
        ("vgg16", VGG, 4, "500mbit", MORE),
        ("vgg16", VGG, 8, "1gbit", MORE),
    )
}


def flags(parser: argparse.ArgumentParser) -> None:
    """Which clusters, and what is known of the machine that plays their hosts."""
    add = parser.add_argument
    add("--clusters", nargs="+", metavar="NAME", help=f"only these of {', '.join(CLUSTERS)}")
    add(
        "--machine", type=Path, default=ranges.SHIPPED, metavar="FILE",
        help="what `wirebench study prediction report --simulate` fitted to this machine (%(default)s)",
    )  # fmt: skip
    add("--turns", type=int, default=TURNS, help="runs of each composition (%(default)s)")
    add("--out", type=Path, default=RESULTS / "ranking", metavar="FOLDER", help="where the results go")


def run(options: argparse.Namespace, launch: Launch) -> list[str]:
    """Every composition of a cluster once, then every one again."""
    if options.turns < 1:
        raise UserError(f"--turns: must be positive, got {options.turns}")
    names = list(dict.fromkeys(options.clusters or CLUSTERS))
    if unknown := next((name for name in names if name not in CLUSTERS), None):
        raise UserError(f"--clusters: no {unknown!r}; {suggest(unknown, list(CLUSTERS))}")
    folders = {name: (options.out / name).resolve() for name in names}
    rankings = {name: _ranking(out, CLUSTERS[name], options) for name, out in folders.items()}
    planned = {folders[name]: plan(CLUSTERS[name], each.best, options.turns) for name, each in rankings.items()}
    for each in (training for those in planned.values() for training in those):
        each.check()
    for name, out in folders.items():
        ranked.save(out, rankings[name])
    return measure(planned, launch, options.again)


def series(quick: bool) -> list[Part]:
    """All six; quick: one, and a turn."""
    return [Part(4, ["--clusters", "resnet20_2x100mbit", "--turns", "1"])] if quick else [Part(90, [])]


def plan(cluster: Clustered, best: Sequence[Ranked], turns: int) -> list[Training]:
    """The runs, in the order of their turns."""
    composed = [each.on(cluster).training(cluster.config) for each in best]
    return [
        dataclasses.replace(each, folder=f"{each.folder}-{turn}", overrides=(*each.overrides, *cluster.more))
        for turn in range(turns)
        for each in composed
    ]


def _ranking(out: Path, cluster: Clustered, options: argparse.Namespace) -> Ranking:
    """What was ranked before, or is now; UserError where that was something else, or runs came first."""
    check_outputs(out=out / FILE)
    if options.again or not (out / FILE).exists():
        if not options.again and recorded.directly_below(out):
            raise UserError(f"{out}: has runs, and nothing was ranked before them; --out names another folder")
        return ranked.rank(cluster, options.machine)
    earlier = ranked.load(out)
    if earlier.machine != within(options.machine):
        raise UserError(
            f"--machine: {out / FILE} was ranked with {earlier.machine}; --again ranks and runs all of it anew, --out "
            "names another folder"
        )
    return earlier
