"""What was measured on both sides of predicted break-evens: table.md and a figure in its folder.

wirebench study break_even report results/break_even/vgg16_epyc
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from papers import trust
from papers.break_even import sides
from papers.break_even.figures import figure
from papers.break_even.seen import Seen
from papers.break_even.sides import Side
from papers.findings import Finding
from papers.page import Page, tables_below
from papers.rows import by_label
from papers.runner import RESULTS
from wirebench.errors import UserError
from wirebench.planner.advice import WORTHWHILE
from wirebench.planner.networks import rate
from wirebench.record import recorded
from wirebench.record.notes import NotedRun
from wirebench.topology.rates import parse_rate
from wirebench.utils.markdown import table

HEAD = ("compressor", "links", "x", "dense ms", "predicted", "compressed ms", "predicted", "faster by", "predicted",
        "as predicted")  # fmt: skip
FIGURE = "break_even.svg"
LIMITS_HEAD = ("compressor", "pays below, by the planner", "measured, on a line between two rates", "ratio")


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for the runs of the report."""
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="what `run --out` named")


def pages(options: argparse.Namespace) -> list[Page]:
    """Return one page for each folder."""
    return [_page(folder) for folder in options.folders]


def findings(options: argparse.Namespace) -> list[Finding]:
    """Each side of each folder: whether the compressor pays there as the planner says."""
    found = []
    for folder in options.folders:
        runs = recorded.noted(folder, {"hosts": int, "link": str, "launch": str})
        for seen in match(sides.load(folder).sides, runs):
            both = [_runs(seen.side, which, runs) for which in ("dense", "lossy")]
            about = f"{folder.name}: {seen.side.compressor} at {seen.side.factor:g} of its break-even"
            rules = trust.rules_of(both, "turns")
            records = tuple(run.folder for those in both for run in those)
            found.append(Finding(seen.claim, seen.faster, seen.verdict, about, records=records, rules=rules))
    return found


def committed() -> list[list[str]]:
    """Every trace's."""
    return tables_below(RESULTS / "break_even")


def _page(folder: Path) -> Page:
    runs = recorded.noted(folder, {"hosts": int, "link": str, "launch": str})
    predicted = sides.load(folder)
    sightings = match(predicted.sides, runs)
    if not sightings:
        raise UserError(f"{folder}: no side of a break-even has both its runs; measure first")
    figures = {FIGURE: figure(sightings, runs)}
    return Page(folder, document(sightings, runs, predicted.given), figures, verdict(sightings))


def match(sides: Sequence[Side], runs: Sequence[NotedRun]) -> list[Seen]:
    """The sides of which both compositions were measured, on the links that were meant."""
    sightings = []
    for side in sides:
        both = [_seconds(side, which, runs) for which in ("dense", "lossy")]
        if all(both):
            sightings.append(Seen(side, *both))
    return sightings


def _seconds(side: Side, which: str, runs: Sequence[NotedRun]) -> dict[str, float]:
    """The median step of each turn, by its number."""
    return {run.turn: run.record["step_seconds"]["median"] for run in _runs(side, which, runs)}


def _runs(side: Side, which: str, runs: Sequence[NotedRun]) -> list[NotedRun]:
    """The turns of the side's dense or lossy composition, on the links that were meant, that counted a step."""
    begin = side.folder(which, 0).removesuffix("0")
    chosen = [run for run in runs if run.folder.name.startswith(begin) and run.note["link"] == side.link]
    return [run for run in chosen if run.has("step_seconds", "median")]


def document(sightings: Sequence[Seen], runs: Sequence[NotedRun], given: dict[str, Any]) -> str:
    """table.md."""
    first = next(run for run in runs if run.folder.name.startswith(sightings[0].side.folder("dense", 0)[:-1]))
    git = sorted({str((run.has("environment", "git") or {}).get("commit"))[:10] for run in runs})
    names = dict.fromkeys(seen.side.compressor for seen in sightings)
    lines = [
        "# Below which rate compressors pay: predicted, and run on both sides",
        "",
        f"{verdict(sightings)} {first.has('config', 'model', 'trace')}, {first.record['world_size']} workers on "
        f"{first.note['hosts']} emulated hosts, {first.machine}; commits: {', '.join(git)}. A compressor pays where "
        f"its best composition needs less than {WORTHWHILE:g} of the best dense one's step, both the best by the "
        "planner. Beside milliseconds the least and the largest turn stand in brackets, beside the gain its 95 % "
        "interval; where that lies on both sides of what would pay, nothing is decided. Predictions are the planner's, "
        "from the trace, the copies that a compressor was measured to take, and the speeds of the emulated links at "
        "another rate. They "
        "leave out the optimizer's update, which is in all measured steps. The planner was given: "
        f"{', '.join(f'{key} {value}' for key, value in given.items() if value is not None)}.",
        "",
        f"Made by `wirebench study break_even run`, which runs `{first.note['launch']}` and the like. Column x: the "
        "links' rate over the predicted break-even.",
        "",
        *table(HEAD, [_cells(seen) for seen in sightings]),
        *trust.note(by_label(runs), "turns"),
        *table(LIMITS_HEAD, [_limit([seen for seen in sightings if seen.side.compressor == name]) for name in names]),
        f"![by how much compressors are faster]({FIGURE})",
        "",
    ]
    return "\n".join(lines)


def verdict(sightings: Sequence[Seen]) -> str:
    """Return a sentence: how many sides are as predicted."""
    return f"{sum(seen.verdict.good for seen in sightings)} of {len(sightings)} sides are as predicted."


def measured_limit(sightings: Sequence[Seen]) -> float | None:
    """Gbit/s at which the margin was measured to vanish, on a line over the logarithm of the rate; None outside."""
    points = sorted((seen.side.factor * seen.side.break_even_gbit, seen.margin) for seen in sightings)
    for (low, before), (high, after) in reversed(list(pairwise(points))):
        if before > 0 >= after:
            return math.exp(math.log(low) + before / (before - after) * math.log(high / low))
    return None


def _cells(seen: Seen) -> list[str]:
    side = seen.side
    predicted = side.dense["seconds"], side.lossy["seconds"]
    names = [f"{each['scheduler']}, {each['collective']}" for each in (side.dense, side.lossy)]
    return [
        side.compressor,
        rate(parse_rate(side.link) / 1e9),
        f"{side.factor:g}",
        f"{_turns([*seen.dense_turns.values()])} ({names[0]})",
        f"{1e3 * predicted[0]:.1f}",
        f"{_turns([*seen.lossy_turns.values()])} ({names[1]})",
        f"{1e3 * predicted[1]:.1f}",
        seen.faster,
        f"{100 * (predicted[0] / predicted[1] - 1):+.1f} %",
        "not decidable" if seen.verdict.state == "not decidable" else "yes" if seen.verdict.good else "no",
    ]


def _turns(seconds: Sequence[float]) -> str:
    middle = f"{1e3 * statistics.median(seconds):.1f}"
    between = f" [{1e3 * min(seconds):.1f} - {1e3 * max(seconds):.1f}]"
    return middle + (between if len(seconds) > 1 else "")


def _limit(sightings: Sequence[Seen]) -> list[str]:
    predicted, measured = sightings[0].side.break_even_gbit, measured_limit(sightings)
    cells = [sightings[0].side.compressor, rate(predicted)]
    return [*cells, "not between these rates", "-"] if measured is None else [
        *cells, rate(measured), f"{measured / predicted:.2f}"
    ]  # fmt: skip
