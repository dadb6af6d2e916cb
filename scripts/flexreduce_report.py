#!/usr/bin/env python3
"""The FlexReduce paper's table and Fig. 4 from what scripts/bench_flexreduce.py measured: table.md and fig4a-f.png.

python scripts/flexreduce_report.py                            reads and writes results/flexreduce
python scripts/flexreduce_report.py --dir FOLDER --link 1gbit  for cells that do not say how fast their links were

The same measurements give the same files. A figure whose measurements are missing is left out, and table.md says so.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from matplotlib.figure import Figure

from suite.bench.plot_collectives import style
from wirebench import cells, schema
from wirebench import paper_flexreduce as paper
from wirebench.cluster.rates import parse_rate
from wirebench.errors import UserError
from wirebench.files import write_atomically
from wirebench.paper_flexreduce import COLLECTIVES, LAYOUTS, Row, Training
from wirebench.paper_flexreduce_table import LABELS, Results, document
from wirebench.utils.cli import parser_of
from wirebench.utils.figures import finish, new_figure, save

ROOT = Path(__file__).resolve().parents[1]
LINES_AT = {"fig4d": "3+3+4", "fig4e": "4+4+4"}
"""The paper's 10 and 12 learners."""


class Unmeasured(Exception):
    """What a figure shows was not measured; the message says what."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0, or 2 with one line on standard error."""
    try:
        options = _parser().parse_args(arguments)
        results = load(options.dir, options.link)
        figures, left_out = draw(results, options.dir)
        target = options.dir / "table.md"
        try:
            write_atomically(target, document(results, figures, left_out))
        except OSError as error:
            raise UserError(f"{target}: cannot be written: {error.strerror}") from error
    except UserError as error:
        print(f"flexreduce_report.py: {error}", file=sys.stderr)
        return error.exit_code
    print(target)
    return 0


def load(folder: Path, link: str | None) -> Results:
    """Everything that was measured; UserError where a file is damaged, or there is none.

    link  of the cells that do not say it themselves; UserError where none needs it
    """
    files = {layout: folder / "cells" / f"{layout}.jsonl" for layout in LAYOUTS}
    measured = {layout: cells.load(file) for layout, file in files.items() if file.exists()}
    for layout, measurement in measured.items():
        if any(cell.layout != layout for cell in measurement.cells):
            raise UserError(f"{files[layout]}: has cells of another layout")
    headers = {layout: measurement.header for layout, measurement in measured.items()}
    if link is not None:
        parse_rate(link)
        if headers and all("link" in header for header in headers.values()):
            raise UserError("--link: every file of cells says already how fast its links were")
        headers = {layout: {"link": link, **header} for layout, header in headers.items()}
    runs, notes = load_runs(folder / "end_to_end")
    if not measured and not runs:
        raise UserError(
            f"{folder}: has neither cells/LAYOUT.jsonl nor end_to_end/LAYOUT; run bench_flexreduce.py first"
        )
    rows = paper.rows(cell for measurement in measured.values() for cell in measurement.cells)
    return Results(rows, headers, runs, notes)


def load_runs(folder: Path) -> tuple[list[Training], dict[str, dict[str, Any]]]:
    """Trainings of folder/LAYOUT/COLLECTIVE-TURN, and what is known of how they ran, by layout."""
    runs: list[Training] = []
    notes: dict[str, dict[str, Any]] = {}
    for layout in LAYOUTS:
        for path in sorted((folder / layout).glob("*-*/record.json")):
            name, _, turn = path.parent.name.rpartition("-")
            if name not in COLLECTIVES or not turn.isdigit():
                raise UserError(f"{path.parent}: no folder of bench_flexreduce.py; those read COLLECTIVE-TURN: ring-0")
            record = schema.read(path)
            runs.append(paper.training(layout, name, int(turn), record))
            environment = record["environment"]
            known = {"engine": record["engine"], "backend": environment.get("backend"), "environment": environment}
            notes.setdefault(layout, {**_note(folder / layout / "cluster.json"), **known})
    return runs, notes


