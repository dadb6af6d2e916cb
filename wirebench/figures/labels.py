"""Names at the ends of curves: as near to them as the others allow, and never on one another."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from wirebench.figures import colours
from wirebench.figures.style import LETTER, Axis, alt, rows, wrapped

GAP, LINE = 13.0, 12.0
"""Pixels from one name to the next, and from one line of a name to the next."""
LEADER = 10
"""Pixels between a panel and the names beside it."""
BROAD = 26
"""Letters of a line of a name."""


class End(NamedTuple):
    """Where a curve ends, in the units of its axes, and what it is called."""

    name: str
    colour: str
    across: float | str
    up: float


def apart(wanted: Sequence[float], gap: float, least: float = -math.inf, most: float = math.inf) -> list[float]:
    """Ascending places, at least `gap` apart, with the least sum of squared distances from those that are wanted.

    Places that would overlap form a block, which lies where it is wanted on average (pool adjacent violators). All lie
    between `least` and `most` if there is room for all.
    """
    blocks: list[list[float]] = []
    for number, place in enumerate(wanted):
        # Without the gaps, what is left is to ascend.
        blocks.append([place - number * gap])
        while len(blocks) > 1 and statistics.mean(blocks[-2]) > statistics.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    highest = max(most - (len(wanted) - 1) * gap, least)
    level = [min(max(statistics.mean(block), least), highest) for block in blocks for _ in block]
    return [each + number * gap for number, each in enumerate(level)]


def gap_of(names: Sequence[str]) -> float:
    """Pixels from one name to the next, where the longest of them takes several lines."""
    return GAP * max((len(wrapped(name, BROAD)) for name in names), default=1)


def room(names: Sequence[str]) -> float:
    """Pixels that the names take beside a panel."""
    return max((LEADER + LETTER * len(line) for name in names for line in wrapped(name, BROAD)), default=0.0)


def end_labels(ends: Sequence[End], across: Axis, up: Axis, height: float) -> list[alt.Chart]:
    """The names to the right of a panel, each with a line to the end of its curve."""
    if not ends:
        return []
    ordered = sorted(ends, key=lambda end: up.share(end.up))
    wanted = [min(max(up.share(end.up), 0.0), 1.0) * height for end in ordered]
    places = apart(wanted, gap_of([end.name for end in ends]), 0.0, height)
    values: list[dict[str, Any]] = [
        {
            "label": wrapped(end.name, BROAD), "name": end.name, "x": end.across, "y": end.up,
            "place": up.value(place / height), "colour": end.colour, "tone": colours.text(end.colour),
        }
        for end, place in zip(ordered, places, strict=True)
    ]  # fmt: skip
    base = alt.Chart(rows(values))
    x, y = across.x("x"), up.y("y")
    leaders = base.mark_rule(strokeWidth=0.7, opacity=0.7, x2Offset=LEADER - 2).encode(
        x=x,
        y=y,
        x2=alt.value("width"),
        y2=alt.Y2("place"),
        color=alt.Color("colour:N", scale=None),
        tooltip=alt.Tooltip("name:N", title=" "),
    )
    several = dict.fromkeys(len(value["label"]) for value in values)
    texts = [_texts([v for v in values if len(v["label"]) == many], many, up.y("place")) for many in several]
    return [leaders, *texts]


def _texts(values: Sequence[dict[str, Any]], many: int, y: alt.Y) -> alt.Chart:
    """Names of `many` lines each, centred vertically at their place."""
    text = alt.Chart(rows(values)).mark_text(
        align="left", baseline="middle", dx=LEADER, dy=-(many - 1) * LINE / 2, lineHeight=LINE, fontSize=11
    )
    return text.encode(
        x=alt.value("width"), y=y, text=alt.Text("label:N"), color=alt.Color("tone:N", scale=None),
        tooltip=alt.Tooltip("name:N", title=" "),
    )  # fmt: skip
