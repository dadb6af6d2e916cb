"""The planner's ten best compositions, as they were ranked and as they ran: table.md and a figure in their folder.

wirebench study ranking report                                       of every cluster that was run
wirebench study ranking report results/ranking/resnet20_2x100mbit    of this one
"""

import argparse
from pathlib import Path

from papers import rows, trust
from papers.findings import Finding
from papers.page import Page, tables_below
from papers.prediction.listed import DENSITY
from papers.ranking.measured import CLAIM, Measured
from papers.rows import Row, times_faster
from papers.runner import RESULTS
from wirebench.errors import UserError
from wirebench.figures import colours
from wirebench.figures.bars import Bar, Look, stacked
from wirebench.figures.provenance import counted, provenance
from wirebench.figures.style import Figure, around, finished
from wirebench.record.notes import commits
from wirebench.utils.markdown import table

FIGURE = "ranking.svg"
NOT_PREDICTED = ("data", "update")
"""Phases of a step that the planner leaves out."""
HEAD = ("planner's place", "schedule, compressor, collective", "predicted ms", "range",
        "step ms [10 % - 90 % of all steps]", "error", "over the shortest [95 % interval]")  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for the runs of the report."""
    add = parser.add_argument
    add(
        "folders",
        type=Path,
        nargs="*",
        metavar="FOLDER",
        help="a cluster's, below `run --out` (all of results/ranking)",
    )


def pages(options: argparse.Namespace) -> list[Page]:
    """Return one page for each folder."""
    return [_page(folder) for folder in _folders(options)]


def findings(options: argparse.Namespace) -> list[Finding]:
    """For each folder: the planner's first choice over the shortest step of the ten."""
    found = []
    for folder in _folders(options):
        measured = Measured(folder)
        records = tuple(run.folder for row in measured.rows for run in row.runs)
        rules = trust.rules_of((row.runs for row in measured.rows), "turns")
        rules += ("commit",) * measured.ranking.changed
        found.append(Finding(CLAIM, measured.here, measured.verdict, folder.name, records=records, rules=rules))
    return found


def _folders(options: argparse.Namespace) -> list[Path]:
    """The named folders, or all; UserError if there are none."""
    folders = options.folders or [Path(each) for [each] in committed()]
    if not folders:
        raise UserError(f"{RESULTS / 'ranking'}: has no runs; measure first")
    return folders


def committed() -> list[list[str]]:
    """Every cluster's."""
    return tables_below(RESULTS / "ranking")


def _page(folder: Path) -> Page:
    measured = Measured(folder)
    return Page(folder, document(measured), {FIGURE: figure(measured)}, measured.said)


def document(measured: Measured) -> str:
    """table.md."""
    run, ranking = measured.rows[0].runs[0], measured.ranking
    made_by = commits(run for row in measured.rows for run in row.runs)
    ranked_by = f"commit {ranking.commit[:10]}{' and changes' if ranking.changed else ''} at {ranking.utc}"
    elsewhere = " These are of another kind of machine than this one." if ranking.elsewhere else ""
    missing = f" Without a time since the ranking: {'; '.join(measured.missing)}." if measured.missing else ""
    lines = [
        f"# What the planner ranks first: {rows.cluster(measured.rows)}",
        "",
        f"{measured.said} {run.record['world_size']} workers, {run.machine}; "
        f"{counted((len(row.runs) for row in measured.rows), 'turn')} of each; {made_by}. Ranked before the runs, by "
        f"{ranked_by}, from the trace, the links' rate and the constants of {ranking.machine}.{elsewhere} Compressors "
        f"that have a density work at {DENSITY:g}. The order is that of expected steps, (least + 4 x predicted + most) "
        "/ 6; dense stands before what gains less than 1 %, and what was never trained to an end stands last. A "
        "prediction leaves out loading and the update; its error is over "
        f"the measured step without them.{missing}",
        "",
        f"Made by `wirebench study ranking run`, which runs `{run.note['launch']}` and the like.",
        "",
        *table(HEAD, [_cells(place, label, measured) for place, label in enumerate(measured.predicted, 1)]),
        *trust.note({row.label: row.runs for row in measured.rows}, "turns"),
        f"![time per step]({FIGURE})",
        "",
    ]
    return "\n".join(lines)


def _cells(place: int, label: str, measured: Measured) -> list[str]:
    each = measured.predicted[label]
    begin = [str(place), label, f"{1e3 * each.seconds:.1f}", f"{1e3 * each.low:.1f}-{1e3 * each.high:.1f}"]
    row = next((row for row in measured.rows if row.label == label), None)
    if row is None or row.step_seconds is None or row.steps_between is None:
        return [*begin, "-", "-", "-"]
    low, high = row.steps_between
    over = times_faster(measured.shortest, row)
    own = row.step_seconds - sum(row.median("phases", name) or 0.0 for name in NOT_PREDICTED)
    return [
        *begin,
        f"{1e3 * row.step_seconds:.1f} [{1e3 * low:.1f} - {1e3 * high:.1f}]",
        f"{100 * (each.seconds / own - 1):+.1f} %",
        "-" if over is None else over.words("{:.3f}x", "{:.3f}"),
    ]


def figure(measured: Measured) -> Figure:
    """A bar for each composition, in the planner's order, with its prediction."""
    known = {row.label: row for row in measured.rows}
    bars = [_bar(known[label], measured) for label in measured.predicted if label in known]
    across = around("time per step, ms", [0.0, *(bar.end for bar in bars)])
    look = Look(
        {bar.name: colours.schedule(bar.name.partition(",")[0]) for bar in bars}, legend=False,
        spread="steps, 10 % to 90 %", mark="predicted", width=250,
    )  # fmt: skip
    runs = [run for row in measured.rows for run in row.runs]
    turns = counted((len(row.runs) for row in measured.rows), "turn")
    note = (
        f"From the planner's first choice downwards. Bars: medians of {turns}; thin lines: 10 % to 90 % of all steps; "
        f"thick marks: predictions. {provenance(run.has('environment') or {} for run in runs)}."
    )
    return finished(stacked(bars, across, look, f"The planner's ten best: {rows.cluster(measured.rows)}", note))


def _bar(row: Row, measured: Measured) -> Bar:
    between, seconds = row.steps_between, row.step_seconds or 0.0
    predicted = measured.predicted[row.label].seconds
    words = f"{1e3 * seconds:.0f}, predicted {1e3 * predicted:.0f}"
    spread = None if between is None else (1e3 * between[0], 1e3 * between[1])
    return Bar(row.label, {row.label: 1e3 * seconds}, spread, 1e3 * predicted, words)
