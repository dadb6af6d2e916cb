"""The FlexReduce paper's table and Fig. 4 from what was measured: table.md and fig4a-f.svg.

  wirebench study flexreduce report                            reads and writes results/flexreduce
  wirebench study flexreduce report --cluster FOLDER           of what `run --launch` made on a cluster, into FOLDER
  wirebench study flexreduce report --dir FOLDER --link 1gbit  for cells that do not say how fast their links were

The same measurements give the same files. A figure whose measurements are missing is left out, and table.md names
it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from papers.findings import Finding
from papers.flexreduce import measured as numbers
from papers.flexreduce.claims import claims, with_evidence
from papers.flexreduce.figures import draw
from papers.flexreduce.measured import COLLECTIVES, LAYOUTS, TRAININGS, TrainingRow
from papers.flexreduce.table import Results, document
from papers.page import Page
from papers.runner import RESULTS
from wirebench.errors import UserError
from wirebench.record import collective_results, recorded
from wirebench.record.notes import NotedRun
from wirebench.topology.rates import parse_rate


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for the runs of the report."""
    where = RESULTS / "flexreduce"
    add = parser.add_argument
    add("--dir", "--cluster", type=Path, default=where, metavar="FOLDER", help="results (results/flexreduce)")
    add("--link", metavar="RATE", help="rate of the links of cells that do not say it")


def pages(options: argparse.Namespace) -> list[Page]:
    """The folder's. A figure of an earlier report that can no longer be made is removed."""
    results = load(options.dir, options.link)
    drawn = draw(results)
    return [Page(options.dir, document(results, findings(options), drawn), drawn.figures)]


def findings(options: argparse.Namespace) -> list[Finding]:
    """The paper's claims beside the folder's."""
    results = load(options.dir, options.link)
    found = claims(results.rows, results.runs)
    return [with_evidence(options.dir, each) if each.here != "-" else each for each in found]


def load(folder: Path, link: str | None) -> Results:
    """Everything that was measured; UserError where a file is damaged, or there is none.

    link  of the cells that do not say it themselves; UserError where none needs it
    """
    files = {layout: folder / "cells" / f"{layout}.jsonl" for layout in LAYOUTS}
    measured = {layout: collective_results.load(file) for layout, file in files.items() if file.exists()}
    for layout, measurement in measured.items():
        if any(cell.layout != layout for cell in measurement.cells):
            raise UserError(f"{files[layout]}: has cells of another layout")
    headers = {layout: measurement.header for layout, measurement in measured.items()}
    if link is not None:
        parse_rate(link)
        if headers and all("link" in header for header in headers.values()):
            raise UserError("--link: every file of cells says already how fast its links were")
        headers = {layout: {"link": link, **header} for layout, header in headers.items()}
    runs, notes = load_runs(folder / TRAININGS)
    if not measured and not runs:
        raise UserError(
            f"{folder}: has neither cells/LAYOUT.jsonl nor runs {TRAININGS}/LAYOUT/COLLECTIVE-TURN; `wirebench study "
            "flexreduce run` first"
        )
    rows = numbers.rows(cell for measurement in measured.values() for cell in measurement.cells)
    return Results(rows, headers, runs, notes)


def load_runs(folder: Path) -> tuple[list[TrainingRow], dict[str, dict[str, Any]]]:
    """Trainings of folder/LAYOUT/COLLECTIVE-TURN, and what is known of how they ran, by layout."""
    runs: list[TrainingRow] = []
    notes: dict[str, dict[str, Any]] = {}
    for layout in LAYOUTS:
        trained = _of_one_link(recorded.directly_below(folder / layout))
        for run in trained:
            name, turn = run.composition, run.turn
            if name not in COLLECTIVES or not turn.isdigit():
                raise UserError(f"{run.folder}: no run of this study; those read COLLECTIVE-TURN: ring-0")
            runs.append(numbers.training(layout, name, int(turn), run.record))
            if layout not in notes:
                notes[layout] = {**_noted(run, trained), **{key: run.has(key) for key in ("engine", "environment")}}
                notes[layout]["backend"] = run.has("environment", "backend")
    return runs, notes


def _of_one_link(runs: Sequence[NotedRun]) -> list[NotedRun]:
    """Those on links of the rate that the last run had: others were measured before, and are none of this table's."""
    last = max(runs, key=lambda run: str(run.has("environment", "utc")), default=None)
    return [run for run in runs if last is not None and run.note.get("link") == last.note.get("link")]


def _noted(run: NotedRun, trained: Sequence[NotedRun]) -> dict[str, Any]:
    """What is known of a layout's trainings, by one of them; nothing where they were started by hand."""
    if "launch" not in run.note:
        return {}
    launch = run.note["launch"].replace(run.folder.name, "NAME-TURN")
    launch = launch.replace(f"collective.name={run.composition}", "collective.name=NAME")
    turns = {each.turn for each in trained}
    return {"link": run.note.get("link"), "turns": len(turns), "launch": launch}
