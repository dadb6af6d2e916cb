"""Fit the cost model to measured all-reduces, and write a topology file that predictions are made from.

  wirebench fit CELLS.jsonl --out topology.toml              fit
  wirebench fit OTHER.jsonl --judge topology.toml            how well a file predicts other cells

CELLS is what wirebench bench collectives --json wrote, of one layout. Start-up time (alpha) and rate (1 / beta) are
fitted per level of the topology, the cost of adding (gamma) once; lines are broken where one line does not fit.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from wirebench import cells, topology_file, topology_text
from wirebench.cells import Cell
from wirebench.errors import UserError
from wirebench.fit import TOLERANCE, Fit, fit, judge
from wirebench.topology import Topology


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit or judge."""
    options = parse(arguments)
    measured = cells.load_all([Path(path) for path in options.cells])
    layouts = sorted({cell.layout for cell in measured})
    if len(layouts) != 1:
        raise UserError(f"cells: need one layout, got {', '.join(layouts) or 'no cell at all'}")
    if options.judge:
        topology = topology_file.load(options.judge)
        if topology.layout != layouts[0]:
            raise UserError(f"--judge: {options.judge} is for {topology.layout}, but the cells are of {layouts[0]}")
        try:
            show(judge(topology, measured), measured)
        except ValueError as error:
            raise UserError(f"--judge: {options.judge}: {error}") from error
        return 0
    try:
        found = fit(Topology.parse(layouts[0]), measured)
    except ValueError as error:
        raise UserError(f"cells: {error}") from error
    show(found, measured)
    print(topology_text.draw(found.topology))
    if found.unseen:
        print(f"too fast to be seen in these cells: {', '.join(found.unseen)}; levels count from the machines up")
    if options.out:
        note = f"fitted by wirebench fit to {', '.join(Path(path).name for path in options.cells)}"
        topology_file.save(found.topology, options.out, note, fit=found.numbers)
        print(f"written to {options.out}")
    return 0


def show(found: Fit, measured: Sequence[Cell]) -> None:
    """Residuals, cell by cell, and the summary."""
    shown = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    for head in ("bytes", "collective", "measured ms", "predicted ms", "error"):
        shown.add_column(head, justify="left" if head == "collective" else "right", no_wrap=True)
    for cell, residual in zip(measured, found.residuals, strict=True):
        error = f"{residual:+.1%}" + ("" if abs(residual) <= TOLERANCE else "  *")
        predicted = (1 + residual) * cell.median
        shown.add_row(
            f"{cell.num_bytes:,}", cell.collective, f"{cell.median * 1e3:.3f}", f"{predicted * 1e3:.3f}", error
        )
    Console(width=None if sys.stdout.isatty() else 120).print(shown)
    numbers = found.numbers
    print(
        f"{len(measured)} cells, {found.within:.0%} within {TOLERANCE:.0%}; median error "
        f"{numbers['median_error']:.1%}, largest {numbers['largest_error']:.1%}; R^2 of the logarithms "
        f"{found.r_squared:.4f}"
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="+", help="files of wirebench bench collectives --json")
    parser.add_argument("--out", help="write the topology to this file")
    parser.add_argument("--judge", help="do not fit: compare this topology file with the cells")
    options = parser.parse_args(arguments)
    if options.judge and options.out:
        parser.error("--judge fits nothing that --out could write")
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
