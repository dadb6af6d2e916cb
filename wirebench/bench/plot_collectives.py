"""Figures of measured all-reduces: files that wirebench bench collectives wrote with --json, one per cluster.

  wirebench bench plot-collectives 2+3.jsonl --out figures                 latency and bus bandwidth against size
  wirebench bench plot-collectives 2+2.jsonl 2+3.jsonl --out figures       and latency against learners
  wirebench bench plot-collectives *.jsonl --out figures --size 6000kf --link 100mbit

Lines are medians, bands reach from the 10th to the 90th percentile of the repeats, dashes are the cost model's
prediction. --link draws the least time that any dense all-reduce needs on links of this rate, dotted. Every wire format
has figures of its own, with its name at the end of the file's.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from wirebench.bench.collectives import parse_size, size_text
from wirebench.compressors.bits.coded import code_of
from wirebench.errors import UserError
from wirebench.figures import colours
from wirebench.figures.curves import Curve, curves
from wirebench.figures.files import save
from wirebench.figures.provenance import counted, provenance
from wirebench.figures.style import Axis, Figure, around, finished
from wirebench.gradient.flat import FLOAT_BYTES
from wirebench.record import collective_results
from wirebench.record.cells import Measurement
from wirebench.record.collective_results import AllReduceResult
from wirebench.topology.rates import parse_rate
from wirebench.topology.tree import Topology
from wirebench.utils.cli import parser_of

BYTES, LATENCY, BUSBW = "size of the sum, bytes", "time of an all-reduce, ms", "bus bandwidth, MB/s"
LIMIT = "limit of the links"
HEIGHT = 300
"""Nine collectives have their names at the ends of their curves."""


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
    if rate is not None and all(dense_limit(each.cells[0], rate) is None for each in measured.values()):
        raise UserError("--link: no file is of more than one machine, so no link is crossed")
    compared, left_out = _compared({stem: each.cells for stem, each in measured.items()}, size)
    for wire, why in left_out.items():
        named = wire or "fp32 without a wire format"
        print(f"wirebench bench plot-collectives: no figure against learners in {named}: {why}", file=sys.stderr)
    written = []
    for stem, each in measured.items():
        written += [save(figure, out / name) for name, figure in figures(stem, each, rate).items()]
    where = provenance(each.header["environment"] for each in measured.values() if "environment" in each.header)
    for wire, cells in compared.items():
        name = _named(f"learners-{cells[0].items}", wire)
        written.append(save(latency_against_learners(cells, rate, where), out / name))
    return written


def figures(
    stem: str, measured: Measurement[AllReduceResult], bits_per_second: float | None = None
) -> dict[str, Figure]:
    """The figures of one measured file, by the names of their image files; `stem`: the measured file's name."""
    where = provenance([measured.header["environment"]] if "environment" in measured.header else [])
    found: dict[str, Figure] = {}
    for wire, cells in by_wire(measured.cells).items():
        found[_named(f"latency-{stem}", wire)] = latency_against_size(cells, bits_per_second, where)
        found[_named(f"busbw-{stem}", wire)] = busbw_against_size(cells, where)
    return found


