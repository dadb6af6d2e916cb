"""The paper's Fig. 4 (a) to (f) from what was measured."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from papers.flexreduce import measured
from papers.flexreduce.measured import COLLECTIVES, LAYOUTS, PUBLISHED, Latencies, TrainingRow
from papers.flexreduce.table import LABELS, Results
from papers.page import Drawn
from wirebench.figures import colours, style
from wirebench.figures.curves import Curve, curves
from wirebench.figures.provenance import counted, provenance
from wirebench.figures.style import (
    HEIGHT,
    LETTER,
    LINES,
    Axis,
    Figure,
    Panel,
    alt,
    around,
    finished,
    layered,
    rows,
    titled,
)
from wirebench.topology.rates import parse_rate

LINES_AT: Mapping[str, str] = PUBLISHED.tables["layouts"]["lines"]
LEARNERS, LATENCY = "learners, and how they lie on machines", "time of an all-reduce, ms"
IDEAL, IDEAL_NAME = "ideal", "ideal: the ring's time without the bytes that can be saved"
WIDTH = 360
"""Nine layouts side by side."""


def draw(results: Results) -> Drawn:
    """The figures with their captions, and the reasons for those that cannot be made."""
    small, largest, drawn = measured.SMALL_ITEMS, measured.main_items(results.rows), Drawn()
    drawn.add("fig4a.svg", f"Latency of {small:,} floats", over_learners(results, small))
    beyond = f"no all-reduce of more than {small:,} floats was measured"
    of_largest = over_learners(results, largest) if largest > small else beyond
    drawn.add("fig4b.svg", f"Latency of {largest:,} floats", of_largest)
    drawn.add("fig4c.svg", "Reduce calls per learner", calls_figure())
    for name, layout in ((name, LINES_AT[name]) for name in ("fig4d", "fig4e")):
        drawn.add(f"{name}.svg", f"Latency on {layout}", over_items(results, layout))
    drawn.add("fig4f.svg", "Time per epoch", epochs_figure(results))
    return drawn


def over_learners(results: Results, items: int) -> Figure | str:
    """Fig. 4 (a), (b): milliseconds over learners, one line per collective, bars from the 10th to 90th percentile.

    Lines break between 2 and 3 machines. Without a measurement of this size: the reason.
    """
    chosen = [row for row in results.rows if row.items == items]
    if not chosen:
        return f"no all-reduce of {items:,} floats was measured"
    lines = []
    for name in COLLECTIVES:
        groups = _by_machines([row for row in chosen if name in row.cells])
        for group in groups:
            lines.append(_latencies(name, group, [_place(row.layout) for row in group], named=group is groups[-1]))
    groups = _by_machines([row for row in chosen if "ring" in row.cells])
    for group in groups:
        lines.append(_ideal(group, [_place(row.layout) for row in group], named=group is groups[-1]))
    across = Axis(LEARNERS, names=[_place(row.layout) for row in chosen])
    up = around(LATENCY, [0.0, *_heights(lines)])
    return _finished(results, chosen, lines, across, up, f"All-reduce of {items:,} floats", _of_ideal(chosen))


def over_items(results: Results, layout: str) -> Figure | str:
    """Fig. 4 (d), (e): milliseconds over items on one layout, both logarithmic; without measurements, the reason."""
    chosen = [row for row in results.rows if row.layout == layout]
    if not chosen:
        return f"no all-reduce on {layout} was measured"
    lines = []
    for name in COLLECTIVES:
        mine = [row for row in chosen if name in row.cells]
        if mine:
            lines.append(_latencies(name, mine, [row.items for row in mine]))
    ideals = [row for row in chosen if "ring" in row.cells]
    if ideals:
        lines.append(_ideal(ideals, [row.items for row in ideals]))
    across = around("size of the sum, floats", [row.items for row in chosen], log=True, format="~s")
    up = around(LATENCY, _heights(lines), log=True)
    title = f"All-reduce on {layout}, {chosen[0].topology.size} learners"
    return _finished(results, chosen, lines, across, up, title, _of_ideal(chosen))


def calls_figure() -> Figure:
    """Fig. 4 (c): reduce calls into a learner, from the plans."""
    counts = {layout: measured.count_calls(layout) for layout in LAYOUTS}
    colour = colours.collective("flexreduce")[0]
    known: tuple[tuple[str, str, Sequence[int], Callable[[measured.Calls], float]], ...] = (
        ("mean over levels", colour, (1, 0), lambda count: count.mean),
        ("most of one learner", colours.INK, (1, 0), lambda count: count.most),
        ("upper bound (Eq. 12)", colours.GREY, (2, 3), lambda count: count.bound),
    )
    lines = []
    for name, tone, dash, of in known:
        for machines in (2, 3):
            those = [layout for layout in LAYOUTS if layout.count("+") == machines - 1]
            heights = [float(of(counts[layout])) for layout in those]
            label = name if machines == 3 else ""
            lines.append(Curve(name, tone, [_place(layout) for layout in those], heights, dash=dash, label=label))
    across = Axis(LEARNERS, names=[_place(layout) for layout in LAYOUTS])
    note = f"Counted in the plans of {measured.COUNTED_ITEMS:,} floats; nothing is measured."
    up = Axis("reduce calls into one learner", (0.0, 4.5), values=range(5))
    return finished(curves(lines, across, up, "FlexReduce's reduce calls", note, width=WIDTH))


def epochs_figure(results: Results) -> Figure | str:
    """Fig. 4 (f): minutes per epoch by layout, a dot for every turn; without a training, the reason."""
    runs = results.runs
    layouts = [layout for layout in LAYOUTS if any(run.layout == layout for run in runs)]
    if not layouts:
        return "no training was measured"
    groups = {
        _place(layout): {LABELS[name]: _minutes(runs, layout, name) for name in COLLECTIVES} for layout in layouts
    }
    series = {LABELS[name]: colours.collective(name)[0] for name in COLLECTIVES}
    up = around("time per epoch, minutes", [0.0, *(run.epoch_seconds / 60 for run in runs)])
    turns = counted((len(minutes) for group in groups.values() for minutes in group.values() if minutes), "turn")
    note = (
        f"Medians of {turns}, a dot for each; median step times {measured.EPOCH_IMAGES:,} images over the batch; "
        f"{_where(results.notes, layouts)}"
    )
    return finished(_grouped(groups, series, up, "ResNet-18: time per epoch", note))


def _grouped(
    groups: Mapping[str, Mapping[str, Sequence[float]]], series: Mapping[str, str], up: Axis, title: str, note: str
) -> Panel:
    """Upright bars side by side in groups: a series' median in each, and a dot for every value; as broad as it needs.

    groups  the values by group and series; series: its colours, by name
    """
    every = [(group, name, values) for group, those in groups.items() for name, values in those.items() if values]
    bars = [{"group": group, "series": name, "y": statistics.median(values)} for group, name, values in every]
    dots = [{"group": group, "series": name, "y": value} for group, name, values in every for value in values]
    axis = alt.Axis(labelAngle=0, labelExpr=LINES, labelLineHeight=12)
    x = alt.X("group:N", title=LEARNERS, sort=list(groups), axis=axis)
    offset = alt.XOffset("series:N", scale=alt.Scale(domain=list(series)))
    scale = alt.Scale(domain=list(series), range=list(series.values()))
    legend = alt.Legend(title=None, symbolType="square", columns=2)
    tips = [alt.Tooltip("group:N", title=LEARNERS), alt.Tooltip("series:N", title=" "), up.tooltip("y")]
    layers = [
        alt.Chart(rows(bars)).mark_bar().encode(
            x=x, xOffset=offset, y=up.y("y"), color=alt.Color("series:N", scale=scale, legend=legend), tooltip=tips
        ),
        alt.Chart(rows(dots)).mark_point(filled=True, size=18, opacity=1, color=colours.INK).encode(
            x=x, xOffset=offset, y=up.y("y"), tooltip=tips
        ),
    ]  # fmt: skip
    width = min(30 * len(series) * len(groups) + 40, 2 * style.WIDTH)
    return titled(layered(layers, width, HEIGHT), title, note, max(width, 0.75 * style.WIDTH) + 6 * LETTER)


def _minutes(runs: Iterable[TrainingRow], layout: str, name: str) -> list[float]:
    return [run.epoch_seconds / 60 for run in runs if (run.layout, run.collective) == (layout, name)]


def _place(layout: str) -> str:
    """A layout's name on the axis: its learners, and where they are."""
    return f"{sum(map(int, layout.split('+')))}\n{layout}"


