"""Figures of measured compressors: files that wirebench bench compressors wrote with --json, one figure for each size.

  wirebench bench plot-compressors cells.jsonl --out figures

Bars are copies of the vector, stacked by part; whiskers reach from the 10th to the 90th percentile of the turns. A bar
that is much longer than the others is cut off and says how long it is. On the right, memory beside the gradient.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from wirebench.errors import UserError
from wirebench.record import compressor_results
from wirebench.record.compressor_results import PARTS, CompressorResult, Part
from wirebench.utils.cli import parser_of
from wirebench.utils.figures import save

COLOURS: dict[Part, str] = {
    "update": "#56b4e9",
    "select": "#d55e00",
    "encode": "#e69f00",
    "recover": "#882255",
    "decode": "#009e73",
    "merge": "#cc79a7",
    "other": "#bbbbbb",
}
STATE, TEMPORARY = "#0072b2", "#a6cee3"
LONG = 2.5
"""Bars of more than so many times the length of three quarters of them are cut off."""
SHORT_NAME = 40


def main(arguments: Sequence[str]) -> int:
    """Draw the figures; prints their paths."""
    options = _parser().parse_args(arguments)
    measured = [compressor_results.load(file) for file in options.files]
    notes = {note_of(each.header) for each in measured}
    if len(notes) > 1:
        raise UserError(f"FILES: measured differently: {'; '.join(sorted(notes))}")
    for path in draw([cell for each in measured for cell in each.cells], options.out, notes.pop()):
        print(path)
    return 0


def note_of(header: Mapping[str, Any]) -> str:
    """How it was measured, from the header of its file."""
    threads = header["threads"]
    where = header["device"] or ("1 thread" if threads == 1 else f"{threads} threads")
    density = "each method's own density" if header["density"] is None else f"density {header['density']:g}"
    return f"{header['workers']} workers, {density}, {where}"


def draw(cells: Sequence[CompressorResult], out: Path, note: str) -> list[Path]:
    """Write a figure for each size that has cells; returns their paths. Methods that failed are left out.

    `note` says how they were measured.
    """
    written = []
    for items in sorted({cell.items for cell in cells if not cell.error}):
        chosen = [cell for cell in cells if cell.items == items and not cell.error]
        written.append(save(figure_of(chosen, note), out / f"compressors-{items}.png"))
    return written


def figure_of(cells: Sequence[CompressorResult], note: str = "") -> Figure:
    """Time and memory of the methods at one size, the quickest on top; the copy is a line."""
    shown = sorted((cell for cell in cells if cell.method != "copy"), key=lambda cell: cell.total, reverse=True)
    shown = shown or list(cells)
    figure = Figure(figsize=(9.6, 1.7 + 0.25 * len(shown)), layout="constrained")
    time, memory = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1])
    first = cells[0]
    copy = 1e3 * float(np.median([cell.copy for cell in cells]))
    figure.suptitle(f"{first.model}: {first.items:,} floats, a copy takes {copy:.3g} ms", fontsize=11)
    time.set_title(f"{note}; in italics: for comparison".removeprefix("; "), fontsize=8, loc="left")
    plot_time(time, shown)
    plot_memory(memory, shown)
    time.set_yticks(range(len(shown)), [cell.method[:SHORT_NAME] for cell in shown], fontsize=8)
    for label, cell in zip(time.get_yticklabels(), shown, strict=True):
        label.set_style("italic" if cell.rival else "normal")
    for axes in (time, memory):
        axes.set_axisbelow(True)
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelsize=8)
    both = [axes.get_legend_handles_labels() for axes in (time, memory)]
    handles, labels = both[0][0] + both[1][0], both[0][1] + both[1][1]
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8, frameon=False,
        columnspacing=1.0, handlelength=1.0, handletextpad=0.5,
    )  # fmt: skip
    return figure


def plot_time(axes: Axes, cells: Sequence[CompressorResult]) -> None:
    """Stacked bars of copies, one for each cell from the bottom up, with the total beside them."""
    end = cut_at([cell.total for cell in cells])
    left = np.zeros(len(cells))
    for part in PARTS:
        copies = np.array([cell.copies[part] for cell in cells])
        if copies.any():
            axes.barh(range(len(cells)), copies, left=left, height=0.7, color=COLOURS[part], label=part)
            left += copies
    for place, cell in enumerate(cells):
        low, high = cell.spread
        longer = cell.total > end
        if longer:
            axes.text(end * 1.01, place, number_text(cell.total), va="center", fontsize=8, weight="bold")
            mark_cut(axes, end, place)
        else:
            axes.plot([low, min(high, end)], [place, place], color="black", linewidth=1)
            beside = max(high, cell.total, 1.0) + 0.01 * end  # not across the line of the copy
            axes.text(beside, place, number_text(cell.total), va="center", fontsize=8)
    axes.axvline(1, color="black", linestyle=":", linewidth=1.2, label="a copy")
    axes.set_xlim(0, end)
    axes.set_ylim(-0.6, len(cells) - 0.4)
    axes.set_xlabel("time, copies of the vector", fontsize=9)


def mark_cut(axes: Axes, end: float, place: float) -> None:
    """A gap near the end of a bar that goes on beyond it."""
    axes.plot([end * 0.965, end * 0.98], [place - 0.42, place + 0.42], color="white", linewidth=2.5)


def number_text(copies: float) -> str:
    """Three digits, or two places."""
    return f"{copies:.0f}" if copies >= 100 else f"{copies:.1f}" if copies >= 10 else f"{copies:.2f}"


def cut_at(totals: Sequence[float]) -> float:
    """Where the axis ends: past the longest bar that is not much longer than most."""
    limit = LONG * float(np.quantile(totals, 0.75))
    return 1.12 * max(total for total in totals if total <= limit)


def plot_memory(axes: Axes, cells: Sequence[CompressorResult]) -> None:
    """What is kept, and on top of it what a step takes at its height, as multiples of the vector."""
    held = np.array([cell.multiple(cell.held_bytes) or 0.0 for cell in cells])
    peak = np.array([cell.multiple(cell.peak_bytes) or 0.0 for cell in cells])
    end = cut_at([max(each, 0.01) for each in peak])
    axes.barh(range(len(cells)), held, height=0.7, color=STATE, label="kept")
    axes.barh(range(len(cells)), peak - held, left=held, height=0.7, color=TEMPORARY, label="during a step")
    for place, each in enumerate(peak):
        axes.text(min(each, end) + 0.03 * end, place, f"{each:.1f}", va="center", fontsize=8)
        if each > end:
            mark_cut(axes, end, place)
    axes.set_xlim(0, end)
    axes.set_xlabel("memory, in vectors", fontsize=9)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("bench plot-compressors", __doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="of wirebench bench compressors --json")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the figures go")
    return parser
