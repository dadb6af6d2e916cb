"""Figures: their common look, and PNG files that are the same for the same figure."""

import io
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from wirebench.errors import UserError
from wirebench.utils.files import write_atomically


def new_figure(title: str, across: str, up: str) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, whose labels are `across` and `up`."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel=across, ylabel=up)
    return figure, axes


def finish(axes: Axes, legend: Literal["best", "upper left"] = "best", columns: int = 1) -> None:
    """Draw the grid and the legend, which has `columns` columns."""
    axes.set_axisbelow(True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc=legend, ncols=columns)


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG that is the same for the same figure; UserError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=150, format="png", metadata={"Software": None})
        write_atomically(path, drawn.getvalue())
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
    return path
