"""The figures: steps forecast against measured, and compressors on both sides of their break-evens."""

from collections.abc import Sequence

from papers.planner.forecast import ORDER
from papers.planner.measured import NEAR, Compared, Scored, Side
from papers.rows import provenance_of
from wirebench.figures import colours
from wirebench.figures.curves import Curve, curves
from wirebench.figures.provenance import counted
from wirebench.figures.scatter import ScatterPoint, scatter
from wirebench.figures.style import WIDTH, Figure, Panel, around, finished, grid
from wirebench.planner.candidate import WORTHWHILE
from wirebench.planner.networks import rate

COLUMNS = 2


def errors(scored: Scored) -> Figure:
    """A point for each composition, with the band that counts as near: of a list what runs forecast themselves."""
    points = [_point(scored, line) for line in scored.lines]
    values = [value for point in points for value in (point.across, point.up, *(point.between or ()))]
    across, up = (around(f"{kind} time per step, ms", values, log=True) for kind in ("measured", "predicted"))
    series = {name: colours.schedule(name) for name in sorted({point.series for point in points})}
    steps = counted((run.record["images_per_second"]["steps"] for run in scored.runs), "step")
    turns = f", {counted((len(line.turns) for line in scored.lines), 'turn')} of each" if scored.ranked else ""
    spread = "; thin lines: 10 % to 90 % of the measured steps" if points[0].between else ""
    made = f"{len(points)} compositions by their schedules{turns}, {steps} of a run{spread}"
    note = f"{made}. {provenance_of(scored.runs)}."
    return finished(scatter(points, series, NEAR, across, up, f"Predicted against measured: {scored.about}", note))


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
