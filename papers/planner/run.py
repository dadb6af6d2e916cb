"""Ask the planner before anything runs, keep its answer (forecast.json), and run what it forecast.

  wirebench study planner run                            all experiments that are not there yet, about five hours
  wirebench study planner run --only prediction          forty compositions, each beside the prediction in its record
  wirebench study planner run --only ranking             the planner's ten best compositions on six emulated clusters
  wirebench study planner run --only break_even          both sides of the rates below which compressors pay
  wirebench study planner run --only today/order_1gbit   the methods of today, in the planner's order
  wirebench study planner run --list FILE --out FOLDER   the compositions of a file (papers/planner/hundred.txt)
  wirebench study planner report                         afterwards: the tables and the figures

A forecast is made once for a folder; --again makes it and all runs anew. What the planner knows of this machine's
cores is fitted to other runs on it. The machine should have nothing else to do. Emulated hosts need root.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from papers.planner import experiments, forecast
from papers.planner.experiments import CONSTANTS, EXPERIMENTS, FORTY, Experiment, KnownMachine
from papers.planner.forecast import FILE, SIDES, Forecast
from papers.runner import RESULTS, Launch, Part, measure, refuse_not_positive, within
from papers.trainings import Training
from wirebench.errors import UserError
from wirebench.planner import ranges
from wirebench.record import recorded
from wirebench.record.rules import TURNS
from wirebench.utils.cli import check_outputs
from wirebench.utils.names import suggest


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for what is run, what is known of the machine, and where the results go."""
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", help=f"only these of {', '.join(EXPERIMENTS)}, or of a folder of them")
    add("--list", type=Path, metavar="FILE", help="compositions of this file instead, a line each")
    add("--first", type=int, metavar="N", help="only the first N compositions of each")
    add("--turns", type=int, default=TURNS, help="runs of each composition (%(default)s; of lists one)")
    add("--predict-only", action="store_true", help="ask the planner, and run nothing")
    add("--out", type=Path, metavar="FOLDER", help="results go to FOLDER/NAME, of --list to FOLDER (results)")
    experiments.flags(parser)


def run(options: argparse.Namespace, launch: Launch) -> list[str]:
    """Every composition once, then every one again; labels of the runs that failed. UserError for a mistake."""
    refuse_not_positive(options, "first", "turns")
    planned: dict[Path, list[Training]] = {}
    for out, experiment in _chosen(options):
        before = _forecast(experiment, out, options)
        rows = before.rows if before else ()
        named = [(name, name) for name in experiment.named] or [(row.name, row.composition or row.name) for row in rows]
        if missing := {name for name, _ in named} - {row.name for row in rows} if rows else set():
            raise UserError(f"{out / FILE}: does not forecast {min(missing)}; --out names another folder")
        turns = range(1 if experiment.named else options.turns)
        planned[out] = [experiment.training(*each, turn) for turn in turns for each in named[: options.first]]
    return [] if options.predict_only else measure(planned, launch, options.again)


def series(quick: bool) -> list[Part]:
    """All experiments; quick: the first compositions of three, and one turn."""
    if quick:
        return [
            Part(3, ["--only", FORTY, "--first", "6"]),
            Part(4, ["--only", "ranking/resnet20_2x100mbit", "--turns", "1"]),
            Part(3, ["--only", "break_even/vgg16_epyc", "--first", "4", "--turns", "1"]),
        ]
    minutes = {FORTY: 30, "ranking": 90, "break_even": 120, "today": 70}
    return [Part(each, ["--only", name]) for name, each in minutes.items()]


def _chosen(options: argparse.Namespace) -> Iterator[tuple[Path, Experiment]]:
    """The experiments by the folders of their results; UserError for a name that there is not."""
    if options.list is not None:
        if options.only or options.out is None:
            raise UserError("--list: needs --out FOLDER, and no --only")
        yield options.out.resolve(), experiments.listed(options.list)
        return
    for name in dict.fromkeys(options.only or EXPERIMENTS):
        found = [each for each in EXPERIMENTS if each == name or each.startswith(f"{name}/")]
        if not found:
            raise UserError(f"--only: no {name!r}; {suggest(name, list(EXPERIMENTS))}")
        for each in found:
            yield ((options.out or RESULTS) / each).resolve(), EXPERIMENTS[each]


def _forecast(experiment: Experiment, out: Path, options: argparse.Namespace) -> Forecast | None:
    """What was forecast before, or is now; UserError where runs came first, or other constants are asked for."""
    before, folder = None if options.again else forecast.load(out), options.machine or CONSTANTS
    if before is None:
        made = experiment.forecast(KnownMachine(folder), options)
        if made is not None:
            if recorded.directly_below(out):
                _refuse_disowning(out, options)
            check_outputs(out=out / FILE)
            forecast.save(out, made)
        return made
    asked: dict[str, tuple[str | None, str]] = {"machine": (before.constants, within(folder.resolve() / ranges.NAME))}
    if before.kind == SIDES:
        # Older files name the topology where others name the constants.
        asked["topology"] = before.given.get("topology", before.constants), experiments.links(options)
        asked["measured_at"] = before.given.get("links_measured_at"), experiments.measured_at(options)
    for name, (then, now) in asked.items():
        if getattr(options, name) is not None and then != now:
            raise UserError(
                f"--{name.replace('_', '-')}: {out / FILE} rests on {then}, not {now}; --again forecasts and runs all "
                "of it anew, --out names another folder"
            )
    return before


def _refuse_disowning(out: Path, options: argparse.Namespace) -> None:
    """UserError where runs that are there would be older than their forecast, and not all be made anew."""
    if not options.again:
        raise UserError(f"{out}: has runs, and nothing was forecast before them; --out names another folder")
    fewer = {"--predict-only": options.predict_only, "--first": options.first, "--turns": options.turns != TURNS}
    for option in (option for option, given in fewer.items() if given):
        raise UserError(f"{option}: not with --again: {out} has runs, and a new forecast needs all of them anew")
