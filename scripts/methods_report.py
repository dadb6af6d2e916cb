#!/usr/bin/env python3
"""The table and the figure of what scripts/bench_methods.py measured: table.md and steps.png in its folder.

python scripts/methods_report.py results/methods/vgg16
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from matplotlib.figure import Figure

from scripts._methods_rows import DENSE, Row, fastest, load
from scripts._methods_table import document
from wirebench.errors import UserError
from wirebench.utils import markdown as markers
from wirebench.utils.cli import parser_of
from wirebench.utils.figures import new_figure, save

PARTS = {"compute": "0.75", "compress": "#d95f02", "communication": "#1f78b4"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0, or 2 with one line on standard error."""
    try:
        options = _parser().parse_args(arguments)
        rows = load(options.folder)
        markers.write(options.folder / "table.md", document(rows))
        save(figure(rows), options.folder / "steps.png")
    except UserError as error:
        print(f"methods_report.py: {error}", file=sys.stderr)
        return error.exit_code
    print(options.folder / "table.md")
    return 0


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


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(Path(__file__).stem, __doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="what bench_methods.py --out named")
    return parser


if __name__ == "__main__":
    sys.exit(main())
