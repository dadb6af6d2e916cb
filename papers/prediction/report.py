"""Predicted beside measured steps, of all runs below a folder: table.md and errors.svg in it.

wirebench study prediction report --simulate           also what the simulator says of each run, from outside
wirebench study prediction report results --print      only the table, of whatever is there
A table that has simulated steps is not written without --simulate: they would be lost.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from papers import trust
from papers.claim import together
from papers.findings import Finding
from papers.page import Page
from papers.prediction import another_time, signed
from papers.prediction import outside as simulations
from papers.prediction.another_time import AnotherTime
from papers.prediction.measured import CLAIM, NEAR, Predicted, collect, near, where_steady
from papers.prediction.outside import Outside, from_outside
from papers.prediction.signed import Signed
from papers.runner import RESULTS
from wirebench.errors import UserError
from wirebench.figures import colours
from wirebench.figures.provenance import counted, provenance
from wirebench.figures.scatter import Point, scatter
from wirebench.figures.style import Figure, around, finished
from wirebench.planner import ranges
from wirebench.planner.resimulated import RATES
from wirebench.record import recorded
from wirebench.record.notes import NotedRun
from wirebench.utils import markdown

AFTERWARDS = ("naive", "sync_easgd")
"""Schedules whose messages wait for the end of the backward pass."""
HEAD = ("run", "engine", "scheduler", "compressor", "collective", "messages", "measured ms", "repeats to",
        "predicted ms", "error")  # fmt: skip
FIGURE = "![predicted against measured](errors.svg)\n"
FOLDER = RESULTS / "prediction"


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for the runs, and for how much is reported."""
    add = parser.add_argument
    add("folders", type=Path, nargs="*", metavar="FOLDER", help="of the runs (results/prediction, and runs of lists "
        "beside it that were made on the same machine)")  # fmt: skip
    add("--simulate", action="store_true", help="simulate runs of emulated clusters from outside, too; the constants "
        "that are fitted to every second run of all folders go to the first")  # fmt: skip


def pages(options: argparse.Namespace) -> list[Page]:
    """The folders'."""
    folders = _folders(options)
    runs = {folder: collect(folder) for folder in folders}
    if not options.simulate and not getattr(options, "print", False):
        _keep(folders)
    outside = from_outside(runs) if options.simulate else {}
    return [_page(folder, each, outside.get(folder)) for folder, each in runs.items()]


def _keep(folders: Sequence[Path]) -> None:
    """UserError where a folder's table has simulated steps, which would be lost without --simulate."""
    for folder in folders:
        if (folder / "table.md").is_file() and "Simulated from outside" in (folder / "table.md").read_text():
            shared = "" if (folder / ranges.SHIPPED.name).is_file() else ", with the folder of its constants first"
            raise UserError(f"{folder}: its table has simulated steps; --simulate makes them anew{shared}")


def _page(folder: Path, runs: Sequence[Predicted], outside: Outside | None) -> Page:
    before = signed.load(folder)
    text = document(folder.resolve().name, runs, outside, before, another_time.find(folder, runs))
    files = {ranges.SHIPPED.name: outside.numbers} if outside and outside.numbers else {}
    return Page(folder, text, {"errors.svg": figure(runs)}, verdict(runs), files)


def findings(options: argparse.Namespace) -> list[Finding]:
    """The claim on all runs of each folder together."""
    return [_finding(folder) for folder in _folders(options)]


def _finding(folder: Path) -> Finding:
    runs = collect(folder)
    judged = {each.name: CLAIM.judge(1 + each.error) for each in runs}
    records = tuple(each.run.folder for each in runs)
    rules = trust.rules([each.run for each in runs], "")
    about = "" if folder == FOLDER else folder.name
    return Finding(CLAIM, verdict(runs), together(judged), about, records=records, rules=rules)


def committed() -> list[list[str]]:
    """The runs that ranges rest on, and the runs of lists that were made on other machines, with constants of their
    own.

    Constants need to know how long compressors work there: a list that was predicted by another list's has none.
    """
    shared = _shared()
    others = [folder for folder in _listed() if folder not in shared]
    return [["--simulate"], *(["--simulate"] * (folder / RATES).is_file() + [str(folder)] for folder in others)]


def _folders(options: argparse.Namespace) -> list[Path]:
    return list(dict.fromkeys(options.folders or _shared()))


def _shared() -> list[Path]:
    """The forty, and the lists whose runs share the machine's constants with them; a repeated list shares none."""
    machine = recorded.machine_of(FOLDER)
    lists = (folder for folder in _listed() if not another_time.is_repeat(folder))
    return [FOLDER, *(folder for folder in lists if recorded.machine_of(folder) == machine)]


