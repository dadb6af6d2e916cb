"""The figures: steps forecast against measured, and compressors on both sides of their break-evens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from papers.planner.forecast import ORDER
from papers.planner.measured import NEAR, Compared, Scored, Side
from papers.rows import provenance_of
from wirebench.figures import colours
from wirebench.figures.curves import Curve, curves
from wirebench.figures.provenance import counted
from wirebench.figures.style import (
    LETTER,
    WIDTH,
    Axis,
    Figure,
    Panel,
    alt,
    around,
    finished,
    grid,
    layered,
    rows,
    titled,
)
from wirebench.planner.candidate import WORTHWHILE
from wirebench.planner.networks import rate

COLUMNS = 2


class ScatterPoint(NamedTuple):
    """One of them; words: what else the pointer shows; between: the spread of what is measured across."""

    name: str
    series: str
    across: float
    up: float
    words: str = ""
    between: tuple[float, float] | None = None


def errors(scored: Scored) -> Figure:
    """A point for each composition, with the band that counts as near: of a list what runs forecast themselves."""
    points = [_point(scored, line) for line in scored.lines]
    values = [value for point in points for value in (point.across, point.up, *(point.between or ()))]
    across, up = (around(f"{kind} time per step, ms", values, log=True) for kind in ("measured", "predicted"))
    series = {name: colours.schedule(name) for name in sorted({point.series for point in points})}
    steps = counted((run.record["images_per_second"]["steps"] for run in scored.runs), "step")
    turns = f", {counted((len(line.turns) for line in scored.lines), 'turn')} of each" if scored.ranked else ""
    spread = "; thin lines: 10 % to 90 % of the measured steps" if points[0].between else ""
    note = (
        f"{len(points)} compositions by their schedules{turns}, {steps} of a run{spread}. {provenance_of(scored.runs)}."
    )
    return finished(_scatter(points, series, NEAR, across, up, f"Predicted against measured: {scored.about}", note))


def _point(scored: Scored, line: Compared) -> ScatterPoint:
    if scored.ranked:
        assert line.forecast is not None and line.error is not None
        # What a forecast leaves out is added, so that both axes have whole steps.
        predicted, error = line.forecast.seconds + line.measured - line.own, line.error
    else:
        own = line.run.record["prediction"]
        predicted, error = own["step_seconds"], own["error"]
    # Of an order the mean step is compared, and most steps have no exchange.
    between, words = None if scored.kind == ORDER else line.row.steps_between, f"{100 * error:+.1f} %"
    spread = None if between is None else (1e3 * between[0], 1e3 * between[1])
    return ScatterPoint(line.row.label, plugin(line, "scheduler"), 1e3 * line.measured, 1e3 * predicted, words, spread)


def plugin(line: Compared, section: str) -> str:
    """Name of its scheduler, compressor or collective."""
    return str(line.run.record["config"].get(section, {}).get("name", "-"))


def break_evens(scored: Scored) -> Figure:
    """A panel for every compressor: it pays on the left of 1, and does not on the right, if the planner is right."""
    limits, sides = scored.limits(), scored.sides
    panels = [_panel([side for side in sides if side.compressor == name], limits[name][0]) for name in limits]
    turns, first = counted((len(side.dense.turns) for side in sides), "turn"), scored.runs[0]
    note = (
        f"{first.has('config', 'model', 'trace')}, {first.record['world_size']} workers on {first.note['hosts']} "
        f"emulated hosts. Points: {turns}, geometric means; bars: 95 % intervals; dashed: predicted by the planner "
        f"before the runs. {provenance_of(scored.runs)}."
    )
    title = "Compressors on both sides of the rate below which they should pay"
    return grid(panels, title, note, columns=min(COLUMNS, len(panels)), broad=COLUMNS * WIDTH)


def _panel(sides: Sequence[Side], limit: float) -> Panel:
    ordered = sorted(sides, key=lambda side: side.factor)
    factors, name = [side.factor for side in ordered], ordered[0].compressor
    low, high = ([_percent(side.gain.ends[end]) for side in ordered] for end in (0, 1))
    predicted = [_percent(side.forecast) for side in ordered]
    colour, pays = colours.method(name), _percent(1 / WORTHWHILE)
    lines = [
        Curve("measured", colour, factors, [_percent(side.gain.value) for side in ordered], low, high),
        Curve("predicted", colour, factors, predicted, dash=(4, 3), shape="cross"),
        Curve("pays above", colours.GREY, factors, [pays] * len(factors), dash=(2, 3), points=False),
    ]
    ticks = sorted({*factors, 1.0})
    across = around("rate of the links over the predicted break-even, times", ticks, zero=False, values=ticks)
    up = around("faster than dense, %", [0.0, pays, *low, *high, *predicted], zero=False)
    return curves(lines, across, up, name, f"should pay below {rate(limit)}", spread="bars")


def _percent(ratio: float) -> float:
    return 100 * (ratio - 1)


def _scatter(
    points: Sequence[ScatterPoint],
    series: Mapping[str, str],
    near: float,
    across: Axis,
    up: Axis,
    title: str,
    note: str,
) -> Panel:
    """A square panel; `series`: colours by name, told below; `near`: share by which a point may miss the line."""
    low, high = across.ends
    base = alt.Chart(rows([{"x": x, "y": x, "low": (1 - near) * x, "high": (1 + near) * x} for x in (low, high)]))
    words = alt.Chart(rows([{"x": high, "y": high, "words": f"within {100 * near:.0f} %"}]))
    x, y = across.x("x"), up.y("y")
    scale = alt.Scale(domain=list(series), range=list(series.values()))
    legend = alt.Legend(title=None, columns=4, symbolType="circle", symbolOpacity=1)
    tips = [alt.Tooltip("name:N", title=" "), alt.Tooltip("series:N", title=" "), across.tooltip("x"), up.tooltip("y"),
            alt.Tooltip("words:N", title="error")]  # fmt: skip
    values = [{"name": p.name, "series": p.series, "x": p.across, "y": p.up, "words": p.words} for p in points]
    colour = alt.Color("series:N", scale=scale, legend=legend)
    layers = [
        base.mark_area(opacity=0.3, color=colours.PALE, clip=True).encode(x=x, y=up.y("low"), y2=alt.Y2("high")),
        base.mark_line(color=colours.GREY, strokeWidth=1, clip=True).encode(x=x, y=y),
        words.mark_text(align="left", dx=6, color=colours.text(colours.GREY)).encode(
            x=x, y=y, text=alt.Text("words:N")
        ),
        *_spreads(points, across, y, colour),
        alt.Chart(rows(values)).mark_point(filled=True, size=45, opacity=0.85).encode(
            x=x, y=y, color=colour, tooltip=tips
        ),
    ]  # fmt: skip
    return titled(layered(layers, WIDTH, WIDTH), title, note, WIDTH + 12 * LETTER)


def _spreads(points: Sequence[ScatterPoint], across: Axis, y: alt.Y, colour: alt.Color) -> list[alt.Chart]:
    values = [
        {"name": p.name, "series": p.series, "low": p.between[0], "high": p.between[1], "y": p.up,
         "spread": f"{p.between[0]:.4g} to {p.between[1]:.4g}"}
        for p in points if p.between is not None
    ]  # fmt: skip
    if not values:
        return []
    tips = [alt.Tooltip("name:N", title=" "), alt.Tooltip("spread:N", title=across.title)]
    lines = alt.Chart(rows(values)).mark_rule(strokeWidth=1.2, opacity=0.7, clip=True)
    return [lines.encode(x=across.x("low"), x2=alt.X2("high"), y=y, color=colour, tooltip=tips)]
