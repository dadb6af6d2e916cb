"""Curves over a quantity or over names: points, bands or bars of their spread, and each one's name at its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from wirebench.figures import colours
from wirebench.figures.labels import End, end_labels, gap_of, room
from wirebench.figures.style import HEIGHT, LETTER, WIDTH, Axis, Panel, alt, layered, rows, titled

Spread = Literal["band", "bars"]


@dataclass(frozen=True)
class Curve:
    """One line; two of the same name are parts of one, with a gap between them.

    low, high  the spread around each point; empty for a line without spread
    label      what stands at the end; "" for nothing
    points     whether measurements are marked
    """

    name: str
    colour: str
    across: Sequence[float | str]
    up: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dash: Sequence[int] = colours.DASHES[0]
    shape: str = "circle"
    points: bool = True
    label: str | None = None
    width: float = 1.8

    @property
    def end(self) -> End | None:
        """Its name and its last point; None for one that has no name or no point."""
        name = self.name if self.label is None else self.label
        return End(name, self.colour, self.across[-1], self.up[-1]) if name and self.across else None

    def values(self, part: int) -> Iterator[dict[str, Any]]:
        """Its points, as data."""
        for place, (x, y) in enumerate(zip(self.across, self.up, strict=True)):
            point = {"name": self.name, "colour": self.colour, "shape": self.shape, "part": part, "x": x, "y": y}
            if self.low:
                low, high = self.low[place], self.high[place]
                point |= {"low": low, "high": high, "spread": f"{low:.4g} to {high:.4g}"}
            yield point


def curves(
    lines: Sequence[Curve], across: Axis, up: Axis, title: str, note: str = "", spread: Spread = "band",
    width: float = WIDTH, height: float = HEIGHT,
) -> Panel:  # fmt: skip
    """A panel; it grows where there are more names at the ends of curves than it has room for."""
    ends = [line.end for line in lines]
    named = [end for end in ends if end is not None]
    names = [end.name for end in named]
    height = max(height, gap_of(names) * len(names))
    layers = [*_spreads(lines, across, up, spread), *_lines(lines, across, up), *_points(lines, across, up)]
    layers += end_labels(named, across, up, height)
    if not layers:  # axes alone: nothing was measured that has a place on them
        layers = [alt.Chart(rows([])).mark_point().encode(x=across.x("x"), y=up.y("y"))]
    panel = layered(layers, width, height)
    return titled(panel, title, note, width + room(names) + 6 * LETTER)


def _lines(lines: Sequence[Curve], across: Axis, up: Axis) -> list[alt.Chart]:
    """A layer for every dash and breadth: those are no columns of the data."""
    layers = []
    for dash, breadth in dict.fromkeys((tuple(line.dash), line.width) for line in lines):
        parts = [line.values(n) for n, line in enumerate(lines) if (tuple(line.dash), line.width) == (dash, breadth)]
        mark = alt.Chart(rows([value for part in parts for value in part])).mark_line(
            clip=True, strokeWidth=breadth, strokeDash=list(dash)
        )
        layers.append(
            mark.encode(
                x=across.x("x"), y=up.y("y"), color=alt.Color("colour:N", scale=None),
                detail=[alt.Detail("part:N"), alt.Detail("name:N")], tooltip=alt.Tooltip("name:N", title=" "),
            )
        )  # fmt: skip
    return layers


def _spreads(lines: Sequence[Curve], across: Axis, up: Axis, spread: Spread) -> list[alt.Chart]:
    values = [value for number, line in enumerate(lines) if line.low for value in line.values(number)]
    if not values:
        return []
    base, colour = alt.Chart(rows(values)), alt.Color("colour:N", scale=None)
    tips = [alt.Tooltip("name:N", title=" "), across.tooltip("x"), alt.Tooltip("spread:N", title=up.title)]
    if spread == "bars":
        cap: dict[str, Any] = {"size": 7, "thickness": 1.4, "opacity": 1, "orient": "horizontal", "clip": True}
        whole = base.mark_rule(strokeWidth=1.4, clip=True).encode(y=up.y("low"), y2=alt.Y2("high"))
        ends = [base.mark_tick(**cap).encode(y=up.y(end)) for end in ("low", "high")]
        return [mark.encode(x=across.x("x"), color=colour, tooltip=tips) for mark in (whole, *ends)]
    area = base.mark_area(clip=True, opacity=0.16, line=False).encode(
        x=across.x("x"), y=up.y("low"), y2=alt.Y2("high"), color=colour,
        detail=[alt.Detail("part:N"), alt.Detail("name:N")], tooltip=alt.Tooltip("name:N", title=" "),
    )  # fmt: skip
    return [area]


def _points(lines: Sequence[Curve], across: Axis, up: Axis) -> list[alt.Chart]:
    """Points of every curve, visible or not, so that the pointer finds them for tooltips."""
    layers = []
    for shown in (True, False):
        some = [value for n, line in enumerate(lines) if line.points is shown for value in line.values(n)]
        if some:
            tips = [alt.Tooltip("name:N", title=" "), across.tooltip("x"), up.tooltip("y")]
            tips += [alt.Tooltip("spread:N", title="spread")] * any("spread" in value for value in some)
            layers.append(
                alt.Chart(rows(some)).mark_point(filled=True, size=26, opacity=float(shown), clip=True).encode(
                    x=across.x("x"), y=up.y("y"), color=alt.Color("colour:N", scale=None),
                    shape=alt.Shape("shape:N", scale=None), tooltip=tips,
                )
            )  # fmt: skip
    return layers
