"""Horizontal bars stacked of parts, with whiskers, marks and words at their ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wirebench.figures import colours
from wirebench.figures.style import LETTER, NUMBER, WIDTH, Axis, Panel, alt, layered, rows, titled

STEP = 20
"""Pixels from one horizontal bar to the next."""
ABOVE = 14
"""Pixels that the name of a line takes above the bars."""
NAMES = 270
"""Pixels of the names beside bars, at most."""


@dataclass(frozen=True)
class Bar:
    """One bar.

    parts     lengths by part, from the left
    spread    of the whole, low and high; None where it was measured once
    mark      a second value, such as a prediction; None without one
    words     at its end
    """

    name: str
    parts: Mapping[str, float]
    spread: tuple[float, float] | None = None
    mark: float | None = None
    words: str = ""

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return sum(self.parts.values())

    @property
    def end(self) -> float:
        """Where nothing more is drawn of it."""
        return max(self.total, *(self.spread or ()), self.mark or 0.0, 0.0)


@dataclass(frozen=True)
class Look:
    """How stacked bars are drawn.

    colours   by part
    legend    whether a legend below names the parts
    line      a value across all bars, and what it is called
    cut       where longer bars are cut off
    italic    names that are set in italics; bold: names that are set in bold
    mark      what the marks of the bars are called; spread: what their thin lines are
    beside_line   whether a panel beside it has such a line, whose name takes room above the bars
    """

    colours: Mapping[str, str]
    legend: bool = True
    line: tuple[float, str] | None = None
    cut: float | None = None
    italic: Sequence[str] = ()
    bold: Sequence[str] = ()
    mark: str = ""
    width: float = WIDTH
    spread: str = "spread"
    legend_columns: int = 0
    beside_line: bool = False


def stacked(bars: Sequence[Bar], across: Axis, look: Look, title: str, note: str = "") -> Panel:
    """A panel with a bar for every row, the first one on top."""
    layers = [*_parts(bars, across, look), *_marks(bars, across, look), *_words(bars, across, look)]
    layers += _line(across, look)
    panel = layered(layers, look.width, max(STEP * len(bars), STEP))
    beside = min(NAMES, LETTER * max((len(bar.name) for bar in bars), default=0))
    words = LETTER * max((len(bar.words) for bar in bars), default=0) / 2
    return titled(panel, title, note, look.width + beside + words + 6 * LETTER, ABOVE if look.beside_line else 0)


def _names(bars: Sequence[Bar], look: Look) -> alt.Y:
    names = [bar.name for bar in bars]
    scale = alt.Scale(domain=names, padding=0.15)
    axis = alt.Axis(ticks=False, labelPadding=6, labelLimit=NAMES, domain=False, **_letters(look))
    return alt.Y("name:N", title=None, scale=scale, axis=axis)


def _letters(look: Look) -> dict[str, Any]:
    """Which names are set in italics or in bold."""
    styles = {"labelFontStyle": (look.italic, "italic"), "labelFontWeight": (look.bold, "bold")}
    return {
        key: {"condition": {"test": f"indexof({list(names)!r}, datum.value) >= 0", "value": style}, "value": "normal"}
        for key, (names, style) in styles.items()
        if names
    }


def _parts(bars: Sequence[Bar], across: Axis, look: Look) -> list[alt.Chart]:
    values = []
    for bar in bars:
        start = 0.0
        for order, part in enumerate(look.colours):
            length = bar.parts.get(part, 0.0)
            if length:
                values.append({"name": bar.name, "part": part, "x": start, "x2": start + length, "length": length,
                               "total": bar.total, "order": order})  # fmt: skip
            start += length
    columns = look.legend_columns or alt.Undefined
    legend = alt.Legend(title=None, symbolType="square", columns=columns) if look.legend else None
    scale = alt.Scale(domain=list(look.colours), range=list(look.colours.values()))
    tips = [alt.Tooltip("name:N", title=" "), alt.Tooltip("part:N"),
            alt.Tooltip("length:Q", title=across.title, format=NUMBER),
            alt.Tooltip("total:Q", title="in all", format=NUMBER)]  # fmt: skip
    mark = alt.Chart(rows(values)).mark_bar(clip=True)
    return [
        mark.encode(
            x=across.x("x"), x2=alt.X2("x2"), y=_names(bars, look), tooltip=tips,
            color=alt.Color("part:N", scale=scale, legend=legend),
        )
    ]  # fmt: skip


def _marks(bars: Sequence[Bar], across: Axis, look: Look) -> list[alt.Chart]:
    """Whiskers, and the second values."""
    layers, y = [], _names(bars, look)
    ends = [(bar, bar.spread) for bar in bars if bar.spread is not None and not _cut(bar, look)]
    if ends:
        values = [
            {"name": bar.name, "low": low, "high": high, "spread": f"{low:.4g} to {high:.4g}"}
            for bar, (low, high) in ends
        ]
        tips = [alt.Tooltip("name:N", title=" "), alt.Tooltip("spread:N", title=look.spread)]
        whiskers = alt.Chart(rows(values)).mark_rule(strokeWidth=1.2, color=colours.INK, clip=True)
        layers.append(whiskers.encode(x=across.x("low"), x2=alt.X2("high"), y=y, tooltip=tips))
    marked = [{"name": bar.name, "x": bar.mark} for bar in bars if bar.mark is not None]
    if marked:
        tips = [alt.Tooltip("name:N", title=" "), alt.Tooltip("x:Q", title=look.mark, format=NUMBER)]
        ticks = alt.Chart(rows(marked)).mark_tick(thickness=2.5, size=STEP - 4, color=colours.INK, opacity=1)
        layers.append(ticks.encode(x=across.x("x"), y=y, tooltip=tips))
    return layers


def _words(bars: Sequence[Bar], across: Axis, look: Look) -> list[alt.Chart]:
    """Words at the ends of bars; bold if the bar is longer than the panel."""
    layers = []
    for bold in (False, True):
        those = [bar for bar in bars if bar.words and _cut(bar, look) is bold]
        values = [{"name": bar.name, "x": _beside(bar, across, look), "words": bar.words} for bar in those]
        if values:
            text = alt.Chart(rows(values)).mark_text(
                align="left", dx=5, fontSize=10, color=colours.INK, fontWeight="bold" if bold else "normal"
            )
            layers.append(text.encode(x=across.x("x"), y=_names(bars, look), text=alt.Text("words:N")))
        if bold and values:
            # A bar that goes on beyond the panel has a break near its end.
            breaks = alt.Chart(rows(values)).mark_text(text="//", dx=-14, fontSize=STEP - 6, color=colours.INK)
            layers.append(breaks.encode(x=across.x("x"), y=_names(bars, look)))
    return layers


def _beside(bar: Bar, across: Axis, look: Look) -> float:
    """Where the words of a bar begin: at its end, but not across the line."""
    end = bar.end if look.cut is None else min(bar.end, look.cut)
    if look.line is None:
        return end
    long = (len(bar.words) * LETTER + 8) / look.width * (across.ends[1] - across.ends[0])
    return look.line[0] if end <= look.line[0] < end + long else end


def _cut(bar: Bar, look: Look) -> bool:
    return look.cut is not None and bar.total > look.cut


def _line(across: Axis, look: Look) -> list[alt.Chart]:
    if look.line is None:
        return []
    value, name = look.line
    base = alt.Chart(rows([{"x": value, "words": name}]))
    x, tip = across.x("x"), [alt.Tooltip("words:N", title=" "), alt.Tooltip("x:Q", title=across.title, format=NUMBER)]
    rule = base.mark_rule(strokeDash=[2, 2], strokeWidth=1.4, color=colours.INK).encode(x=x, tooltip=tip)
    text = base.mark_text(align="left", baseline="bottom", dx=-2, dy=-3, fontSize=10, color=colours.INK)
    return [rule, text.encode(x=x, y=alt.value(0), text=alt.Text("words:N"))]
