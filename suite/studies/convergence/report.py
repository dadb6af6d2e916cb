"""The table and the curves of accuracy against epochs and bytes: table.md, epochs.png and bytes.png.

wirebench study convergence report                   of results/convergence
wirebench study convergence report --out FOLDER
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from suite.studies.convergence.rows import DENSE, TARGET, Method, history, load, wire_bytes
from suite.studies.convergence.table import document
from suite.studies.page import Page
from suite.studies.runner import RESULTS
from wirebench.errors import UserError

PER_PANEL = 7

Place = Callable[[dict[str, Any]], float | None]
"""Where an entry of the history stands on the horizontal axis."""


def flags(parser: argparse.ArgumentParser) -> None:
    """Whose report."""
    where = RESULTS / "convergence"
    parser.add_argument("--out", type=Path, default=where, metavar="FOLDER", help="of the runs (results/convergence)")


def pages(options: argparse.Namespace) -> list[Page]:
    """The folder's."""
    methods = load(options.out)
    if not methods:
        raise UserError(f"{options.out}: has no METHOD-SEED/method.json; train first")
    return [page(options.out, methods)]


def committed() -> list[list[str]]:
    """The only one."""
    return [[]]


def page(folder: Path, methods: Sequence[Method]) -> Page:
    """The table of these methods and their curves."""
    figures: dict[str, Figure | None] = {
        "epochs.png": curves(methods, "epochs", lambda entry: entry["epoch"] + 1),
        "bytes.png": curves(methods, "bytes that a worker sent, MB", _megabytes, logarithmic=True),
    }
    return Page(folder, document(methods), figures)


def curves(methods: Sequence[Method], across: str, place: Place, logarithmic: bool = False) -> Figure:
    """Accuracy of the first seed of every method, a few to a panel; dense is in all of them."""
    dense = [method for method in methods if method.label == DENSE]
    others = [method for method in methods if method.label != DENSE]
    scaled = logarithmic and any(place(entry) for method in methods for entry in history(method.runs[0]))
    panels = [others[i : i + PER_PANEL] for i in range(0, len(others), PER_PANEL)] or [[]]
    figure = Figure(figsize=(4.2 * len(panels), 4.0), layout="constrained")
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axis, shown in zip(axes, panels, strict=True):
        for method in dense:
            _line(axis, method, place, color="black", linewidth=2)
        for method in shown:
            _line(axis, method, place, linewidth=1.3)
        axis.set_xlabel(across)
        axis.axhline(TARGET, color="0.6", linestyle=":", linewidth=1)
        if scaled:
            axis.set_xscale("log")
            # Over less than a decade or two, powers of ten say little and all minor ticks stand on each other.
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
            axis.xaxis.set_minor_formatter(NullFormatter())
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(fontsize=8, frameon=False, loc="lower right")
    axes[0].set_ylabel("top-1 on the test set")
    return figure


def _line(axis: Axes, method: Method, place: Place, **style: Any) -> None:
    points = [(place(entry), entry["top1"]) for entry in history(method.runs[0])]
    known = [(at, top1) for at, top1 in points if at is not None and top1 is not None]
    axis.plot([at for at, _ in known], [top1 for _, top1 in known], label=method.title, **style)


def _megabytes(entry: dict[str, Any]) -> float | None:
    count = wire_bytes(entry)
    return None if count is None else count / 1e6
