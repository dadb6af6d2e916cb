"""Points of two quantities that should be equal, with the line of equality and the band that counts as near."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wirebench.figures import colours
from wirebench.figures.style import LETTER, WIDTH, Axis, Panel, alt, layered, rows, titled


class ScatterPoint(NamedTuple):
    """One of them; words: what else the pointer shows; between: the spread of what is measured across."""

    name: str
    series: str
    across: float
    up: float
    words: str = ""
    between: tuple[float, float] | None = None


def scatter(
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
