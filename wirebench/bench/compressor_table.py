"""The table of wirebench bench compressors."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from wirebench.record.compressor_results import PARTS, CompressorResult
from wirebench.utils.console import columns, console

LEAST_SHOWN = 0.005
WIDTH = 180
"""Characters: no number is cut, also where the terminal is narrower."""


def show(cells: Sequence[CompressorResult], title: str, remarks: Mapping[str, str]) -> None:
    """Print one table for each size, and below the last what is to say of methods in it, by name."""
    shown_on = console(WIDTH, markup=False)
    shown_on.width = WIDTH
    for items in dict.fromkeys(cell.items for cell in cells):
        shown_on.print(table([cell for cell in cells if cell.items == items], title))
    shown = {cell.method for cell in cells}
    for method, text in remarks.items():
        if method in shown:
            shown_on.print(f"{method}: {text}")


def table(cells: Sequence[CompressorResult], title: str) -> Table:
    """Cells of one size."""
    first = cells[0]
    copies = [cell.copy for cell in cells if not cell.error]
    copy = f", one copy {1e3 * min(copies):.3g} ms" if copies else ""
    heading = f"{first.model}: {first.items:,} floats in {first.layers} layers; {title}{copy}"
    heads = ("method", *PARTS, "copies", "[p10 - p90]", "least", "ms", "state/d", "peak/d", "bytes")
    shown = columns(heads, left=("method",), gap=1, title=heading, title_justify="left")
    for cell in cells:
        if cell.error:
            shown.add_row(cell.method, "failed")
        else:
            shown.add_row(cell.method, *row(cell))
    return shown


def row(cell: CompressorResult) -> list[str]:
    """All columns but the name."""
    low, high = cell.spread
    parts = cell.copies
    return [
        *(f"{parts[part]:.2f}" if parts[part] >= LEAST_SHOWN else "" for part in PARTS),
        f"{cell.total:.2f}",
        f"[{low:.2f} - {high:.2f}]",
        f"{cell.least:.2f}",
        f"{1e3 * cell.total_seconds:.2f}",
        multiple_text(cell.multiple(cell.state_bytes)),
        multiple_text(cell.multiple(cell.peak_bytes)),
        f"{sum(cell.message_bytes) / cell.turns:,.0f}",
    ]


def multiple_text(multiple: float | None) -> str:
    """A multiple of the vector."""
    return "-" if multiple is None else f"{multiple:.2f}"
