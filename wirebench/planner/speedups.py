"""The figure of `wirebench simulate`: what schedules make of more workers, of faster links, batches or GPUs."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from wirebench.figures import colours
from wirebench.figures.curves import Curve, curves
from wirebench.figures.style import Figure, around, finished

SWEPT = {
    "workers": "workers",
    "gbit": "rate between machines, Gbit/s",
    "batch": "batch, {unit} of a worker",
    "speed": "GPU speed, times the trace's",
}
SPEEDUP, EFFICIENCY = "speed-up over one worker, times", "efficiency, % of a linear speed-up"
ALIKE = 0.005
"""Schedules whose values differ by no more than this share everywhere are one curve, which has all their names."""


class Point(NamedTuple):
    """One schedule at one point of a sweep.

    efficiency  the share of the workers' throughput that is left; between: its range, least and most
    """

    workers: int
    gbit: float | None
    batch: int
    speed: float
    scheduler: str
    efficiency: float
    between: tuple[float, float]


def figure(points: Sequence[Point], setting: str, unit: str = "images", where: str = "") -> Figure:
    """Speed-up over one worker by workers, or efficiency by whatever else is swept.

    unit  what a batch has; where: what the numbers rest on
    """
    key = next((each for each in SWEPT if len({getattr(point, each) for point in points}) > 1), "workers")
    speedup = key == "workers"
    places = sorted({float(getattr(point, key) or 0.0) for point in points})
    found, low, high = (_heights(points, key, value) for value in VALUES)
    lines = [
        Curve(
            " = ".join(names), colours.schedule(names[0]), list(found[names[0]]), list(found[names[0]].values()),
            list(low[names[0]].values()), list(high[names[0]].values()),
        )
        for names in together(found)
    ]  # fmt: skip
    note = f"{_note(setting, len(lines) < len(found))} {where}".rstrip()
    if speedup:
        lines.append(Curve("linear", colours.GREY, places, places, dash=(2, 3), points=False))
    heights = [value for line in lines for value in (*line.up, *line.low, *line.high)]
    across = around(SWEPT[key].format(unit=unit), places, log=min(places) > 0, values=places)
    up = around(SPEEDUP, heights, log=True, values=places) if speedup else around(EFFICIENCY, heights)
    title = f"Schedules against {SWEPT[key].partition(',')[0]}"
    return finished(curves(lines, across, up, title, note, spread="bars", height=260))


def _note(setting: str, alike: bool) -> str:
    return f"Simulated: {setting}.{' Schedules with equal results are one curve, with all their names.' * alike}"


VALUES: Sequence[Callable[[Point], float]] = (
    lambda point: point.efficiency, lambda point: point.between[0], lambda point: point.between[1],
)  # fmt: skip


def _heights(points: Sequence[Point], key: str, value: Callable[[Point], float]) -> dict[str, dict[float, float]]:
    """Values of the points, by schedule and by their place on the axis."""
    heights: dict[str, dict[float, float]] = {point.scheduler: {} for point in points}
    for point in points:
        scale = point.workers if key == "workers" else 100
        heights[point.scheduler][float(getattr(point, key) or 0.0)] = scale * value(point)
    return heights


def together(found: dict[str, dict[float, float]]) -> list[list[str]]:
    """The names of curves, in one list for each group of equal curves."""
    groups: list[list[str]] = []
    for name, values in found.items():
        same = (
            group for group in groups
            if all(abs(values[at] / value - 1) <= ALIKE for at, value in found[group[0]].items() if value)
        )  # fmt: skip
        group = next(same, None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return groups
