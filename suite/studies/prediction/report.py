"""Predicted beside measured steps, of all runs below a folder: table.md and errors.png in it.

wirebench study prediction report --simulate           also what the simulator says of each run, from outside
wirebench study prediction report results --print      only the table, of whatever is there
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.figures import colours
from suite.figures.provenance import counted, provenance
from suite.figures.scatter import Point, scatter
from suite.figures.style import Figure, around, finished
from suite.planner import ranges
from suite.studies import trust
from suite.studies.claim import together
from suite.studies.findings import Finding
from suite.studies.notes import NotedRun
from suite.studies.page import Page
from suite.studies.prediction import signed
from suite.studies.prediction.resimulated import Resimulated, fit, replayed
from suite.studies.prediction.signed import Signed
from suite.studies.published import load
from suite.studies.runner import RESULTS
from wirebench.errors import UserError
from wirebench.record import schema
from wirebench.topology import processor
from wirebench.topology.processor import Processor
from wirebench.utils import markdown

CLAIM = load(Path(__file__).parent).claims["near"]
NEAR = CLAIM.tolerance
"""A prediction that is off by no more than this share is a good one."""
AFTERWARDS = ("naive", "sync_easgd")
"""Schedules whose messages wait for the end of the backward pass."""
HEAD = ("run", "engine", "scheduler", "compressor", "collective", "messages", "measured ms", "predicted ms", "error")
FIGURE = "![predicted against measured](errors.png)\n"
OUTSIDE_HEAD = ("simulated ms", "error", "fitted")


@dataclass(frozen=True)
class Predicted:
    """One run: its folder's name, and the prediction in its record."""

    name: str
    run: NotedRun

    @property
    def record(self) -> dict[str, Any]:
        """Of the run."""
        return self.run.record

    @property
    def found(self) -> dict[str, float]:
        """The record's prediction."""
        numbers: dict[str, float] = self.record["prediction"]
        return numbers

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.found["error"]


def flags(parser: argparse.ArgumentParser) -> None:
    """Which runs, and how much is said of them."""
    add, where = parser.add_argument, RESULTS / "prediction"
    add("folder", type=Path, nargs="?", default=where, metavar="FOLDER", help="of the runs (results/prediction)")
    add("--simulate", action="store_true", help="simulate runs of emulated clusters from outside, too")


def pages(options: argparse.Namespace) -> list[Page]:
    """The folder's."""
    runs = collect(options.folder)
    outside = from_outside(options.folder, runs) if options.simulate else None
    files = {} if outside is None else {ranges.SHIPPED.name: outside.numbers}
    text = document(runs, outside, signed.load(options.folder))
    return [Page(options.folder, text, {"errors.png": figure(runs)}, verdict(runs), files)]


def findings(options: argparse.Namespace) -> list[Finding]:
    """The claim on all runs together."""
    runs = collect(options.folder)
    judged = {each.name: CLAIM.judge(1 + each.error) for each in runs}
    records = tuple(each.run.folder for each in runs)
    rules = trust.rules([each.run for each in runs], "")
    return [Finding(CLAIM, verdict(runs), together(judged), records=records, rules=rules)]


def committed() -> list[list[str]]:
    """The only one."""
    return [["--simulate"]]


def collect(folder: Path) -> list[Predicted]:
    """All runs below `folder` whose record has a prediction, by name; UserError where there is none."""
    if not folder.is_dir():
        raise UserError(f"{folder}: is no folder")
    predicted = []
    for path in sorted(folder.rglob("record.json")):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            record = schema.read(path)
            if record.get("prediction"):
                inside = str(path.parent.relative_to(folder))
                run = NotedRun(path.parent, {}, record)
                predicted.append(Predicted(folder.resolve().name if inside == "." else inside, run))
    if not predicted:
        raise UserError(f"{folder}: has no run with a prediction; runs of several processes have one")
    return predicted


@dataclass(frozen=True)
class Outside:
    """Simulated steps by the run's name, whether each was one of those that the machine's numbers are fitted to.

    numbers  the same for programs, with what each run's exchange took over what was simulated
    """

    seconds: dict[str, tuple[float, bool]]
    said: str
    numbers: str

    def cells(self, run: Predicted) -> list[str]:
        """Of the table."""
        if run.name not in self.seconds:
            return ["-"] * len(OUTSIDE_HEAD)
        seconds, fitted = self.seconds[run.name]
        error = seconds / run.found["measured_seconds"] - 1
        return [f"{1e3 * seconds:.2f}", f"{100 * error:+.1f} %", "yes" if fitted else ""]


def from_outside(folder: Path, runs: Sequence[Predicted]) -> Outside:
    """Every replayed run of an emulated cluster, simulated; UserError where there are fewer than four."""
    known = replayed(folder, "--simulate")
    made = {run.name: known[run.name] for run in runs if run.name in known}
    fitted = set(list(made)[::2])
    machine = fit([each for name, each in made.items() if name in fitted])
    seconds = {name: (each.seconds(machine), name in fitted) for name, each in made.items()}
    errors = {name: seconds[name][0] / each.measured - 1 for name, each in made.items()}
    return Outside(seconds, _said(machine, errors, fitted), _numbers(made, machine, seconds))


