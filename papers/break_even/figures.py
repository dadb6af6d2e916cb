"""The figure of break-evens: by how much a compressor is faster than dense on either side, measured and predicted."""

from collections.abc import Sequence

from papers.break_even.seen import Seen
from wirebench.figures import colours
from wirebench.figures.curves import Curve, curves
from wirebench.figures.provenance import counted, provenance
from wirebench.figures.style import WIDTH, Figure, Panel, around, grid
from wirebench.planner.advice import WORTHWHILE
from wirebench.planner.networks import rate
from wirebench.record.notes import NotedRun

ACROSS, UP = "rate of the links over the predicted break-even, times", "faster than dense, %"
COLUMNS = 2


def figure(sightings: Sequence[Seen], runs: Sequence[NotedRun]) -> Figure:
    """A panel for every compressor: it pays on the left of 1, and does not on the right, if the planner is right."""
    names = dict.fromkeys(seen.side.compressor for seen in sightings)
    panels = [_panel(name, [seen for seen in sightings if seen.side.compressor == name]) for name in names]
    turns = counted((len(seen.dense_turns) for seen in sightings), "turn")
    first = runs[0]
    note = (
        f"{first.has('config', 'model', 'trace')}, {first.record['world_size']} workers on {first.note['hosts']} "
        f"emulated hosts. Points: {turns}, geometric means; bars: 95 % intervals; dashed: predicted by the "
        f"planner before the runs. {provenance(run.has('environment') or {} for run in runs)}."
    )
    title = "Compressors on both sides of the rate below which they should pay"
    return grid(panels, title, note, columns=min(COLUMNS, len(panels)), broad=COLUMNS * WIDTH)


def _panel(name: str, sightings: Sequence[Seen]) -> Panel:
    ordered = sorted(sightings, key=lambda seen: seen.side.factor)
    factors = [seen.side.factor for seen in ordered]
    low, high = ([_percent(seen.ratio.ends[end]) for seen in ordered] for end in (0, 1))
    measured = [_percent(seen.ratio.value) for seen in ordered]
    predicted = [_percent(seen.side.dense["seconds"] / seen.side.lossy["seconds"]) for seen in ordered]
    colour, pays = colours.method(name), _percent(1 / WORTHWHILE)
    lines = [
        Curve("measured", colour, factors, measured, low, high),
        Curve("predicted", colour, factors, predicted, dash=(4, 3), shape="cross"),
        Curve("pays above", colours.GREY, factors, [pays] * len(factors), dash=(2, 3), points=False),
    ]
    ticks = sorted({*factors, 1.0})
    across = around(ACROSS, ticks, zero=False, values=ticks)
    up = around(UP, [0.0, pays, *low, *high, *predicted], zero=False)
    return curves(lines, across, up, name, f"should pay below {rate(ordered[0].side.break_even_gbit)}", spread="bars")


def _percent(ratio: float) -> float:
    return 100 * (ratio - 1)