def _listed() -> list[Path]:
    """Folders of every list that was predicted before and has a run."""
    found = sorted(path.parent for path in FOLDER.parent.glob(f"{FOLDER.name}-*/{signed.FILE}"))
    return [folder for folder in found if recorded.directly_below(folder)]


def document(
    name: str,
    runs: Sequence[Predicted],
    outside: Outside | None = None,
    before: Signed | None = None,
    again: AnotherTime | None = None,
) -> str:
    """table.md of the folder of this name.

    before     what was predicted before the runs, where it was; again: the same runs another time, where they are
    """
    measured = {each.name: each.seconds for each in runs}
    lines = [
        f"# Predicted and measured steps: {name}",
        "",
        *_about(runs),
        *([] if again is None else [again.said(), ""]),
        *([] if outside is None else [f"{outside.said} {_agreeing(again, outside.held)}".rstrip(), ""]),
        *([] if before is None else [_before(before, runs, again), ""]),
        *trust.note({each.name: [each.run] for each in runs}, ""),
        *markdown.table(
            (
                *HEAD,
                *(() if again is None else another_time.HEAD),
                *(() if outside is None else simulations.HEAD),
                *(() if before is None else signed.HEAD),
            ),
            [
                [
                    *_cells(each),
                    *([] if again is None else again.cells(each.name)),
                    *([] if outside is None else outside.cells(each)),
                    *([] if before is None else before.cells(each.name, measured[each.name])),
                ]
                for each in runs
            ],
        ),
    ]
    return "\n".join(lines) + "\n" + FIGURE


def _about(runs: Sequence[Predicted]) -> list[str]:
    """What was measured, and how good it is."""
    commits = {each.run.commit for each in runs}
    return [
        f"{verdict(runs)} Measured on {', '.join(sorted({each.run.machine for each in runs}))}; commits: "
        f"{', '.join(sorted(commits))}. A prediction is a simulation of the schedule, with messages and computation "
        "timed apart in the run's own uncounted steps (docs/record.md). Where no message overlaps computation "
        "(`naive`, `sync_easgd`, or a single message) these steps are the schedule itself, and the error only says how "
        f"steady they are; {overlapping(runs)} Every composition was run once here, without turns: what is judged is "
        "the error over all of them.",
        "",
        'Column "repeats to": where the median of another run of as many steps would lie, 19 times out of 20, by '
        f"these steps' 10th and 90th percentiles. {where_steady(runs, {each.name: each.error for each in runs})}",
        "",
    ]


def _before(before: Signed, runs: Sequence[Predicted], again: AnotherTime | None) -> str:
    measured = {each.name: each.seconds for each in runs}
    errors = before.errors(measured)
    said = before.said(measured), where_steady(runs, errors), _agreeing(again, errors)
    return " ".join(words for words in said if words)


def _agreeing(again: AnotherTime | None, errors: Mapping[str, float]) -> str:
    return "" if again is None else again.judged(errors)


def verdict(runs: Sequence[Predicted]) -> str:
    """Return a sentence: how many predictions are near."""
    errors = [abs(each.error) for each in runs]
    good = sum(near(each.error) for each in runs)
    return (
        f"{good} of {len(runs)} predictions, each by the run's own steps, are within {100 * NEAR:.0f} %; the median "
        f"error is {100 * statistics.median(errors):.1f} %, the largest {100 * max(errors):.1f} %."
    )


def overlapping(runs: Sequence[Predicted]) -> str:
    """How many of those are near in which messages and computation overlap."""
    chosen = [each for each in runs if each.found["messages"] > 1 and each.plugin("scheduler") not in AFTERWARDS]
    good = sum(near(each.error) for each in chosen)
    return f"of the {len(chosen)} others {good} are within {100 * NEAR:.0f} %."


def figure(runs: Sequence[Predicted]) -> Figure:
    """Predicted against measured, with the band that counts as near."""
    points = [
        Point(
            each.name, each.plugin("scheduler"), 1e3 * each.seconds, 1e3 * each.found["step_seconds"],
            f"{100 * each.error:+.1f} %", _between(each.run),
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
        *(each.plugin(section) for section in ("scheduler", "compressor", "collective")),
        f"{numbers['messages']:.0f}",
        f"{1e3 * each.seconds:.2f}",
        "-" if each.repeats is None else f"{100 * each.repeats:.1f} %",
        f"{1e3 * numbers['step_seconds']:.2f}",
        f"{100 * each.error:+.1f} %",
    ]
