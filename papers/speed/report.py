"""Tables and figures of what was measured on emulated hosts: every compressor, local steps, and plain DDP's buckets.

wirebench study speed report                               of results/methods/*, today/speed and ddp_caps/*
wirebench study speed report results/methods/vgg16         of a folder of runs
wirebench study speed report FOLDER/vgg16-*gbit            of several, with by_link beside them
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from papers.findings import Finding
from papers.page import Page, tables_below
from papers.rows import DENSE, NEEDS, Row, cluster, fastest, load, provenance_of
from papers.runner import RESULTS
from papers.speed import buckets, by_link, waiting
from papers.speed.parts import DDP_CAPS, LOCAL_STEPS
from papers.speed.table import document
from wirebench.figures import colours
from wirebench.figures.bars import Bar, Look, stacked
from wirebench.figures.provenance import counted
from wirebench.figures.style import Figure, around, finished
from wirebench.record import recorded

LOCAL = {RESULTS / part.folder for part in LOCAL_STEPS.values()}
"""Where the local steps' runs are."""
MERGED = [RESULTS / part.folder for part in DDP_CAPS.values()]
"""Where the runs of plain DDP with the planner's buckets are."""
FIRST = RESULTS / "methods" / "resnet20"
"""Whose table the study's finding leads."""


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for the runs of the report."""
    parser.add_argument("folders", type=Path, nargs="*", metavar="FOLDER", help="of the runs of a part (all)")


def pages(options: argparse.Namespace) -> list[Page]:
    """One for each folder, and one for several that differ in the rate of their links."""
    folders = _folders(options)
    rows = {folder: load(folder) for folder in folders if not _is_local(folder)}
    merged = [buckets.page(folder, those) for folder, those in rows.items() if buckets.is_of(those)]
    rows = {folder: those for folder, those in rows.items() if not buckets.is_of(those)}
    own = [Page(folder, document(those), {"steps.svg": figure(those)}) for folder, those in rows.items()]
    local = map(waiting.page, filter(_is_local, folders))
    made = [*own, *map(by_link.page, by_link.groups(list(rows))), *local, *merged]
    return [replace(page, leads=page.folder.resolve() == FIRST) for page in made]


def findings(options: argparse.Namespace) -> list[Finding]:
    """The claims about local steps; the gs-SGD paper's belong to the study gs_sgd."""
    return [each for folder in filter(_is_local, _folders(options)) for each in waiting.findings(waiting.load(folder))]


def _folders(options: argparse.Namespace) -> list[Path]:
    if options.folders:
        return list(options.folders)
    found = [Path(folder) for [folder] in tables_below(RESULTS / "methods")]
    more = [*(each for each in LOCAL if waiting.load(each)), *(each for each in MERGED if recorded.noted(each, NEEDS))]
    return [*(each for each in found if each.name != by_link.FOLDER), *more]


def _is_local(folder: Path) -> bool:
    return folder.name in {each.name for each in LOCAL}


def figure(rows: Sequence[Row]) -> Figure:
    """A bar for every method: what computes, what compresses, and the communication that is left."""
    timed = [row for row in rows if row.step_seconds is not None]
    computing = min((row.computing or 0.0 for row in timed), default=0.0)
    bars = [
        Bar(
            row.title, dict(zip(colours.STEP, (1e3 * part for part in _parts(row, computing)), strict=True)),
            row.spread_ms, words=f"{1e3 * (row.step_seconds or 0.0):.0f}",
        )
        for row in timed
    ]  # fmt: skip
    dense = fastest(timed, DENSE)
    line = None if dense is None else (1e3 * (dense.step_seconds or 0.0), dense.label)
    across = around("time per step, ms", [0.0, *(bar.end for bar in bars)])
    look = Look(colours.STEP, line=line, spread="steps, 10 % to 90 %", legend_columns=1)
    return finished(stacked(bars, across, look, f"Compressors, time per step: {cluster(rows)}", _note(rows)))


def _note(rows: Sequence[Row]) -> str:
    runs = [run for row in rows for run in row.runs]
    turns = counted((len(row.runs) for row in rows), "turn")
    return f"Bars: medians of {turns}; lines: 10 % to 90 % of all steps. {provenance_of(runs)}."


def _parts(row: Row, least: float) -> tuple[float, float, float]:
    """Seconds of a step: computing, compressing that was not hidden, and all else.

    least  computing of the methods that show it; DDP waits within the backward pass, which hides its own
    """
    compress = row.median("phases", "compress")
    computing = least if compress is None else row.computing or 0.0
    compress = min(compress or 0.0, row.median("phases", "exchange_exposed") or 0.0)
    return computing, compress, max((row.step_seconds or 0.0) - computing - compress, 0.0)
