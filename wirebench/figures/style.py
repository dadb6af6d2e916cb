"""The look that all figures share: axes with units, titles with notes, a grid of panels."""

from __future__ import annotations

import functools
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from wirebench.utils.extras import Late

if TYPE_CHECKING:
    import altair as alt

    Figure: TypeAlias = alt.TopLevelMixin
    """What a builder ends with: a chart that can be written and put into a page."""
    Panel: TypeAlias = alt.LayerChart
    """Several marks on the same axes."""
else:
    # Altair is imported with the first chart: it takes most of a second, and is an extra.
    alt = Late("altair")
    Figure = Panel = object
WIDTH, HEIGHT = 320, 230
"""Size of the area between a panel's axes, in pixels: with its labels a panel fits a telephone held upright."""
LINES = "split(datum.label, '\\n')"
"""Vega expression that splits the names on an axis into lines."""
LETTER = 6.0
"""Pixels of a letter of 11 pixels, on average and generously."""
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
"""The first one comes with vl-convert, so that a figure has the same bytes everywhere; the others are as broad."""
NO_BREAK = "\xa0"
NUMBER, PLAIN = ",.4~r", ",.6~r"
"""d3's formats of a value and of a tick: no exponents. Without a number of digits d3 would round ticks to the distance
between them."""
CONFIG: dict[str, Any] = {
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal", "gridOpacity": 0.5, "labelLimit": 300,
        "titlePadding": 8,
    },
    "title": {
        "anchor": "start", "frame": "bounds", "fontSize": 13, "subtitleFontSize": 11, "offset": 12,
        "subtitlePadding": 4, "subtitleLineHeight": 14, "lineHeight": 16,
    },
    "legend": {
        "orient": "bottom", "labelFontSize": 11, "labelLimit": 300, "titleFontSize": 11, "symbolStrokeWidth": 2,
        "columnPadding": 14, "offset": 12,
    },
    "concat": {"spacing": 26},
    "text": {"fontSize": 11},
}  # fmt: skip
"""Sizes and places. No colours of text or ground: a page has its own, light or dark."""


@dataclass(frozen=True)
class Axis:
    """A quantity with its unit, or names side by side.

    title   with the unit; ends: of the scale, in the quantity's unit
    log     whether the scale is logarithmic
    values  that have a tick; format: of their labels, as Vega has it
    names   in place of a quantity: from left to right, with line breaks
    """

    title: str
    ends: tuple[float, float] = (0.0, 1.0)
    log: bool = False
    values: Sequence[float] = ()
    format: str = PLAIN
    names: Sequence[str] = ()

    def share(self, value: float) -> float:
        """Where on the scale the value lies, from 0 to 1."""
        low, high, at = (self._of(each) for each in (*self.ends, value))
        return (at - low) / (high - low)

    def value(self, share: float) -> float:
        """What lies there: the opposite of `share`."""
        low, high = map(self._of, self.ends)
        at = low + share * (high - low)
        return 10**at if self.log else at

    def _of(self, value: float) -> float:
        return math.log10(max(value, 1e-30)) if self.log else value

    def x(self, field: str) -> alt.X:
        """The encoding of a field along it."""
        if self.names:
            axis = alt.Axis(labelAngle=0, labelExpr=LINES, grid=True, labelLineHeight=12, labelOverlap="parity")
            scale = alt.Scale(type="point", padding=0.4)
            return alt.X(f"{field}:N", title=self.title, sort=list(self.names), axis=axis, scale=scale)
        return alt.X(f"{field}:Q", title=self.title, axis=self._axis(), scale=self._scale())

    def y(self, field: str) -> alt.Y:
        """The vertical encoding of a field."""
        return alt.Y(f"{field}:Q", title=self.title, axis=self._axis(), scale=self._scale())

    def tooltip(self, field: str) -> alt.Tooltip:
        """The tooltip of a field."""
        if self.names:
            return alt.Tooltip(f"{field}:N", title=self.title)
        return alt.Tooltip(f"{field}:Q", title=self.title, format=NUMBER)

    def _axis(self) -> alt.Axis:
        values = list(self.values) or (log_values(*self.ends) if self.log else None)
        if values is None:
            return alt.Axis(format=self.format, tickCount=6)
        return alt.Axis(format=self.format, values=values)

    def _scale(self) -> alt.Scale:
        return alt.Scale(type="log" if self.log else "linear", domain=list(self.ends), nice=False, zero=False)


