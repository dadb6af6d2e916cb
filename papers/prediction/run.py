"""Forty compositions on emulated clusters, each beside the prediction in its record.

wirebench study prediction run                 all that are not there yet, into results/prediction
wirebench study prediction run --list FILE     those that a file names (papers/prediction/hundred.toml), each
                                               predicted first: predicted.json, with the commit that predicts
wirebench study prediction run --list FILE --machine FOLDER    by the constants of other runs of this machine
wirebench study prediction report --simulate   afterwards: table.md and the figure

The machine should have nothing else to do: a prediction is made of what is measured just before, and knows of nothing
that disturbs the steps after it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from papers.prediction import listed, signed
from papers.prediction.listed import Composition
from papers.runner import RESULTS, ROOT, Launch, Part, measure, within
from wirebench.errors import UserError
from wirebench.planner import ranges
from wirebench.record import notes, recorded
from wirebench.telemetry import environment
from wirebench.utils.cli import check_outputs

CONFIG = Path("configs/tables/prediction_resnet20.toml")
LINKS = ("100mbit", "1gbit")
HOSTS = (2, 3, 4, 8)
COMPOSITIONS = (
    (
        ("wfbp", "none", "native"),
        ("mg_wfbp", "none", "ring"),
        ("optimal", "topk", "native"),
        ("dear", "none", "ring"),
        ("fused", "powersgd", "native"),
    ),
    (
        ("sync_easgd", "gs_sgd", "tree"),
        ("naive", "none", "halving_doubling"),
        ("mg_wfbp_later", "fp16", "native"),
        ("optimal", "none", "ring"),
        ("wfbp", "gtopk", "tree"),
    ),
)
"""Scheduler, compressor and collective: the two lists take turns over the clusters."""


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for what is trained, and where it goes."""
    add = parser.add_argument
    add("--config", type=Path, default=CONFIG, metavar="FILE", help="what is trained (%(default)s)")
    add("--first", type=int, metavar="N", help="only the first N compositions")
    add("--list", type=Path, metavar="FILE", help="compositions of this file instead of the forty, predicted first")
    add("--machine", type=Path, metavar="FOLDER", help="with --list: of runs of this machine, whose outside.json "
        "and rates.jsonl predict (results/prediction)")  # fmt: skip
    add("--predict-only", action="store_true", help="with --list: predict, and run nothing")
    add("--out", type=Path, default=RESULTS / "prediction", metavar="FOLDER", help="where the results go")


def run(options: argparse.Namespace, launch: Launch) -> list[str]:
    """All forty, or the first."""
    if options.first is not None and options.first < 1:
        raise UserError(f"--first: must be positive, got {options.first}")
    for name in ("predict_only", "machine"):
        if getattr(options, name) and options.list is None:
            raise UserError(f"--{name.replace('_', '-')}: goes with --list")
    chosen = (FORTY if options.list is None else listed.load(options.list))[: options.first]
    planned, out = [each.training(options.config) for each in chosen], options.out.resolve()
    for each in planned:
        each.check()
    if options.list is not None:
        machine = _constants(options.machine, out)
        if out == machine.parent.resolve():
            raise UserError(f"--out: {options.out} has the runs that the predictions rest on; name another folder")
        signs, runs = signed.load(out) is None, not options.predict_only
        if signs and runs:
            _check_machine(machine.parent)
        predict(chosen, options, out, machine)
        if runs and not all(each.is_there(out) for each in planned):
            # What is there has been measured, whatever predicted it; the rest belongs to the same machine.
            _check_machine(out if recorded.machine_of(out) else machine.parent)
    return [] if options.predict_only else measure({out: planned}, launch, options.again)


def _constants(folder: Path | None, out: Path) -> Path:
    """The file that predicts the runs of `out`: the earlier file once there are predictions; UserError where another
    one is asked for.
    """
    known, named = signed.load(out), None if folder is None else (folder / ranges.SHIPPED.name).resolve()
    if known is None:
        return named or ranges.SHIPPED
    if named and within(named) != known.fitted_to:
        raise UserError(f"--machine: {out / signed.FILE} predicts by {known.fitted_to}; --out names another folder")
    return ROOT / known.fitted_to


def _check_machine(folder: Path) -> None:
    """UserError where the runs of `folder` are another machine's: its constants would predict that one's steps."""
    theirs, here = recorded.machine_of(folder), notes.machine(environment.cpu())
    if theirs not in (None, here):
        raise UserError(
            f"{folder} has runs of {theirs}, and this is {here}; --machine and --out name folders of its own"
        )


def predict(chosen: Sequence[Composition], options: argparse.Namespace, out: Path, machine: Path) -> None:
    """Sign what is predicted of runs that are not there yet; UserError where a run is there without its prediction.

    machine  the file of constants
    """
    known = signed.load(out)
    steps = {} if known is None else known.steps
    missing = [each for each in chosen if each.name not in steps]
    if late := next((each.name for each in missing if recorded.at(out / each.name)), None):
        raise UserError(f"{out / signed.FILE}: does not predict {late}, which has been run; --out names another folder")
    if known is not None and missing:
        raise UserError(f"{out / signed.FILE}: does not predict {missing[0].name}; --out names another folder")
    if missing:
        check_outputs(out=out / signed.FILE)
        signed.save(out, signed.predict(chosen, options.config, machine))


def series(quick: bool) -> list[Part]:
    """All forty; quick: the first six."""
    return [Part(3, ["--first", "6"])] if quick else [Part(30, [])]


def _forty() -> list[Composition]:
    """Five compositions on every cluster."""
    clusters = [(row + column, hosts, link) for row, link in enumerate(LINKS) for column, hosts in enumerate(HOSTS)]
    return [Composition(hosts, link, *each) for place, hosts, link in clusters for each in COMPOSITIONS[place % 2]]


FORTY = _forty()
