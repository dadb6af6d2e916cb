"""Figures of measured compressors: files that wirebench bench compressors wrote with --json, one figure for each size.

  wirebench bench plot-compressors cells.jsonl --out figures

Bars are copies of the vector, stacked by part; lines reach from the 10th to the 90th percentile of the turns. A bar
that is much longer than the others is cut off and says how long it is. On the right, memory beside the gradient.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wirebench.errors import UserError
from wirebench.figures import colours
from wirebench.figures.bars import Bar, Look, stacked
from wirebench.figures.files import save
from wirebench.figures.provenance import counted, provenance
from wirebench.figures.style import Axis, Figure, grid
from wirebench.record import compressor_results
from wirebench.record.compressor_results import CompressorResult
from wirebench.utils.cli import parser_of

LONG = 2.5
"""Bars longer than this multiple of the third quartile of the lengths are cut off."""
SHORT_NAME = 40
TIMES = "bars: means of the middle half of the turns; lines: 10 % to 90 % of turns"


def main(arguments: Sequence[str]) -> int:
    """Draw the figures; prints their paths."""
    options = _parser().parse_args(arguments)
    measured = [compressor_results.load(file) for file in options.files]
    notes = {note_of(each.header) for each in measured}
    if len(notes) > 1:
        raise UserError(f"FILES: measured differently: {'; '.join(sorted(notes))}")
    where = provenance(each.header["environment"] for each in measured if "environment" in each.header)
    for path in draw([cell for each in measured for cell in each.cells], options.out, notes.pop(), where):
        print(path)
    return 0


def note_of(header: Mapping[str, Any]) -> str:
    """How it was measured, from the header of its file."""
    threads = header["threads"]
    where = header["device"] or ("1 thread" if threads == 1 else f"{threads} threads")
    density = "each method's own density" if header["density"] is None else f"density {header['density']:g}"
    return f"{header['workers']} workers, {density}, {where}"


def draw(cells: Sequence[CompressorResult], out: Path, note: str, where: str = "") -> list[Path]:
    """Write `figures` into a folder; returns their paths."""
    return [save(figure, out / name) for name, figure in figures(cells, note, where).items()]


def figures(cells: Sequence[CompressorResult], note: str, where: str = "") -> dict[str, Figure]:
    """By its file's name, a figure for each size that has cells; methods that failed are left out.

    `note` says how they were measured, `where` on which machines, with which commits.
    """
    whole = [cell for cell in cells if not cell.error]
    of_size = {items: [cell for cell in whole if cell.items == items] for items in sorted({c.items for c in whole})}
    return {f"compressors-{items}.svg": figure_of(chosen, note, where) for items, chosen in of_size.items()}


def figure_of(cells: Sequence[CompressorResult], note: str = "", where: str = "") -> Figure:
    """Time and memory of the methods at one size, the quickest on top; the copy is a line."""
    shown = sorted((cell for cell in cells if cell.method != "copy"), key=lambda cell: cell.total) or list(cells)
    first = cells[0]
    copy = 1e3 * float(np.median([cell.copy for cell in cells]))
    title = f"{first.model}: {first.items:,} floats, a copy takes {copy:.3g} ms"
    turns = counted((cell.turns for cell in shown), "turn")
    said = ["in italics: for comparison"] * any(cell.rival for cell in shown)
    words = "; ".join(filter(None, [note, turns, where, *said]))
    italic = [_name(cell) for cell in shown if cell.rival]
    panels = [stacked(*_time(shown, italic)), stacked(*_memory(shown, italic))]
    return grid(panels, title, words, columns=2, broad=900)


Drawn = tuple[list[Bar], Axis, Look, str, str]
"""Arguments of `stacked`: bars, axis, look, and two texts."""


def _time(cells: Sequence[CompressorResult], italic: Sequence[str]) -> Drawn:
    """Stacked bars of copies, with the total beside them."""
    bars = [
        Bar(
            _name(cell),
            {str(part): length for part, length in cell.copies.items()},
            cell.spread,
            words=number_text(cell.total),
        )
        for cell in cells
    ]
    end = cut_at([cell.total for cell in cells])
    parts = {part: colour for part, colour in colours.PARTS.items() if any(bar.parts[part] for bar in bars)}
    look = Look(parts, line=(1.0, "a copy"), cut=end, italic=italic, spread="turns, 10 % to 90 %", legend_columns=4)
    return bars, Axis("time, copies of the vector", (0.0, end)), look, "Time", TIMES


def _memory(cells: Sequence[CompressorResult], italic: Sequence[str]) -> Drawn:
    """What is kept, and on top of it what a step takes at its height, as multiples of the vector."""
    bars = []
    for cell in cells:
        held, peak = (cell.multiple(count) or 0.0 for count in (cell.held_bytes, cell.peak_bytes))
        parts = dict(zip(colours.MEMORY, (held, peak - held), strict=True))
        bars.append(Bar(_name(cell), parts, words=f"{peak:.1f}"))
    end = cut_at([max(bar.total, 0.01) for bar in bars])
    look = Look(colours.MEMORY, cut=end, italic=italic, width=150, legend_columns=1, beside_line=True)
    return bars, Axis("memory, vectors", (0.0, end)), look, "Memory", "at the height of a step"


def _name(cell: CompressorResult) -> str:
    return cell.method[:SHORT_NAME]


def number_text(copies: float) -> str:
    """Three digits, or two places."""
    return f"{copies:.0f}" if copies >= 100 else f"{copies:.1f}" if copies >= 10 else f"{copies:.2f}"


def cut_at(totals: Sequence[float]) -> float:
    """Where the axis ends: past the longest bar that is not much longer than most."""
    limit = LONG * float(np.quantile(totals, 0.75))
    return 1.12 * max(total for total in totals if total <= limit)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("bench plot-compressors", __doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="of wirebench bench compressors --json")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the figures go")
    return parser
