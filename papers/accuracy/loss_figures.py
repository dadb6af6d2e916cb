"""Training loss by bytes and by seconds: a panel for each family of methods, dense training in all if it has a place.

Dense training on fewer tokens or in larger batches has no curve: it is compared at its end.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence

from papers.accuracy.curve import WINDOW
from papers.accuracy.modern import DENSE, OTHER_DENSE
from papers.accuracy.rows import Method
from papers.accuracy.times import Yardstick
from wirebench.figures import colours
from wirebench.figures.curves import Curve, curves
from wirebench.figures.provenance import counted, provenance
from wirebench.figures.style import Figure, around, grid
from wirebench.record.notes import NotedRun

ACROSS, WIDTH, HEIGHT = 2, 320, 250
MOST_POINTS = 36
"""Most points of a curve: a longer one has means over several windows, to keep the page of all results small."""
SHOWN_GBIT = {"seconds.svg": 1.0, "seconds-100mbit.svg": 0.1}
"""Rates in Gbit/s by the figure's file."""
UP = "first worker's training loss, nats"
FAMILIES = {
    "local steps": {
        "diloco": colours.BLUE, "diloco momentum=0.5": colours.SKY, "streaming_diloco": colours.GREEN,
        "local_sgd": colours.PINK, "local_sgd every=2": colours.ORANGE, "muloco momentum=0.5": colours.WINE,
    },
    "local steps, compressed": {
        "sparseloco": colours.VERMILLION, "sparseloco k=512": colours.BLUE, "sparseloco k=4096": colours.GREEN,
        "sparseloco topk": colours.PINK, "sparseloco every=10": colours.ORANGE, "sparseloco every=2": colours.SKY,
        "sparseloco every=2 beta=1": colours.WINE, "topk of steps": colours.OLIVE,
    },
    "updates in place of gradients": {
        "demo": colours.BLUE, "lion_sign": colours.GREEN, "zero_one_adam": colours.PINK, "onebit_adam": colours.ORANGE,
    },
    "orthonormal updates": {
        "dion": colours.VERMILLION, "dion rank_fraction=0.5": colours.ORANGE, "dion rank_fraction=1": colours.PINK,
        "dion orthonormal": colours.BLUE, "muon": colours.GREEN, "muon quantised_sum": colours.SKY,
        "muon sparseloco every=2 beta=1": colours.WINE,
    },
}  # fmt: skip
"""Methods of each figure, beside the methods of every figure: local steps, and methods that update weights otherwise
than AdamW does."""

Place = Callable[[NotedRun, Sequence[float]], float | None]
"""Where a window of a run's curve stands on the horizontal axis."""


def by_bytes(task: str, methods: Sequence[Method]) -> Figure:
    """Loss by the bytes that a worker had sent."""
    return _figure(
        f"Loss by bytes: {task}", methods, "bytes that a worker had sent, MB", lambda run, point: point[2] / 1e6
    )


def by_seconds(task: str, methods: Sequence[Method], by: Yardstick, gbit: float) -> Figure | None:
    """By the time that a run takes at this link rate; one without an accepted time has none. None if all are."""

    def place(run: NotedRun, point: Sequence[float]) -> float | None:
        found = by.pace(run, gbit)
        return None if found is None else found.until(point, run.note["curve"][-1])

    if not any(_has_place(run, place) for method in _shown(methods) for run in method.runs):
        return None
    title = f"Loss by time at {gbit:g} Gbit/s: {task}"
    return _figure(title, methods, "seconds, computing measured and exchange simulated", place)


def _figure(title: str, methods: Sequence[Method], across: str, place: Place) -> Figure:
    shown = _shown(methods)
    lines = {method.label: line for method in shown for line in _curve(method, place)}
    every = list(lines.values())
    x = around(across, [float(at) for line in every for at in line.across], log=True)
    y = around(UP, [value for line in every for value in line.up], zero=False)
    dense = [lines[DENSE]] if DENSE in lines else []
    panels = [
        curves([*dense, *those], x, y, family.capitalize(), width=WIDTH, height=HEIGHT)
        for family, those in _families(lines).items()
    ] or [curves(dense, x, y, "Dense alone", width=WIDTH, height=HEIGHT)]
    drawn = {method.label: [run for run in method.runs if _has_place(run, place)] for method in shown}
    seeds = counted((len(drawn[label]) for label in lines), "seed")
    where = provenance(run.has("environment") or {} for runs in drawn.values() for run in runs)
    left_out = [label for label in drawn if label not in lines]
    note = (
        f"Means over {seeds} and {WINDOW * _merged(shown)} steps, bands from the least to the largest; between "
        f"exchanges the weights are the worker's own. {where}."
    ) + (f" Without an accepted time: {', '.join(left_out)}." if left_out else "")
    columns = min(ACROSS, len(panels))
    return grid(panels, title, note, columns, columns * (WIDTH + 170))


def _shown(methods: Sequence[Method]) -> list[Method]:
    return [method for method in methods if not method.ends and method.label not in OTHER_DENSE]


def _families(lines: dict[str, Curve]) -> dict[str, list[Curve]]:
    families: dict[str, list[Curve]] = {}
    for label, line in lines.items():
        if label != DENSE:
            families.setdefault(_family(label), []).append(line)
    return families


def _family(label: str) -> str:
    return next((name for name, methods in FAMILIES.items() if label in methods), colours.family(label))


def _colour(label: str) -> str:
    return FAMILIES.get(_family(label), {}).get(label) or colours.method(label)


def _merged(methods: Sequence[Method]) -> int:
    """How many windows a point of the longest curve stands for."""
    longest = max((len(run.note["curve"]) for method in methods for run in method.runs), default=0)
    return max(-(-longest // MOST_POINTS), 1)


def _points(curve: Sequence[Sequence[float]]) -> list[tuple[Sequence[float], float]]:
    """Groups of windows: the last one, which says where the group ends, and the mean loss of all."""
    many = max(-(-len(curve) // MOST_POINTS), 1)
    groups = [curve[begin : begin + many] for begin in range(0, len(curve), many)]
    return [(group[-1], statistics.mean(point[1] for point in group)) for group in groups]


def _has_place(run: NotedRun, place: Place) -> bool:
    return any(place(run, point) for point in run.note["curve"])


def _curve(method: Method, place: Place) -> Iterator[Curve]:
    """The mean curve of its runs that have a place on the axis, as far as all of these came."""
    those = [run for run in method.runs if _has_place(run, place)]
    runs = [[(place(run, last), loss) for last, loss in _points(run.note["curve"])] for run in those]
    whole = []
    for each in zip(*runs, strict=False):
        places = [at for at, _ in each if at]
        if len(places) == len(runs):
            whole.append((statistics.mean(places), [loss for _, loss in each]))
    if whole:
        across, values = zip(*whole, strict=True)
        yield Curve(
            method.label, _colour(method.label), list(across), [statistics.mean(v) for v in values],
            [min(v) for v in values], [max(v) for v in values], points=False,
            width=2.4 if method.label == DENSE else 1.6,
        )  # fmt: skip
