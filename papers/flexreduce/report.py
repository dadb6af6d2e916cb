"""The FlexReduce paper's table and Fig. 4 from what was measured: table.md and fig4a-f.png.

wirebench study flexreduce report                            reads and writes results/flexreduce
wirebench study flexreduce report --cluster FOLDER           of what `run --launch` made on a cluster, into FOLDER
wirebench study flexreduce report --dir FOLDER --link 1gbit  for cells that do not say how fast their links were

The same measurements give the same files. A figure whose measurements are missing is left out, and table.md names
it.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from papers.findings import Finding
from papers.flexreduce import measured as numbers
from papers.flexreduce.claims import claims
from papers.flexreduce.evidence import command, records, rules
from papers.flexreduce.figures import draw
from papers.flexreduce.measured import COLLECTIVES, LAYOUTS, Training
from papers.flexreduce.table import Results, document
from papers.page import Page
from papers.runner import RESULTS
from wirebench.errors import UserError
from wirebench.record import collective_results, notes, schema
from wirebench.topology.rates import parse_rate

CLUSTER = "cluster.json"
"""What all trainings of a layout share: the rate of the links, how many turns there are, how one was started."""


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for the runs of the report."""
    where = RESULTS / "flexreduce"
    add = parser.add_argument
    add("--dir", "--cluster", type=Path, default=where, metavar="FOLDER", help="results (results/flexreduce)")
    add("--link", metavar="RATE", help="rate of the links of cells that do not say it")


def pages(options: argparse.Namespace) -> list[Page]:
    """The folder's. A figure of an earlier report that can no longer be made is removed."""
    results = load(options.dir, options.link)
    figures, captions, left_out = draw(results)
    text = document(results, findings(options), captions, left_out)
    return [Page(options.dir, text, {**figures, **dict.fromkeys(left_out)})]


def findings(options: argparse.Namespace) -> list[Finding]:
    """The paper's claims beside the folder's."""
    results = load(options.dir, options.link)
    found = claims(results.rows, results.runs)
    return [_with_evidence(options.dir, each) if each.here != "-" else each for each in found]


def _with_evidence(folder: Path, found: Finding) -> Finding:
    claim = found.claim
    return replace(found, records=records(folder, claim), rules=rules(folder, claim), command=command(claim))


def committed() -> list[list[str]]:
    """The only one."""
    return [[]]


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
    runs, notes = load_runs(folder / "end_to_end")
    if not measured and not runs:
        raise UserError(
            f"{folder}: has neither cells/LAYOUT.jsonl nor end_to_end/LAYOUT; `wirebench study flexreduce run` first"
        )
    rows = numbers.rows(cell for measurement in measured.values() for cell in measurement.cells)
    return Results(rows, headers, runs, notes)


def load_runs(folder: Path) -> tuple[list[Training], dict[str, dict[str, Any]]]:
    """Trainings of folder/LAYOUT/COLLECTIVE-TURN, and what is known of how they ran, by layout."""
    runs: list[Training] = []
    notes: dict[str, dict[str, Any]] = {}
    for layout in LAYOUTS:
        for path in sorted((folder / layout).glob("[!.]*-*/record.json")):
            name, _, turn = path.parent.name.rpartition("-")
            if name not in COLLECTIVES or not turn.isdigit():
                raise UserError(f"{path.parent}: no folder of this study; those read COLLECTIVE-TURN: ring-0")
            record = schema.read(path)
            runs.append(numbers.training(layout, name, int(turn), record))
            environment = record["environment"]
            known = {"engine": record["engine"], "backend": environment.get("backend"), "environment": environment}
            notes.setdefault(layout, {**_note(folder / layout), **known})
    return runs, notes


def _note(folder: Path) -> dict[str, Any]:
    """What was said of a layout's trainings; nothing where they were started by hand."""
    path = folder / CLUSTER
    return notes.note(path, {}) if path.exists() else {}
