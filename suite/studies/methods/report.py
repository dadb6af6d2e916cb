"""The table and the figure of what was measured of compressors: table.md and steps.png in their runs' folder.

wirebench study methods report results/methods/vgg16
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from suite.studies.findings import Finding
from suite.studies.methods.table import document
from suite.studies.page import Page, tables_below
from suite.studies.rows import DENSE, Row, fastest, load
from suite.studies.runner import RESULTS
from wirebench.utils.figures import new_figure

PARTS = {"compute": "0.75", "compress": "#d95f02", "communication": "#1f78b4"}


def flags(parser: argparse.ArgumentParser) -> None:
    """Whose report."""
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="of the runs of a config")


def pages(options: argparse.Namespace) -> list[Page]:
    """One for each folder."""
    rows = {folder: load(folder) for folder in options.folders}
    return [Page(folder, document(those), {"steps.png": figure(those)}) for folder, those in rows.items()]


def findings(options: argparse.Namespace) -> list[Finding]:
    """None: the gs-SGD paper's claims are those of the study gs_sgd."""
    return []


def committed() -> list[list[str]]:
    """Every model's."""
    return tables_below(RESULTS / "methods")


def figure(rows: Sequence[Row]) -> Figure:
    """A bar for every method: what computes, what compresses, and the communication that is left."""
    rows = [row for row in rows if row.step_seconds is not None]
    drawn, axes = new_figure("", "milliseconds per step", "")
    drawn.set_size_inches(7.5, 0.28 * len(rows) + 1.2)
    computing = min(map(_computing, rows), default=0.0)
    for place, row in enumerate(reversed(rows)):
        start = 0.0
        for (name, colour), seconds in zip(PARTS.items(), _parts(row, computing), strict=True):
            axes.barh(place, 1e3 * seconds, left=start, color=colour, label=name if place == 0 else None)
            start += 1e3 * seconds
    axes.set_yticks(range(len(rows)), [row.title for row in reversed(rows)], fontsize=8)
    dense = fastest(rows, DENSE)
    if dense is not None:
        axes.axvline(1e3 * (dense.step_seconds or 0.0), color="black", linestyle=":", linewidth=1, label=dense.label)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if rows:
        axes.legend(fontsize=8, frameon=False, loc="upper right")
    return drawn


def _computing(row: Row) -> float:
    """Seconds of a step that are neither compression nor the wait for other ranks."""
    return sum(row.median("phases", name) or 0.0 for name in ("data", "forward", "backward", "update"))


def _parts(row: Row, least: float) -> tuple[float, float, float]:
    """Seconds of a step: computing, compressing that was not hidden, and all else.

    least  computing of the methods that show it; DDP waits within the backward pass, so that its own cannot be told
    """
    compress = row.median("phases", "compress")
    computing = least if compress is None else _computing(row)
    compress = min(compress or 0.0, row.median("phases", "exchange_exposed") or 0.0)
    return computing, compress, max((row.step_seconds or 0.0) - computing - compress, 0.0)
