"""The figure of a topology: switches and machines as boxes with their links' speeds, ranks as circles below them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wirebench.errors import UserError
from wirebench.figures import colours, files
from wirebench.figures.style import Figure, alt, finished, layered, rows, titled
from wirebench.topology.ascii import node_names, spans, speeds
from wirebench.topology.tree import BranchPath as Node
from wirebench.topology.tree import Topology

MAX_SINGLE, MAX_MACHINES = 24, 64
"""Ranks that a figure draws one by one, and machines that it draws at all."""
UNIT, LEVEL, LETTER, LINE = 36, 78, 5.2, 13
"""Pixels of a rank's place, from one level to the next, of a letter, and of a line of text."""
BRANCH, RANK = "#DBE9F6", "#FDF3D8"
Places = dict[int | Node, tuple[float, float]]


def write(topology: Topology, path: Path, note: str = "") -> None:
    """Draw the tree into a file, whose ending says of which kind; UserError where it cannot be written."""
    if len(topology.machines) > MAX_MACHINES:
        raise UserError(f"--figure: draws {MAX_MACHINES} machines at most, here are {len(topology.machines)}")
    try:
        files.save(figure(topology, note), path)
    except UserError as error:
        raise UserError(f"--figure: {error}") from error


def figure(topology: Topology, note: str = "") -> Figure:
    """The tree."""
    places = _places(topology)
    left, right = (end(x for x, _ in places.values()) for end in (min, max))
    width, height = UNIT * (right - left + 3.2), LEVEL * (len(topology.levels) + 0.6)
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[left - 1.6, right + 1.6], nice=False, zero=False))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[-len(topology.levels) - 0.3, 0.3], nice=False, zero=False))
    links = alt.Chart(rows(_links(topology, places))).mark_rule(color=colours.GREY, strokeWidth=1.5)
    layers = [links.encode(x=x, y=y, x2=alt.X2("x2"), y2=alt.Y2("y2"))]
    for boxes, fill, edge in ((_branches(topology, places), BRANCH, colours.BLUE),
                              (_ranks(topology, places), RANK, colours.ORANGE)):  # fmt: skip
        layers += _boxes(boxes, x, y, fill, edge)
    panel = layered(layers, width, height)
    title = f"{topology.layout}: {topology.size} rank{'s' * (topology.size > 1)}"
    return finished(titled(panel, title, note, max(width, 260.0)))


def _boxes(boxes: list[dict[str, Any]], x: alt.X, y: alt.Y, fill: str, edge: str) -> list[alt.Chart]:
    """A box for every size, as the size of a mark is no column of the data; text on them."""
    layers = []
    for broad, high in dict.fromkeys((box["broad"], box["high"]) for box in boxes):
        mine = [box for box in boxes if (box["broad"], box["high"]) == (broad, high)]
        base = alt.Chart(rows(mine))
        tip = alt.Tooltip("said:N", title=" ")
        corner = min(broad, high) / 2 if broad == high else 6
        box = base.mark_rect(width=broad, height=high, cornerRadius=corner, fill=fill, stroke=edge)
        layers.append(box.encode(x=x, y=y, tooltip=tip))
        first = -LINE * (len(mine[0]["lines"]) - 1) / 2  # the first line's place: all are in the middle together
        text = base.mark_text(fontSize=10, lineHeight=LINE, dy=first, baseline="middle", color=colours.INK)
        layers.append(text.encode(x=x, y=y, text=alt.Text("lines:N"), tooltip=tip))
    return layers


def _links(topology: Topology, places: Places) -> list[dict[str, Any]]:
    lines = []
    for path, branch in topology.branches.items():
        x, y = places[path]
        for number, child in enumerate(branch.children):
            below = places[child if isinstance(child, int) else (*path, number)]
            lines.append({"x": x, "y": y, "x2": below[0], "y2": below[1]})
    return lines


def _branches(topology: Topology, places: Places) -> list[dict[str, Any]]:
    names, boxes = node_names(topology), []
    for path, branch in topology.branches.items():
        lines = [names[path], *(f"links: {piece}" for piece in speeds(branch.links))]
        boxes.append(_box(places[path], lines))
    return boxes


def _ranks(topology: Topology, places: Places) -> list[dict[str, Any]]:
    together: dict[tuple[float, float], list[int]] = {}
    for rank in topology.ranks:
        together.setdefault(places[rank], []).append(rank)
    return [_box(place, [spans(ranks)], round_=len(ranks) == 1) for place, ranks in together.items()]


def _box(place: tuple[float, float], lines: list[str], round_: bool = False) -> dict[str, Any]:
    broad = 24.0 if round_ else max(map(len, lines)) * LETTER + 14
    high = 24.0 if round_ else len(lines) * LINE + 9
    return {"x": place[0], "y": place[1], "lines": lines, "said": "; ".join(lines), "broad": broad, "high": high}


def _places(topology: Topology) -> Places:
    """Where nodes stand: ranks side by side with a gap between machines, a branch above the middle of its children.

    Where there are many, the ranks of a machine stand in one place.
    """
    places: Places = {}
    names = node_names(topology)
    machines = {path: b for path, b in topology.branches.items() if any(isinstance(c, int) for c in b.children)}
    texts = [text for path, b in machines.items() for text in (names[path], *(f"links: {p}" for p in speeds(b.links)))]
    # A narrow machine still has room for its own text.
    x, least = 0.0, max(2.4, (max(map(len, texts), default=0) * LETTER + 20) / UNIT)
    for ranks in topology.machines:
        step = 1 if topology.size <= MAX_SINGLE else 0
        width = max(least, step * len(ranks))
        first = x + (width - step * (len(ranks) - 1)) / 2
        for number, rank in enumerate(ranks):
            places[rank] = (first + step * number, -float(len(topology.levels)))
        x += width + 0.5
    for path, branch in reversed(topology.branches.items()):
        ends = [
            places[child if isinstance(child, int) else (*path, number)][0]
            for number, child in enumerate(branch.children)
        ]
        places[path] = ((min(ends) + max(ends)) / 2, -float(len(path)))
    return places
