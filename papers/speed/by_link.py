"""What methods gain on links of several rates: folders of runs that differ in nothing but the link."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from papers import trust
from papers.estimate import Estimate
from papers.page import Page
from papers.rows import DENSE, Row, fastest, load, provenance_of, settings, times_faster
from wirebench.figures import colours
from wirebench.figures.curves import Curve, curves
from wirebench.figures.provenance import counted
from wirebench.figures.style import Figure, around, finished
from wirebench.topology.rates import parse_rate
from wirebench.utils.markdown import table

FOLDER, FIGURE = "by_link", "speedups.svg"
Gains = Mapping[str, Mapping[float, Estimate]]
"""By method and Gbit/s: steps per second over dense training's."""


def groups(folders: Sequence[Path]) -> list[list[Path]]:
    """The folders that differ in their link alone, several at a time, each group in the order of rates."""
    found: dict[str, list[tuple[float, Path]]] = {}
    for folder in folders:
        run = load(folder)[0].runs[0]
        shared = {key: value for key, value in settings(run).items() if key != "link"}
        found.setdefault(f"{folder.parent} {sorted(shared.items(), key=str)}", []).append((_gbit(run.note), folder))
    return [[folder for _, folder in sorted(group)] for group in found.values() if len(group) > 1]


def page(folders: Sequence[Path]) -> Page:
    """Return the page of one group."""
    rows = {folder: load(folder) for folder in folders}
    gains = gains_of(rows)
    out = folders[0].parent / FOLDER
    return Page(out, document(rows, gains, out), {FIGURE: figure(rows, gains)})


def gains_of(rows: Mapping[Path, Sequence[Row]]) -> Gains:
    """Gains of all methods except the baselines, in the order of their gain on the slowest link."""
    found: dict[str, dict[float, Estimate]] = {}
    for those in rows.values():
        dense = fastest(those, DENSE)
        for row in those:
            gain = None if dense is None or row.label in DENSE or row.diverged else times_faster(row, dense)
            if gain is not None:
                found.setdefault(row.label, {})[_gbit(row.runs[0].note)] = gain
    return found


def document(rows: Mapping[Path, Sequence[Row]], gains: Gains, out: Path) -> str:
    """The whole file."""
    first = next(iter(rows.values()))[0].runs[0]
    rates = [_gbit(those[0].runs[0].note) for those in rows.values()]
    links = [os.path.relpath(folder, out) for folder in rows]
    steps = {
        _gbit(those[0].runs[0].note): 1e3 * (dense.step_seconds or 0.0)
        for those in rows.values()
        if (dense := fastest(those, DENSE)) is not None
    }
    heads = [f"[{rate:g} Gbit/s]({link}/table.md)" for rate, link in zip(rates, links, strict=True)]
    cells = [
        [name, *(of[rate].words() if rate in of else "-" for rate in rates)] for name, of in gains.items()
    ]  # fmt: skip
    runs = {f"{folder.name}, {row.label}": row.runs for folder, each in rows.items() for row in each}
    lines = [
        f"# What compressing {first.record['config']['model'].get('trace', 'a model')} gains, by link",
        "",
        f"Steps per second over those of dense training on the same links, with the 95 % interval over turns. "
        f"{first.record['parameters']:,} parameters, {first.record['world_size']} workers on emulated hosts of one "
        f"{first.machine}, computing replayed. The workers compress on cores that they share, as on a slow machine.",
        "",
        f"![speed-up by link]({FIGURE})",
        "",
        *table(["method", *heads], [["dense, ms a step", *(f"{steps[rate]:.0f}" for rate in rates)], *cells]),
        *trust.note(runs, "turns"),
    ]
    return "\n".join(lines).rstrip() + "\n"


def figure(rows: Mapping[Path, Sequence[Row]], gains: Gains) -> Figure:
    """A curve for each method over the rate of the links; dense training is 1."""
    rates = sorted({rate for of in gains.values() for rate in of})
    lines = [Curve("dense", colours.INK, rates, [1.0] * len(rates))]
    palette = (colours.BLUE, colours.GREEN, colours.VERMILLION, colours.PINK, colours.ORANGE, colours.PURPLE)
    for (name, of), colour in zip(gains.items(), palette, strict=False):
        at = sorted(of)
        ends = [of[rate].ends for rate in at]
        lines.append(
            Curve(
                name, colour, at, [of[rate].value for rate in at], [max(low, 0.01) for low, _ in ends],
                [min(high, 1000.0) for _, high in ends],
            )
        )  # fmt: skip
    heights = [value for line in lines for value in (*line.up, *line.low, *line.high)]
    across = around("links, Gbit/s", rates, log=True, values=rates)
    up = around("steps per second over dense training's", heights, log=True)
    runs = [run for those in rows.values() for row in those for run in row.runs]
    turns = counted((len(row.runs) for those in rows.values() for row in those), "turn")
    first = runs[0]
    note = (
        f"{first.record['config']['model'].get('trace')}, {first.record['world_size']} emulated hosts, {turns}; bands: "
        f"95 % intervals. {provenance_of(runs)}."
    )
    return finished(curves(lines, across, up, "What compression gains, by link", note, height=260))


def _gbit(note: Mapping[str, object]) -> float:
    return parse_rate(str(note["link"])) / 1e9