def _note(path: Path) -> dict[str, Any]:
    """What the driver said of a layout's trainings; nothing where they were started by hand."""
    if not path.exists():
        return {}
    try:
        note = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    if not isinstance(note, dict):
        raise UserError(f"{path}: needs a table")
    return note


def draw(results: Results, folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Write the figures; captions of those made and reasons for those not, by file name.

    A figure of an earlier report that can no longer be made is removed.
    """
    rows, items = results.rows, paper.main_items(results.rows)
    makers: dict[str, tuple[str, Callable[[], Figure]]] = {
        "fig4a": (f"Latency of {paper.SMALL_ITEMS:,} floats", lambda: over_learners(rows, paper.SMALL_ITEMS)),
        "fig4b": (f"Latency of {items:,} floats", lambda: over_learners_largest(rows)),
        "fig4c": ("Reduce calls per learner", calls_figure),
        "fig4d": (f"Latency on {LINES_AT['fig4d']}", lambda: over_items(rows, LINES_AT["fig4d"])),
        "fig4e": (f"Latency on {LINES_AT['fig4e']}", lambda: over_items(rows, LINES_AT["fig4e"])),
        "fig4f": ("Time per epoch", lambda: epochs_figure(results.runs)),
    }
    figures, left_out = {}, {}
    for name, (caption, make) in makers.items():
        path = folder / f"{name}.png"
        try:
            save(make(), path)
            figures[path.name] = caption
        except Unmeasured as reason:
            path.unlink(missing_ok=True)
            left_out[path.name] = str(reason)
    return figures, left_out


def over_learners(rows: Sequence[Row], items: int) -> Figure:
    """Fig. 4 (a), (b): milliseconds over learners, one line per collective, bars from the 10th to 90th percentile.

    Lines break between 2 and 3 machines.
    """
    chosen = [row for row in rows if row.items == items]
    if not chosen:
        raise Unmeasured(f"no all-reduce of {items:,} floats was measured")
    figure, axes = new_figure(f"all-reduce of {items:,} floats", "learners", "ms")
    for name in COLLECTIVES:
        colour, marker = style(name)
        for part, group in enumerate(_by_machines([row for row in chosen if name in row.cells])):
            middles = [1e3 * row.cells[name].median for row in group]
            ends = [[1e3 * end for end in row.cells[name].spread] for row in group]
            below = [middle - low for middle, (low, _) in zip(middles, ends, strict=True)]
            above = [high - middle for middle, (_, high) in zip(middles, ends, strict=True)]
            label = LABELS[name] if part == 0 else None
            sizes = [row.topology.size for row in group]
            axes.errorbar(
                sizes, middles, yerr=(below, above), color=colour, marker=marker, markersize=4, capsize=2, label=label
            )
    for part, group in enumerate(_by_machines([row for row in chosen if "ring" in row.cells])):
        ideals = [1e3 * row.cells["ring"].median * (1 - row.ideal) for row in group]
        label = "ideal: ring less the ideal saving" if part == 0 else None
        sizes = [row.topology.size for row in group]
        axes.plot(sizes, ideals, color="black", linestyle="--", linewidth=1, marker="_", label=label)
    axes.set_xticks([row.topology.size for row in chosen], [f"{row.topology.size}\n{row.layout}" for row in chosen])
    axes.set_ylim(bottom=0)
    finish(axes)
    return figure


def over_learners_largest(rows: Sequence[Row]) -> Figure:
    """Fig. 4 (b): at the largest size that the layouts share."""
    items = paper.main_items(rows)
    if items <= paper.SMALL_ITEMS:
        raise Unmeasured(f"no all-reduce of more than {paper.SMALL_ITEMS:,} floats was measured")
    return over_learners(rows, items)


def _by_machines(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of 2 machines, then of 3; groups without rows are left out."""
    groups = [[row for row in rows if len(row.topology.machines) == machines] for machines in paper.PAPER_SAVING]
    return [group for group in groups if group]


def calls_figure() -> Figure:
    """Fig. 4 (c): reduce calls into a learner, from the plans."""
    counts = {layout: paper.count_calls(layout) for layout in LAYOUTS}
    figure, axes = new_figure("FlexReduce's reduce calls", "learners", "calls per learner")
    places = range(len(counts))
    axes.bar(
        places, [c.mean for c in counts.values()], color=style("flexreduce")[0], width=0.6, label="mean over levels"
    )
    axes.plot(places, [c.most for c in counts.values()], "kD", markersize=5, label="most of one learner")
    axes.plot(places, [c.bound for c in counts.values()], "k_", markersize=16, label="upper bound (Eq. 12)")
    axes.set_xticks(places, [f"{sum(map(int, layout.split('+')))}\n{layout}" for layout in counts])
    axes.set_ylim(0, 5)
    finish(axes, "upper left")
    return figure


def over_items(rows: Sequence[Row], layout: str) -> Figure:
    """Fig. 4 (d), (e): milliseconds over items on one layout, both logarithmic."""
    chosen = [row for row in rows if row.layout == layout]
    if not chosen:
        raise Unmeasured(f"no all-reduce on {layout} was measured")
    learners = chosen[0].topology.size
    figure, axes = new_figure(f"all-reduce on {layout}, {learners} learners", "floats", "ms")
    for name in COLLECTIVES:
        colour, marker = style(name)
        line = [(row.items, 1e3 * row.cells[name].median) for row in chosen if name in row.cells]
        if line:
            axes.plot(*zip(*line, strict=True), color=colour, marker=marker, markersize=4, label=LABELS[name])
    ideal = [(row.items, 1e3 * row.cells["ring"].median * (1 - row.ideal)) for row in chosen if "ring" in row.cells]
    if ideal:
        axes.plot(*zip(*ideal, strict=True), color="black", linestyle="--", linewidth=1, label="ideal")
    axes.set_xscale("log")
    axes.set_yscale("log")
    finish(axes)
    return figure


def epochs_figure(runs: Sequence[Training]) -> Figure:
    """Fig. 4 (f): minutes per epoch by layout, a dot for every turn."""
    layouts = [layout for layout in LAYOUTS if any(run.layout == layout for run in runs)]
    if not layouts:
        raise Unmeasured("no training was measured")
    figure, axes = new_figure(f"ResNet-18, {paper.EPOCH_IMAGES:,} images", "learners", "minutes per epoch")
    width = 0.8 / len(COLLECTIVES)
    for number, name in enumerate(COLLECTIVES):
        times: dict[float, list[float]] = {}
        for place, layout in enumerate(layouts):
            here = [run.epoch_seconds / 60 for run in runs if (run.layout, run.collective) == (layout, name)]
            if here:
                times[place + (number - (len(COLLECTIVES) - 1) / 2) * width] = here
        middles = [statistics.median(minutes) for minutes in times.values()]
        axes.bar(list(times), middles, width=0.9 * width, color=style(name)[0], label=LABELS[name])
        dots = [(x, minute) for x, minutes in times.items() for minute in minutes]
        axes.plot([x for x, _ in dots], [minute for _, minute in dots], "k.", markersize=4)
    axes.set_xticks(range(len(layouts)), [f"{sum(map(int, lay.split('+')))}\n{lay}" for lay in layouts])
    axes.set_xlim(-0.6, max(len(layouts), 2) - 0.4)
    axes.set_ylim(top=1.15 * max(run.epoch_seconds / 60 for run in runs))
    finish(axes, "upper left", len(COLLECTIVES))
    return figure


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(Path(__file__).stem, __doc__)
    where = ROOT / "results" / "flexreduce"
    parser.add_argument("--dir", type=Path, default=where, metavar="FOLDER", help="results (results/flexreduce)")
    parser.add_argument("--link", metavar="RATE", help="rate of the links of cells that do not say it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
