"""How trainings went: a measure by epochs, bytes or seconds, a line for each method, in panels by family.

Lines are means over seeds, as far as all seeds came, with bands from the least to the largest. Methods with a seed that
did not come to its end are left out. Also left out is dense training on fewer tokens or in larger batches, which is
compared at its end.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from papers.accuracy.curve import WINDOW
from papers.accuracy.modern import OTHER_DENSE
from papers.accuracy.rows import DENSE, MethodRuns, history, runs_of, shared, wire_bytes
from papers.accuracy.times import Yardstick
from papers.rows import provenance_of
from wirebench.figures import colours
from wirebench.figures.curves import Curve, curves
from wirebench.figures.provenance import counted
from wirebench.figures.style import Axis, Figure, Panel, around, grid
from wirebench.record.notes import NotedRun

WIDTH, HEIGHT, BESIDE = 260, 230, 170
"""Pixels of a panel, and of the names beside it."""
ACROSS, PER_PANEL = 3, 6
LEAST = 10.0
"""The accuracy of a guess, in percent, below which nothing is shown."""
MOST_POINTS = 36
"""Most points of a loss's curve: a longer one has means over several windows, to keep the site small."""
SHOWN_GBIT = {"seconds.svg": 1.0, "seconds-100mbit.svg": 0.1}
"""Rates in Gbit/s by the figure's file."""
UPDATES = {
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
"""Panels of local steps, and of methods that update weights otherwise than AdamW does, beside the families of all."""

Point = tuple[float | None, float | None]
"""Where a reading stands on the horizontal axis, and what it is; None where it has no place or no number."""
Points = Callable[[NotedRun], Sequence[Point]]


class CurveMeasure(NamedTuple):
    """A number of each epoch: its axis, and where an entry of the history has it; None for an epoch without."""

    title: str
    of: Callable[[Mapping[str, Any]], float | None]

    def by_epoch(self, run: NotedRun) -> list[Point]:
        """Its readings, by epochs counted from 1."""
        return [(entry["epoch"] + 1, self.of(entry)) for entry in history(run)]

    def by_bytes(self, run: NotedRun) -> list[Point]:
        """Its readings, by the MB that a worker had sent."""
        sent = [wire_bytes(entry) for entry in history(run)]
        known = [None if count is None else count / 1e6 for count in sent]
        return list(zip(known, map(self.of, history(run)), strict=True))


TOP1 = CurveMeasure("top-1 on the test set, %", lambda entry: None if entry["top1"] is None else 100 * entry["top1"])
LOSS = CurveMeasure("training loss", lambda entry: entry.get("loss"))


def line(
    method: MethodRuns, points: Points, dash: Sequence[int] = colours.DASHES[0], tone: str | None = None
) -> Curve | None:
    """The curve of a method; None without a point that all its runs have."""
    of_runs = zip(*map(points, method.runs), strict=False)
    whole = [each for each in of_runs if all(None not in point for point in each)]
    if not whole:
        return None
    across = [_mean(at for at, _ in each) for each in whole]
    values = [[value for _, value in each if value is not None] for each in whole]
    low, high = ([of(each) for each in values] for of in (min, max))
    breadth, tone = 2.4 if method.label == DENSE else 1.6, tone or colours.method(method.label)
    return Curve(method.label, tone, across, list(map(_mean, values)), low, high, dash, points=False, width=breadth)


def _mean(values: Iterable[float | None]) -> float:
    return statistics.fmean(value for value in values if value is not None)


def panel(
    methods: Sequence[MethodRuns], measure: CurveMeasure, title: str, beside: Sequence[Curve] = (),
    tones: Mapping[str, str] | None = None,
) -> Panel | None:  # fmt: skip
    """A panel of all methods by epochs; None where no epoch has the measure.

    beside  further lines, such as a paper's numbers
    tones   colours by label, for figures that would otherwise have the same colours
    """
    lines = list(_lines(methods, measure.by_epoch, tones).values())
    if not lines:
        return None
    across = around("epochs", [float(at) for each in (*lines, *beside) for at in each.across])
    amounts = [*_amounts(lines), *(value for each in beside for value in each.up)]
    up = around(measure.title, amounts, zero=False)
    return curves([*lines, *beside], across, up, title, width=WIDTH, height=HEIGHT)


def at_epoch(name: str, epoch: float, methods: Sequence[MethodRuns], measure: CurveMeasure, tone: str) -> Curve | None:
    """A vertical line at an epoch, as high as the methods' lines; None where all of them ended before it."""
    lines = list(_lines(methods, measure.by_epoch).values())
    if not lines or max(float(at) for each in lines for at in each.across) < epoch:
        return None
    amounts = _amounts(lines)
    return Curve(name, tone, [epoch, epoch], [min(amounts), max(amounts)], dash=(2, 2), points=False)


def _lines(methods: Sequence[MethodRuns], points: Points, tones: Mapping[str, str] | None = None) -> dict[str, Curve]:
    """By label, of all methods that came to their end."""
    whole = [method for method in methods if not method.ends]
    dash, tones = colours.dashes([method.label for method in whole]), tones or {}
    made = {each.label: line(each, points, dash[each.label], tones.get(each.label)) for each in whole}
    return {label: each for label, each in made.items() if each is not None}


def _amounts(lines: Iterable[Curve]) -> list[float]:
    return [value for each in lines for value in (*each.up, *each.low, *each.high)]


def setting(methods: Sequence[MethodRuns]) -> str:
    """What all runs share, how many seeds there are, what bands mean, and where they ran."""
    known = shared(methods)
    words = {"workers": "{} workers", "batch size": "batch size {}", "epochs": "{} epochs"}
    what = f"{known.get('model', 'a model')} on {known.get('data', 'some data')}"
    what = ", ".join([what, *(said.format(known[key]) for key, said in words.items() if key in known)])
    left_out = [method.title for method in methods if method.ends]
    ended = f" Left out: {', '.join(left_out)}." if left_out else ""
    return f"{what}; {_means(methods)}{ended}"


def _means(methods: Sequence[MethodRuns]) -> str:
    seeds = counted((len(method.runs) for method in methods), "seed")
    where = provenance_of(runs_of(methods))
    return f"means over {seeds}, bands from the least to the largest. {where}."


def accuracy_by_epochs(methods: Sequence[MethodRuns], task: str) -> Figure:
    """Top-1 after each epoch."""
    lines = _lines(methods, TOP1.by_epoch)
    across = around("epochs", [float(at) for each in lines.values() for at in each.across])
    return _of_accuracy(f"Accuracy against epochs: {task}", methods, lines, across)


def accuracy_by_bytes(methods: Sequence[MethodRuns], task: str) -> Figure:
    """Top-1 by what a worker had sent."""
    lines = _lines(methods, TOP1.by_bytes)
    places = [float(at) for each in lines.values() for at in each.across]
    across = around("bytes that a worker had sent, MB", places, log=True)
    return _of_accuracy(f"Accuracy against bytes: {task}", methods, lines, across)


def _of_accuracy(title: str, methods: Sequence[MethodRuns], lines: Mapping[str, Curve], across: Axis) -> Figure:
    """The vertical axis begins with the lowest mean: bands of single seeds may be cut off."""
    low = max(min((value for each in lines.values() for value in each.up), default=LEAST), LEAST)
    # After a first epoch all may be at chance or below it: the axis has a length all the same.
    high = max([low + 1, *(value for each in lines.values() for value in each.high)] if lines else [100.0])
    up = Axis(TOP1.title, (low - 0.03 * (high - low), high + 0.03 * (high - low)))
    return _grid(title, lines, dict(by_family(list(lines))), across, up, setting(methods))


def _grid(
    title: str, lines: Mapping[str, Curve], panels: Mapping[str, Sequence[str]], across: Axis, up: Axis, note: str
) -> Figure:
    """Panels of the methods with these labels, with dense training in all."""
    dense = [lines[DENSE]] if DENSE in lines else []
    drawn = [
        curves([*dense, *(lines[label] for label in labels)], across, up, name, width=WIDTH, height=HEIGHT)
        for name, labels in (panels or {"Dense alone": []}).items()
    ]
    columns = min(ACROSS, len(drawn))
    return grid(drawn, title, note, columns, columns * (WIDTH + BESIDE))


def by_family(labels: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The panels: a family's methods, then its variants of options beside what they vary; dense is not among them."""
    others = [label for label in labels if colours.base(label) != DENSE]
    for family in (*colours.FAMILIES, colours.OTHER):
        mine = [label for label in others if colours.family(label) == family]
        varied = [label for label in mine if "=" in label and colours.base(label) in mine]
        if len(mine) <= PER_PANEL:
            varied = []
        yield from _panels(family.capitalize(), [[label] for label in mine if label not in varied])
        bases = dict.fromkeys(colours.base(label) for label in varied)
        together = [part for base in bases for part in _variants(base, varied)]
        yield from _panels(f"{family.capitalize()}, options", together)


def _variants(base: str, varied: Sequence[str]) -> Iterator[list[str]]:
    """A method and its variants; several times the method where they are too many for a panel."""
    for part in _evenly([label for label in varied if colours.base(label) == base], PER_PANEL - 1):
        yield [base, *part]


def _panels(title: str, together: Sequence[list[str]]) -> Iterator[tuple[str, list[str]]]:
    """As many panels as the labels need; labels of one list stay in one panel."""
    wanted = -(-sum(map(len, together)) // PER_PANEL)
    fill = -(-sum(map(len, together)) // max(wanted, 1))
    parts: list[list[str]] = []
    for those in together:
        if parts and len(parts[-1]) < fill and len(parts[-1]) + len(those) <= PER_PANEL:
            parts[-1] += those
        else:
            parts.append(list(those))
    for number, part in enumerate(parts, 1):
        yield (f"{title} ({number} of {len(parts)})" if len(parts) > 1 else title), part


def _evenly(labels: Sequence[str], most: int) -> list[Sequence[str]]:
    """Split into parts of at most `most` labels, about equally full."""
    count = -(-len(labels) // most)
    each = -(-len(labels) // max(count, 1))
    return [labels[start : start + each] for start in range(0, len(labels), each or 1)]


def loss_by_bytes(task: str, methods: Sequence[MethodRuns]) -> Figure:
    """The first worker's training loss by the bytes that a worker had sent."""
    return _of_loss(
        f"Loss by bytes: {task}", methods, "bytes that a worker had sent, MB", lambda run, point: point[2] / 1e6
    )


def loss_by_seconds(task: str, methods: Sequence[MethodRuns], by: Yardstick, gbit: float) -> Figure | None:
    """By the time that a run takes at this link rate; one without an accepted time has none. None if all are."""

    def place(run: NotedRun, point: Sequence[float]) -> float | None:
        found = by.pace(run, gbit)
        return None if found is None else found.until(point, run.note["curve"][-1])

    shown = [method for method in methods if not method.ends and method.label not in OTHER_DENSE]
    if not any(place(run, point) for run in runs_of(shown) for point in run.note["curve"]):
        return None
    title = f"Loss by time at {gbit:g} Gbit/s: {task}"
    return _of_loss(title, methods, "seconds, computing measured and exchange simulated", place)


def _of_loss(
    title: str, methods: Sequence[MethodRuns], across: str, place: Callable[[NotedRun, Sequence[float]], float | None]
) -> Figure:
    def points(run: NotedRun) -> list[Point]:
        return [(place(run, last) or None, loss) for last, loss in windows(run.note["curve"])]

    shown = [method for method in methods if not method.ends and method.label not in OTHER_DENSE]
    drawn = [
        MethodRuns(method.label, those)
        for method in shown
        if (those := tuple(run for run in method.runs if any(at for at, _ in points(run))))
    ]
    tones = {method.label: _update(method.label)[1] for method in drawn}
    lines = {each.label: made for each in drawn if (made := line(each, points, tone=tones[each.label]))}
    x = around(across, [float(at) for each in lines.values() for at in each.across], log=True)
    up = around("first worker's training loss, nats", [v for each in lines.values() for v in each.up], zero=False)
    panels: dict[str, list[str]] = {}
    for label in lines:
        if label != DENSE:
            panels.setdefault(_update(label)[0].capitalize(), []).append(label)
    longest = max((len(run.note["curve"]) for run in runs_of(shown)), default=0)
    left_out = [method.label for method in shown if method.label not in lines]
    note = (
        f"Training loss over {WINDOW * _merged(longest)} steps; between exchanges the weights are the worker's own; "
        f"{_means(drawn)}"
    ) + (f" Without an accepted time: {', '.join(left_out)}." if left_out else "")
    return _grid(title, lines, panels, x, up, note)


def _update(label: str) -> tuple[str, str]:
    """A method's panel, and its colour there."""
    found = ((name, tones[label]) for name, tones in UPDATES.items() if label in tones)
    return next(found, (colours.family(label), colours.method(label)))


def windows(curve: Sequence[Sequence[float]]) -> list[tuple[Sequence[float], float]]:
    """Groups of windows: the last one, which says where the group ends, and the mean loss of all."""
    many = _merged(len(curve))
    groups = [curve[begin : begin + many] for begin in range(0, len(curve), many)]
    return [(group[-1], statistics.mean(point[1] for point in group)) for group in groups]


def _merged(length: int) -> int:
    """How many windows a point of a curve stands for."""
    return max(-(-length // MOST_POINTS), 1)