def _said(machine: Processor, errors: Mapping[str, float], fitted: set[str]) -> str:
    """How near the simulation comes, in sentences. errors: of all runs, by name"""
    held = {name: abs(error) for name, error in errors.items() if name not in fitted}
    near = sum(CLAIM.judge(1 + errors[name]).good for name in held)
    worst = max(errors, key=lambda name: abs(errors[name]))
    constants = ", ".join(f"{key} {value:.3g}" for key, value in processor.written(machine).items() if key != "cores")
    return (
        "Simulated from outside, with the trace, the links' rate, the copies that a compressor takes, and what the run "
        f"measured of loading and of the update; and with what messages cost the {machine.cores:.0f} cores that play "
        f"all hosts, fitted to every second run (docs/topology.md): {constants}. Of the {len(held)} others {near} are "
        f"within {100 * NEAR:.0f} %, with a median error of {100 * statistics.median(held.values()):.1f} % and a mean "
        f"of {100 * statistics.fmean(held.values()):.1f} %; the largest of all is {100 * errors[worst]:+.0f} % "
        f"({worst})."
    )


def _numbers(made: Mapping[str, Resimulated], machine: Processor, seconds: Mapping[str, tuple[float, bool]]) -> str:
    """outside.json, that a prediction's range rests on (suite/planner/ranges.py)."""
    entries: list[dict[str, object]] = []
    for name, run in made.items():
        simulated, fitted = seconds[name]
        factor = run.factor(machine)
        # A step that no exchange explains says nothing of exchanges.
        if factor is not None:
            entries.append({
                "run": name, "fitted": fitted, "measured_seconds": _short(run.measured),
                "simulated_seconds": _short(simulated), "factor": _short(factor),
            })  # fmt: skip
    constants = {key: _short(value) for key, value in processor.written(machine).items()}
    hosts = sorted({run.topology.size for run in made.values()})
    others = {
        str(size): _short(statistics.median(run.other for run in made.values() if run.topology.size == size))
        for size in hosts
    }
    return ranges.written(entries, {"writer": ranges.WRITER, "processor": constants, "other_seconds": others})


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def document(runs: Sequence[Predicted], outside: Outside | None = None, before: Signed | None = None) -> str:
    """table.md. before: what was predicted before the runs, where it was"""
    measured = {each.name: each.found["measured_seconds"] for each in runs}
    commits = {each.run.commit for each in runs}
    lines = [
        "# Predicted and measured steps",
        "",
        f"{verdict(runs)} Measured on {', '.join(sorted({each.run.machine for each in runs}))}; commits: "
        f"{', '.join(sorted(commits))}. A prediction is a simulation of the schedule, with messages and computation "
        "timed apart in the run's own uncounted steps (docs/record.md). Where no message overlaps computation "
        "(`naive`, `sync_easgd`, or a single message) these steps are the schedule itself, and the error only says how "
        f"steady they are; {overlapping(runs)}",
        "",
        *([] if outside is None else [outside.said, ""]),
        *([] if before is None else [before.said(measured), ""]),
        *trust.note({each.name: [each.run] for each in runs}, ""),
        *markdown.table(
            (*HEAD, *(() if outside is None else OUTSIDE_HEAD), *(() if before is None else signed.HEAD)),
            [
                [
                    *_cells(each),
                    *([] if outside is None else outside.cells(each)),
                    *([] if before is None else before.cells(each.name, measured[each.name])),
                ]
                for each in runs
            ],
        ),
    ]
    return "\n".join(lines) + "\n" + FIGURE


def verdict(runs: Sequence[Predicted]) -> str:
    """How many are near, in a sentence."""
    errors = [abs(each.error) for each in runs]
    near = sum(CLAIM.judge(1 + each.error).good for each in runs)
    return (
        f"{near} of {len(runs)} predictions, each by the run's own steps, are within {100 * NEAR:.0f} %; the median "
        f"error is {100 * statistics.median(errors):.1f} %, the largest {100 * max(errors):.1f} %."
    )


def overlapping(runs: Sequence[Predicted]) -> str:
    """How many of those are near in which messages and computation overlap."""
    chosen = [each for each in runs if each.found["messages"] > 1 and _name(each.record, "scheduler") not in AFTERWARDS]
    near = sum(CLAIM.judge(1 + each.error).good for each in chosen)
    return f"of the {len(chosen)} others {near} are within {100 * NEAR:.0f} %."


def figure(runs: Sequence[Predicted]) -> Figure:
    """Predicted against measured, with the band that counts as near."""
    points = [
        Point(
            each.name, _name(each.record, "scheduler"), 1e3 * each.found["measured_seconds"],
            1e3 * each.found["step_seconds"], f"{100 * each.error:+.1f} %", _between(each.run),
        )
        for each in runs
    ]  # fmt: skip
    values = [value for point in points for value in (point.across, point.up, *(point.between or ()))]
    across, up = (around(f"{kind} time per step, ms", values, log=True) for kind in ("measured", "predicted"))
    series = {name: colours.schedule(name) for name in sorted({point.series for point in points})}
    where = provenance(each.run.has("environment") or {} for each in runs)
    steps = counted((each.record["images_per_second"]["steps"] for each in runs), "step")
    note = (
        f"{len(runs)} runs by their schedules, the median of {steps}; thin lines: 10 % to 90 % of the measured steps. "
        f"{verdict(runs)} {where}."
    )
    return finished(scatter(points, series, NEAR, across, up, "Time per step: predicted against measured", note))


def _between(run: NotedRun) -> tuple[float, float] | None:
    low, high = (run.has("step_seconds", end) for end in ("p10", "p90"))
    return None if low is None or high is None else (1e3 * low, 1e3 * high)


def _cells(each: Predicted) -> list[str]:
    record, numbers = each.record, each.found
    return [
        each.name,
        f"{record['engine']} x {record['world_size']}",
        *(_name(record, section) for section in ("scheduler", "compressor", "collective")),
        f"{numbers['messages']:.0f}",
        f"{1e3 * numbers['measured_seconds']:.2f}",
        f"{1e3 * numbers['step_seconds']:.2f}",
        f"{100 * each.error:+.1f} %",
    ]


def _name(record: dict[str, Any], section: str) -> str:
    return str(record["config"].get(section, {}).get("name", "-"))
