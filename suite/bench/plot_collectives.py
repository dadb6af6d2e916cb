"""Figures of measured all-reduces: files that wirebench bench collectives wrote with --json, one per cluster.

  wirebench bench plot-collectives 2+3.jsonl --out figures                 latency and bus bandwidth against size
  wirebench bench plot-collectives 2+2.jsonl 2+3.jsonl --out figures       and latency against learners
  wirebench bench plot-collectives *.jsonl --out figures --size 6000kf --link 100mbit

Lines are medians, bands reach from the 10th to the 90th percentile of the repeats, dashes are the cost model's
prediction. --link draws the least time that any dense all-reduce needs on links of this rate, dotted.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suite.bench.collectives import ITEM_BYTES, parse_size, size_text
from wirebench.errors import UserError
from wirebench.record import collective_results
from wirebench.record.collective_results import AllReduceResult
from wirebench.topology.rates import parse_rate
from wirebench.topology.tree import Topology
from wirebench.utils.cli import parser_of
from wirebench.utils.figures import finish, new_figure, save

STYLES = {
    "ring": ("#0072b2", "o"),
    "native": ("#555555", "s"),
    "flexreduce": ("#d55e00", "D"),
    "blueconnect": ("#009e73", "^"),
    "halving_doubling": ("#cc79a7", "v"),
    "recursive_doubling": ("#56b4e9", "<"),
    "tree": ("#e69f00", ">"),
    "star": ("#8c564b", "P"),
    "hierarchical": ("#7b4fa3", "X"),
}
"""Colour and marker of each collective, in every figure."""
PREDICTED = "predicted"
OTHERS = (("#111111", "*"), ("#999933", "h"), ("#aa4499", "p"), ("#44aa99", "d"))
"""For collectives that users bring."""


def main(arguments: Sequence[str]) -> int:
    """Draw the figures; prints their paths."""
    options = _parser().parse_args(arguments)
    for path in draw(options.files, options.out, options.size, options.link):
        print(path)
    return 0


def draw(files: Sequence[Path], out: Path, size: str | None, link: str | None) -> list[Path]:
    """Write every figure that these files give; returns their paths. `size` and `link` as on the command line."""
    measured = _load(files)
    rate = None if link is None else parse_rate(link)
    if rate is not None and all(dense_limit(results[0], rate) is None for results in measured.values()):
        raise UserError("--link: no file is of more than one machine, so no link is crossed")
    compared = _of_one_size(measured, size)
    written = []
    for stem, results in measured.items():
        written.append(save(latency_against_size(results, rate), out / f"latency-{stem}.png"))
        written.append(save(busbw_against_size(results), out / f"busbw-{stem}.png"))
    if compared:
        written.append(save(latency_against_learners(compared, rate), out / f"learners-{compared[0].items}.png"))
    return written


def dense_limit(cell: AllReduceResult, bits_per_second: float) -> float | None:
    """The least seconds of any dense all-reduce: 2 (M-1)/M of the bytes cross the link of every one of M machines.

    None for a single machine, whose ranks share no link.
    """
    machines = len(Topology.parse(cell.layout).machines)
    return None if machines == 1 else 2 * (machines - 1) / machines * cell.num_bytes * 8 / bits_per_second


def latency_against_size(results: Sequence[AllReduceResult], bits_per_second: float | None = None) -> Figure:
    """Milliseconds over bytes, both logarithmic, one line per collective of one cluster."""
    figure, axes = new_figure(f"all-reduce on {results[0].layout}", "bytes of the sum", "ms")
    for name, line in by_collective(results).items():
        sizes = [cell.num_bytes for cell in line]
        plot_cells(axes, name, sizes, line)
    if bits_per_second is not None:
        plot_limit(axes, results, [cell.num_bytes for cell in results], bits_per_second)
    axes.set_xscale("log")
    axes.set_yscale("log")
    finish(axes)
    return figure


def busbw_against_size(results: Sequence[AllReduceResult]) -> Figure:
    """Bus bandwidth (nccl-tests: 2(P-1)/P of the bytes over time) over bytes of one cluster."""
    figure, axes = new_figure(f"all-reduce on {results[0].layout}", "bytes of the sum", "bus bandwidth, MB/s")
    for name, line in by_collective(results).items():
        colour, marker = style(name)
        sizes = [cell.num_bytes for cell in line]
        axes.plot(sizes, [cell.busbw / 1e6 for cell in line], color=colour, marker=marker, markersize=4, label=name)
        slow = [cell.busbw * cell.median / cell.spread[1] / 1e6 for cell in line]
        fast = [cell.busbw * cell.median / cell.spread[0] / 1e6 for cell in line]
        axes.fill_between(sizes, slow, fast, color=colour, alpha=0.2, linewidth=0)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    finish(axes)
    return figure


def latency_against_learners(chosen: Sequence[AllReduceResult], bits_per_second: float | None = None) -> Figure:
    """Milliseconds over clusters in order of their learners; all cells are of one size."""
    layouts = sorted({(cell.ranks, cell.layout) for cell in chosen})
    place = {layout: number for number, (_, layout) in enumerate(layouts)}
    figure, axes = new_figure(f"all-reduce of {size_text(chosen[0].num_bytes)}", "learners", "ms")
    for name, line in by_collective(chosen).items():
        ordered = sorted(line, key=lambda cell: place[cell.layout])
        plot_cells(axes, name, [place[cell.layout] for cell in ordered], ordered)
    if bits_per_second is not None:
        plot_limit(axes, chosen, [place[cell.layout] for cell in chosen], bits_per_second)
    axes.set_xticks(range(len(layouts)), [f"{ranks}\n{layout}" for ranks, layout in layouts])
    axes.set_ylim(bottom=0)
    finish(axes)
    return figure


def plot_cells(axes: Axes, name: str, places: Sequence[float], line: Sequence[AllReduceResult]) -> None:
    """Median, band and prediction of one collective, in milliseconds at these places."""
    colour, marker = style(name)
    axes.plot(places, [1e3 * cell.median for cell in line], color=colour, marker=marker, markersize=4, label=name)
    low, high = ([1e3 * cell.spread[end] for cell in line] for end in (0, 1))
    axes.fill_between(places, low, high, color=colour, alpha=0.2, linewidth=0)
    priced = [(x, 1e3 * c.predicted_seconds) for x, c in zip(places, line, strict=True) if c.predicted_seconds]
    if priced:
        axes.plot(*zip(*priced, strict=True), color=colour, linestyle="--", linewidth=1)
        if PREDICTED not in axes.get_legend_handles_labels()[1]:
            axes.plot([], [], color="0.3", linestyle="--", linewidth=1, label=PREDICTED)


def plot_limit(axes: Axes, results: Iterable[AllReduceResult], places: Iterable[float], bits_per_second: float) -> None:
    """The dense limit, dotted."""
    limits = {x: dense_limit(cell, bits_per_second) for x, cell in zip(places, results, strict=True)}
    known = sorted((x, 1e3 * seconds) for x, seconds in limits.items() if seconds is not None)
    if known:
        axes.plot(*zip(*known, strict=True), color="black", linestyle=":", label="limit of the links")


def by_collective(results: Iterable[AllReduceResult]) -> dict[str, list[AllReduceResult]]:
    """Cells by collective in the order of STYLES, each by size."""
    lines: dict[str, list[AllReduceResult]] = {}
    for cell in sorted(results, key=lambda cell: (cell.collective, cell.items)):
        lines.setdefault(cell.collective, []).append(cell)
    return {name: lines[name] for name in (*STYLES, *lines) if name in lines}


def style(name: str) -> tuple[str, str]:
    """Colour and marker."""
    return STYLES[name] if name in STYLES else OTHERS[sum(map(ord, name)) % len(OTHERS)]


def _load(files: Sequence[Path]) -> dict[str, tuple[AllReduceResult, ...]]:
    """Cells by the name of their file; UserError for files without cells, of mixed clusters, or of one name."""
    measured = {file.stem: collective_results.load(file).cells for file in files}
    if len(measured) < len(files):
        raise UserError("FILES: two have the same name, so their figures would too")
    for stem, results in measured.items():
        if len({cell.layout for cell in results}) != 1:
            raise UserError(f"{stem}: needs cells of one layout")
    return measured


def _of_one_size(measured: dict[str, tuple[AllReduceResult, ...]], size: str | None) -> list[AllReduceResult]:
    """The cells of every file that are compared against learners; none where there is one file."""
    if len(measured) == 1:
        if size is not None:
            raise UserError("--size: is for the figure against learners, which needs at least 2 files")
        return []
    layouts = [results[0].layout for results in measured.values()]
    if len(set(layouts)) < len(layouts):
        raise UserError(
            f"FILES: two are of one layout ({', '.join(layouts)}), so they share a place among the learners"
        )
    shared = set.intersection(*({cell.items for cell in results} for results in measured.values()))
    if not shared and size is None:
        raise UserError("FILES: no size is in all of them; name one with --size")
    items = max(shared) if size is None else parse_size(size)
    chosen = [cell for results in measured.values() for cell in results if cell.items == items]
    if not chosen:
        raise UserError(f"--size: no file has {size}; all have {', '.join(map(_floats, sorted(shared))) or 'none'}")
    return chosen


def _floats(items: int) -> str:
    return size_text(items * ITEM_BYTES)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("bench plot-collectives", __doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="cells of one cluster")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the figures go")
    parser.add_argument("--size", help="in the figure against learners: 60kf is 60,000 floats (the largest common one)")
    parser.add_argument("--link", metavar="RATE", help="rate of the machines' links, 100mbit: draws the links' limit")
    return parser
