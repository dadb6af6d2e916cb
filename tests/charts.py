"""What a chart shows, read from its specification; nothing is drawn."""

import json
from collections.abc import Iterator
from typing import Any

from wirebench.figures.style import Figure, panels_of

MARKS = {"area", "bar", "line", "point", "rect", "rule", "tick"}
SPECIFICATIONS: dict[int, tuple[Figure, dict[str, Any]]] = {}
"""By the figure's identity, which it has as long as it is kept here: making one takes up to half a second."""


def specification(figure: Figure) -> dict[str, Any]:
    """Of a figure that does not change any more."""
    if id(figure) not in SPECIFICATIONS:
        SPECIFICATIONS[id(figure)] = (figure, figure.to_dict(validate=False))
    return SPECIFICATIONS[id(figure)][1]


def units(figure: Figure) -> Iterator[dict[str, Any]]:
    """The layers of a figure, each with one mark."""
    yield from _units(specification(figure))


def _units(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "mark" in spec:
        yield spec
    for inner in (*spec.get("layer", ()), *spec.get("concat", ())):
        yield from _units(inner)


def rows(unit: dict[str, Any]) -> list[dict[str, Any]]:
    """The data of a layer."""
    return unit["data"]["values"]


def of(figure: Figure, mark: str) -> list[dict[str, Any]]:
    """The data of all layers of one kind of mark."""
    return [row for unit in units(figure) if unit["mark"]["type"] == mark for row in rows(unit)]


def lines(figure: Figure) -> dict[str, tuple[list[Any], list[float]]]:
    """x and y of every curve, by its name; the parts of one curve one after the other."""
    found: dict[str, tuple[list[Any], list[float]]] = {}
    for row in of(figure, "line"):
        xs, ys = found.setdefault(row["name"], ([], []))
        xs.append(row["x"])
        ys.append(row["y"])
    return found


def names(figure: Figure) -> list[str]:
    """What stands at the ends of curves, from the bottom up, panel by panel."""
    return [row["name"] for row in of(figure, "text") if "place" in row]


def titles(figure: Figure) -> list[str]:
    """Of the panels."""
    return [" ".join(specification(panel)["title"]["text"]) for panel in panels_of(figure)]


def note(figure: Figure) -> str:
    """The figure's note."""
    return " ".join(specification(figure)["title"]["subtitle"]).replace("\xa0", " ")


def axes(figure: Figure, channel: str) -> set[str]:
    """The titles of one channel's axes."""
    return {
        unit["encoding"][channel]["title"] for unit in units(figure) if unit["encoding"].get(channel, {}).get("title")
    }


def check(figure: Figure) -> None:
    """What holds of every figure: titles, units on axes, tooltips on what has a name, and no names by the counter."""
    whole = figure.to_dict()
    assert whole["title"]["text"], "a figure has a title"
    assert all(titles(figure)), "each panel has one"
    for unit in units(figure):
        for channel in ("x", "y"):
            found = unit["encoding"].get(channel, {})
            if found.get("type") == "quantitative" and "axis" in found and found["axis"] is not None:
                assert found["title"], "an axis says what it shows"
        if unit["mark"]["type"] in MARKS and any("name" in row for row in rows(unit)):
            assert "tooltip" in unit["encoding"], f"{unit['mark']['type']} answers to the pointer"
    text = json.dumps(whole)
    assert not any(name in text for name in ('"view_', '"param_', '"layer_')), "names differ from call to call"