def dense_limit(cell: AllReduceResult, bits_per_second: float) -> float | None:
    """The least seconds of any dense all-reduce: 2 (M-1)/M of the bytes cross the link of every one of M machines.

    Bytes are counted in the cell's wire format. None for a single machine, whose ranks share no link.
    """
    machines, code = len(Topology.parse(cell.layout).machines), code_of(cell.wire, "wire")
    sent = cell.num_bytes if code is None else code.num_bytes(-(-cell.items // code.unit) * code.unit)
    return None if machines == 1 else 2 * (machines - 1) / machines * sent * 8 / bits_per_second


def latency_against_size(
    results: Sequence[AllReduceResult], bits_per_second: float | None = None, where: str = ""
) -> Figure:
    """Milliseconds over bytes, both logarithmic, one line per collective of one cluster.

    where  the machines and the commits
    """
    lines = [line for name, mine in by_collective(results).items()
             for line in latencies(name, [cell.num_bytes for cell in mine], mine)]  # fmt: skip
    shown = [value for line in lines for value in (*line.up, *line.high)]
    lines += limit([cell.num_bytes for cell in results], results, bits_per_second)
    return _finished(lines, _bytes(results), around(LATENCY, shown, log=True), results, where, _on(results))


def busbw_against_size(results: Sequence[AllReduceResult], where: str = "") -> Figure:
    """Bus bandwidth (nccl-tests: 2(P-1)/P of the bytes over time) over bytes of one cluster."""
    lines = []
    for name, mine in by_collective(results).items():
        colour, shape = colours.collective(name)
        slow, fast = ([cell.busbw * cell.median / cell.spread[end] / 1e6 for cell in mine] for end in (1, 0))
        sizes, rates = [cell.num_bytes for cell in mine], [cell.busbw / 1e6 for cell in mine]
        lines.append(Curve(name, colour, sizes, rates, slow, fast, shape=shape))
    up = around(BUSBW, [0.0, *(value for line in lines for value in line.high)])
    return _finished(lines, _bytes(results), up, results, where, _on(results))


def latency_against_learners(
    chosen: Sequence[AllReduceResult], bits_per_second: float | None = None, where: str = ""
) -> Figure:
    """Milliseconds over clusters in order of their learners; all cells are of one size."""
    layouts = sorted({(cell.ranks, cell.layout) for cell in chosen})
    place = {layout: f"{ranks}\n{layout}" for ranks, layout in layouts}
    lines = []
    for name, mine in by_collective(chosen).items():
        ordered = sorted(mine, key=lambda cell: list(place).index(cell.layout))
        lines += latencies(name, [place[cell.layout] for cell in ordered], ordered)
    ordered = sorted(chosen, key=lambda cell: list(place).index(cell.layout))
    lines += limit([place[cell.layout] for cell in ordered], ordered, bits_per_second)
    up = around(LATENCY, [0.0, *(value for line in lines for value in (*line.up, *line.high))])
    across = Axis("learners, and how they lie on machines", names=list(place.values()))
    return _finished(lines, across, up, chosen, where, f"All-reduce of {size_text(chosen[0].num_bytes)}{_in(chosen)}")


def latencies(name: str, places: Sequence[float | str], line: Sequence[AllReduceResult]) -> list[Curve]:
    """Median, band and prediction of one collective, in milliseconds at these places."""
    colour, shape = colours.collective(name)
    low, high = ([1e3 * cell.spread[end] for cell in line] for end in (0, 1))
    found = [Curve(name, colour, places, [1e3 * cell.median for cell in line], low, high, shape=shape)]
    priced = [(x, 1e3 * c.predicted_seconds) for x, c in zip(places, line, strict=True) if c.predicted_seconds]
    if priced:
        across, up = zip(*priced, strict=True)
        said = f"{name}, predicted"
        found.append(Curve(said, colour, across, up, dash=(4, 3), points=False, label="", width=1.0))
    return found


def limit(
    places: Sequence[float | str], results: Iterable[AllReduceResult], bits_per_second: float | None
) -> list[Curve]:
    """The dense limit, dotted; none without a rate, or where no link is crossed."""
    limits = {} if bits_per_second is None else {
        x: dense_limit(cell, bits_per_second) for x, cell in zip(places, results, strict=True)
    }  # fmt: skip
    known = [(x, 1e3 * seconds) for x, seconds in limits.items() if seconds is not None]
    if not known:
        return []
    ordered = known if isinstance(known[0][0], str) else sorted(known)
    across, up = zip(*ordered, strict=True)
    return [Curve(LIMIT, colours.INK, across, up, dash=(1, 3), points=False)]


def _bytes(results: Sequence[AllReduceResult]) -> Axis:
    return around(BYTES, [cell.num_bytes for cell in results], log=True, format="~s")


def _on(results: Sequence[AllReduceResult]) -> str:
    return f"All-reduce on {results[0].layout}, {results[0].ranks} ranks{_in(results)}"


def _in(results: Sequence[AllReduceResult]) -> str:
    return f", in {results[0].wire}" if results[0].wire else ""


def _named(name: str, wire: str) -> str:
    return f"{name}-{wire}.svg" if wire else f"{name}.svg"


def _finished(
    lines: Sequence[Curve], across: Axis, up: Axis, results: Sequence[AllReduceResult], where: str, title: str
) -> Figure:
    repeats = counted((len(cell.seconds) for cell in results), "repeat")
    dashed = "; dashed: predicted by the cost model" if any(line.label == "" for line in lines) else ""
    note = f"Medians of {repeats}, bands from the 10th to the 90th percentile{dashed}. {where}".strip()
    return finished(curves(lines, across, up, title, note, height=HEIGHT))


def by_collective(results: Iterable[AllReduceResult]) -> dict[str, list[AllReduceResult]]:
    """Cells by collective in the order of the table of colours, each by size."""
    lines: dict[str, list[AllReduceResult]] = {}
    for cell in sorted(results, key=lambda cell: (cell.collective, cell.items)):
        lines.setdefault(cell.collective, []).append(cell)
    return {name: lines[name] for name in (*colours.COLLECTIVES, *lines) if name in lines}


def by_wire(results: Iterable[AllReduceResult]) -> dict[str, tuple[AllReduceResult, ...]]:
    """Cells by wire format, in the order in which they were measured."""
    formats: dict[str, list[AllReduceResult]] = {}
    for cell in results:
        formats.setdefault(cell.wire, []).append(cell)
    return {wire: tuple(cells) for wire, cells in formats.items()}


def _load(files: Sequence[Path]) -> dict[str, Measurement[AllReduceResult]]:
    """What was measured by the name of its file; UserError for one without cells, of mixed clusters, or named twice."""
    measured = {file.stem: collective_results.load(file) for file in files}
    if len(measured) < len(files):
        raise UserError("FILES: two have the same name, so their figures would too")
    for stem, each in measured.items():
        if len({cell.layout for cell in each.cells}) != 1:
            raise UserError(f"{stem}: needs cells of one layout")
    return measured


def _compared(
    measured: dict[str, tuple[AllReduceResult, ...]], size: str | None
) -> tuple[dict[str, list[AllReduceResult]], dict[str, str]]:
    """By wire format, the cells of `_of_one_size`; and of formats that have none, why.

    A format of which only one of several files has cells is in neither. Raises UserError where all have a reason.
    """
    formats: dict[str, dict[str, tuple[AllReduceResult, ...]]] = {}
    for stem, cells in measured.items():
        for wire, mine in by_wire(cells).items():
            formats.setdefault(wire, {})[stem] = mine
    shared = {wire: each for wire, each in formats.items() if len(each) > 1 or len(measured) == 1}
    if size is not None and not shared:
        raise UserError("--size: no two files have a wire format in common, so none is drawn against learners")
    found: dict[str, list[AllReduceResult]] = {}
    refused: dict[str, UserError] = {}
    for wire, each in shared.items():
        try:
            found[wire] = _of_one_size(each, size)
        except UserError as error:
            refused[wire] = error
    if refused and not found:
        raise next(iter(refused.values()))
    return {wire: cells for wire, cells in found.items() if cells}, {wire: str(why) for wire, why in refused.items()}


def _of_one_size(measured: dict[str, tuple[AllReduceResult, ...]], size: str | None) -> list[AllReduceResult]:
    """The cells of one size, one per file, for the figure against learners; none if there is only one file."""
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
    return size_text(items * FLOAT_BYTES)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("bench plot-collectives", __doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="cells of one cluster")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the figures go")
    parser.add_argument("--size", help="in the figure against learners: 60kf is 60,000 floats (the largest common one)")
    parser.add_argument("--link", metavar="RATE", help="rate of the machines' links, 100mbit: draws the links' limit")
    return parser
