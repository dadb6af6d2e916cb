"""The cost model fitted to measured all-reduces, or judged by them, and how well it fits."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from wirebench.costmodel.fit import TOLERANCE, Fit, fit, judge
from wirebench.errors import UserError
from wirebench.record import collective_results
from wirebench.record.collective_results import AllReduceResult
from wirebench.topology import topology_file
from wirebench.topology.processor import IDLE, Processor
from wirebench.topology.tree import Topology
from wirebench.utils.console import columns, console

WIDTH = 120
"""Columns of the table in a file or a pipe."""


def load(paths: Sequence[Path]) -> list[AllReduceResult]:
    """The cells of these files without a wire format, whose coding no link explains; UserError unless of one layout."""
    measured = [cell for cell in collective_results.load_all(paths) if not cell.wire]
    layouts = sorted({cell.layout for cell in measured})
    if len(layouts) != 1:
        raise UserError(f"cells: need one layout, got {', '.join(layouts) or 'no cell at all'}")
    return measured


def judged(path: str, measured: Sequence[AllReduceResult]) -> Fit:
    """How well the topology file predicts the cells; UserError for one of another layout, or without speeds."""
    topology = topology_file.load(path)
    if topology.layout != measured[0].layout:
        raise UserError(f"--judge: {path} is for {topology.layout}, but the cells are of {measured[0].layout}")
    try:
        return judge(topology, measured)
    except ValueError as error:
        raise UserError(f"--judge: {path}: {error}") from error


def fitted(measured: Sequence[AllReduceResult], processor: Processor = IDLE) -> Fit:
    """The speeds that the cells show; UserError for cells that show none.

    processor  what messages are known to cost processors: the links are given only what is left of the cells' seconds
    """
    try:
        return fit(replace(Topology.parse(measured[0].layout), processor=processor), measured)
    except ValueError as error:
        raise UserError(f"cells: {error}") from error


def show(fit: Fit, measured: Sequence[AllReduceResult]) -> None:
    """Residuals, cell by cell, and the summary."""
    shown = columns(("bytes", "collective", "measured ms", "predicted ms", "error"), left=("collective",))
    for cell, residual in zip(measured, fit.residuals, strict=True):
        error = f"{residual:+.1%}" + ("" if abs(residual) <= TOLERANCE else "  *")
        predicted = (1 + residual) * cell.median
        shown.add_row(
            f"{cell.num_bytes:,}", cell.collective, f"{cell.median * 1e3:.3f}", f"{predicted * 1e3:.3f}", error
        )
    console(WIDTH).print(shown)
    numbers = fit.numbers
    print(
        f"{len(measured)} cells, {fit.within:.0%} within {TOLERANCE:.0%}; median error "
        f"{numbers['median_error']:.1%}, largest {numbers['largest_error']:.1%}; R^2 of the logarithms "
        f"{fit.r_squared:.4f}"
    )