def _by_machines(rows: Sequence[Latencies]) -> list[list[Latencies]]:
    """Rows of 2 machines, then of 3; groups without rows are left out."""
    groups = [[row for row in rows if len(row.topology.machines) == machines] for machines in (2, 3)]
    return [group for group in groups if group]


def _latencies(name: str, rows: Sequence[Latencies], across: Sequence[float | str], named: bool = True) -> Curve:
    """Medians of a collective, and the 10th and 90th percentile of its repeats."""
    colour, shape = colours.collective(name)
    cells = [row.cells[name] for row in rows]
    low, high = ([1e3 * cell.spread[end] for cell in cells] for end in (0, 1))
    middles = [1e3 * cell.median for cell in cells]
    return Curve(LABELS[name], colour, across, middles, low, high, shape=shape, label=None if named else "")


def _ideal(rows: Sequence[Latencies], across: Sequence[float | str], named: bool = True) -> Curve:
    ideals = [1e3 * row.cells["ring"].median * (1 - row.ideal) for row in rows]
    return Curve(IDEAL, colours.INK, across, ideals, dash=(4, 3), points=False, label=None if named else "")


def _heights(lines: Sequence[Curve]) -> list[float]:
    return [value for line in lines for value in (*line.up, *line.high)]


def _of_ideal(rows: Sequence[Latencies]) -> str:
    """What the ideal is, and why FlexReduce may be faster than that."""
    said = f"Dashed, {IDEAL_NAME}."
    below = [row for row in rows if row.of_ideal_speed and row.of_ideal_speed.value > 1.05]
    if not below:
        return said
    rounds = {name: [row.cells[name].rounds for row in below] for name in ("ring", "flexreduce")}
    return (
        f"{said} It includes the ring's waits between its {min(rounds['ring'])} to {max(rounds['ring'])} rounds; "
        f"FlexReduce has {max(rounds['flexreduce'])}, so that small sums can take less than the ideal."
    )


def _where(headers: Mapping[str, Mapping[str, Any]], layouts: Iterable[str]) -> str:
    """Links, machines and commits."""
    mine = [headers[layout] for layout in dict.fromkeys(layouts) if layout in headers]
    rates = {parse_rate(header["link"]) for header in mine if header.get("link")}
    links = f"links of {' and '.join(f'{rate / 1e6:g}' for rate in sorted(rates))} Mbit/s; " if rates else ""
    return f"{links}{provenance(header.get('environment') or {} for header in mine)}."


def _finished(
    results: Results, rows: Sequence[Latencies], lines: Sequence[Curve], across: Axis, up: Axis, title: str, said: str
) -> Figure:
    repeats = counted((len(cell.seconds) for row in rows for cell in row.cells.values()), "repeat")
    note = (
        f"Medians of {repeats}, spread from the 10th to the 90th percentile; "
        f"{_where(results.headers, (row.layout for row in rows))} {said}"
    )
    return finished(curves(lines, across, up, title, note, "bars" if across.names else "band", width=WIDTH))