def around(title: str, amounts: Sequence[float], log: bool = False, zero: bool = True, **more: Any) -> Axis:
    """An axis that holds all these amounts; with `zero`, a linear one includes 0."""
    if log:
        known = [amount for amount in amounts if amount > 0] or [1.0]
        low, high = min(known), max(known)
        margin = max((high / low) ** 0.04, 1.05)
        return Axis(title, (low / margin, high * margin), log=True, **more)
    low, high = min(amounts, default=0.0), max(amounts, default=1.0)
    low = min(low, 0.0) if zero else low
    margin = 0.05 * ((high - low) or abs(high) or 1.0)
    return Axis(title, (low if zero else low - margin, high + margin), **more)


def log_values(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis: 10, 30, 100, and so on; more where that is too few."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    chosen: list[float] = []
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = (step * 10.0**decade for decade in decades for step in steps)
        chosen = [float(f"{tick:.3g}") for tick in ticks if low <= tick <= high]
        if len(chosen) >= 4:
            return chosen
    step = 10.0 ** math.floor(math.log10(high - low))
    width = next(each for each in (step, step / 2, step / 5) if (high - low) / each >= 3)
    return [float(f"{n * width:.3g}") for n in range(math.ceil(low / width), math.floor(high / width) + 1)]


def rows(values: Sequence[dict[str, Any]]) -> alt.Data:
    """Data of a chart, within it."""
    # A tuple: Altair copies a list, row by row, whenever a chart becomes part of another.
    return alt.Data(values=tuple(values))


def wrapped(text: str, letters: int) -> list[str]:
    """The text in lines of at most `letters` letters; line breaks stay, and no number is parted from its unit."""
    lines = re.sub(r"(?<=\d) (?=(%|[kMG]?bit/s|ms|MB|cores?|floats)\b|%)", NO_BREAK, text).split("\n")
    return [piece for line in lines for piece in textwrap.wrap(line, letters, break_long_words=False)]


def layered(layers: Sequence[alt.Chart], width: float, height: float) -> Panel:
    """The marks on one another, in a panel of this size."""
    return alt.LayerChart(layer=list(layers), width=width, height=height)


def titled(panel: Panel, title: str, note: str = "", broad: float = WIDTH, higher: float = 0) -> Panel:
    """The panel with its title and, smaller below, its note, in lines of `broad` pixels; raised by `higher` pixels."""
    subtitle = wrapped(note, int(broad / (LETTER * 0.92))) if note else alt.Undefined
    heading = alt.TitleParams(wrapped(title, int(broad / LETTER / 1.15)), subtitle=subtitle, offset=12 + higher)
    panel.title = heading
    return panel


def finished(panel: Panel) -> Panel:
    """A figure of one panel; the panel itself is not changed."""
    # Altair's properties() would copy the panel with all that is in it.
    figure = panel.copy(deep=False)
    figure.config = _config()
    return figure


@functools.cache
def _config() -> alt.Config:
    return alt.Config.from_dict(CONFIG)


def grid(panels: Sequence[Panel], title: str, note: str, columns: int, broad: float) -> alt.ConcatChart:
    """A figure of several panels, `columns` side by side, in lines of `broad` pixels: a page may take them apart."""
    made = alt.concat(*panels, columns=columns)
    made.resolve = alt.Resolve(scale=alt.ScaleResolveMap(color="independent", shape="independent"))
    made.title = alt.TitleParams(
        wrapped(title, int(broad / LETTER / 1.3)), subtitle=wrapped(note, int(broad / (LETTER * 0.92))),
        fontSize=15, subtitleFontSize=12, subtitleLineHeight=15, offset=18,
    )  # fmt: skip
    made.config = _config()
    return made


def panels_of(figure: Figure) -> list[Panel]:
    """The panels of a figure, each a figure of its own, for a page that lays them out itself."""
    panels = figure.concat if isinstance(figure, alt.ConcatChart) else [figure]
    return [finished(panel) for panel in panels if isinstance(panel, alt.LayerChart)]
