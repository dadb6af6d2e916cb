"""Accuracy against epochs and against bytes: a panel for each family of methods, dense in all of them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from papers.accuracy.rows import DENSE, Method, history, shared, wire_bytes
from wirebench.figures import colours
from wirebench.figures.curves import Curve, curves
from wirebench.figures.provenance import counted, provenance
from wirebench.figures.style import Axis, Figure, Panel, around, grid

PER_PANEL, ACROSS, WIDTH, HEIGHT = 6, 3, 230, 210
UP = "top-1 on the test set, %"
LEAST = 10.0
"""The accuracy of a guess, below which nothing is shown."""

Place = Callable[[dict[str, Any]], float | None]
"""Where an entry of the history stands on the horizontal axis."""


class Share(NamedTuple):
    """The methods of one panel, and what they are called together."""

    title: str
    methods: Sequence[Method]


def against_epochs(methods: Sequence[Method], task: str = "") -> Figure:
    """Top-1 after each epoch."""
    return _figure(methods, task, "epochs", lambda entry: entry["epoch"] + 1, logarithmic=False)


def against_bytes(methods: Sequence[Method], task: str = "") -> Figure:
    """Top-1 by what a worker had sent."""
    return _figure(methods, task, "bytes that a worker had sent, MB", _megabytes, logarithmic=True)


def shares(methods: Sequence[Method]) -> list[Share]:
    """The panels: a family's methods, then its variants of options beside what they vary; dense is not among them."""
    others = [method for method in methods if colours.base(method.label) != DENSE]
    panels = []
    for family in (*colours.FAMILIES, colours.OTHER):
        mine = [method for method in others if colours.family(method.label) == family]
        title, labels = family.capitalize(), {method.label for method in mine}
        varied = [m for m in mine if "=" in m.label and colours.base(m.label) in labels]
        if len(mine) <= PER_PANEL:
            varied = []
        panels += _shares(title, [[method] for method in mine if method not in varied])
        bases = list(dict.fromkeys(colours.base(method.label) for method in varied))
        panels += _shares(f"{title}, options", [part for base in bases for part in _variants(base, mine, varied)])
    return panels


def _variants(base: str, methods: Sequence[Method], varied: Sequence[Method]) -> Iterator[list[Method]]:
    """A method and its variants; several times the method where they are too many for a panel."""
    original = [method for method in methods if method.label == base]
    mine = [method for method in varied if colours.base(method.label) == base]
    for part in _evenly(mine, PER_PANEL - 1):
        yield [*original, *part]


def _shares(title: str, together: Sequence[list[Method]]) -> list[Share]:
    """As many panels as the methods need; methods of one list stay in one panel."""
    wanted = -(-sum(map(len, together)) // PER_PANEL)
    fill = -(-sum(map(len, together)) // max(wanted, 1))
    parts: list[list[Method]] = []
    for those in together:
        if parts and len(parts[-1]) < fill and len(parts[-1]) + len(those) <= PER_PANEL:
            parts[-1] += those
        else:
            parts.append(list(those))
    return [
        Share(f"{title} ({n} of {len(parts)})" if len(parts) > 1 else title, part) for n, part in enumerate(parts, 1)
    ]


def _evenly(methods: Sequence[Method], most: int) -> list[Sequence[Method]]:
    """Split into parts of at most `most` methods, about equally full."""
    count = -(-len(methods) // most)
    each = -(-len(methods) // max(count, 1))
    return [methods[start : start + each] for start in range(0, len(methods), each or 1)]


def _figure(methods: Sequence[Method], task: str, across: str, place: Place, logarithmic: bool) -> Figure:
    shown = [method for method in methods if not method.ends]
    named = ", ".join(method.title for method in methods if method.ends)
    left_out = [f"Left out: {named}."] if named else []
    dash = colours.dashes([method.label for method in shown])
    lines = {method.label: line for method in shown for line in _curve(method, place, dash[method.label])}
    dense = [line for label, line in lines.items() if colours.base(label) == DENSE]
    x, y = _axes(list(lines.values()), across, logarithmic)
    panels: list[Panel] = []
    for share in shares(shown) or [Share("Dense alone", [])]:
        those = [*dense, *(lines[method.label] for method in share.methods if method.label in lines)]
        panels.append(curves(those, x, y, share.title, width=WIDTH, height=HEIGHT))
    seeds = counted((len(method.runs) for method in shown), "seed")
    where = provenance(run.has("environment") or {} for method in shown for run in method.runs)
    note = [f"{_setting(methods)}; means over {seeds}, bands from the least to the largest. {where}.", *left_out]
    columns = min(ACROSS, len(panels))
    what = "Accuracy against bytes" if logarithmic else "Accuracy against epochs"
    title = f"{what}{f': {task}' if task else ''}"
    return grid(panels, title, "\n".join(note), columns, columns * (WIDTH + 170))


def _setting(methods: Sequence[Method]) -> str:
    """What all runs share, in a few words."""
    known = shared(methods)
    what = f"{known.get('model', 'a model')} on {known.get('data', 'some data')}"
    words = {"workers": "{} workers", "batch size": "batch size {}", "epochs": "{} epochs"}
    return ", ".join([what, *(said.format(known[key]) for key, said in words.items() if key in known)])


def _axes(lines: Sequence[Curve], across: str, logarithmic: bool) -> tuple[Axis, Axis]:
    """Axes of all panels. The vertical one begins with the lowest mean: bands of single seeds may be cut off."""
    places = [float(at) for line in lines for at in line.across]
    means = [value for line in lines for value in line.up]
    low = max(min(means, default=LEAST), LEAST)
    # After a first epoch all may be at chance or below it: the axis has a length all the same.
    high = max([low + 1, *(v for line in lines for v in line.high)] if lines else [100.0])
    x = around(across, places, log=logarithmic)
    return x, Axis(UP, (low - 0.03 * (high - low), high + 0.03 * (high - low)))


def _curve(method: Method, place: Place, dash: Sequence[int]) -> Iterator[Curve]:
    """The method's curve, as far as all its runs came; none where they have no place on the axis."""
    runs = [[(place(entry), entry["top1"]) for entry in history(run)] for run in method.runs]
    points = [
        ([at for at, _ in each if at is not None], [100 * top1 for _, top1 in each if top1 is not None])
        for each in zip(*runs, strict=False)
    ]
    whole = [(sum(at) / len(at), top1) for at, top1 in points if len(at) == len(top1) == len(runs)]
    if not whole:
        return
    across, values = zip(*whole, strict=True)
    means = [sum(each) / len(each) for each in values]
    yield Curve(
        method.label, colours.method(method.label), list(across), means, [min(v) for v in values],
        [max(v) for v in values], dash, points=False, width=2.4 if method.label == DENSE else 1.6,
    )  # fmt: skip


def _megabytes(entry: dict[str, Any]) -> float | None:
    count = wire_bytes(entry)
    return None if count is None else count / 1e6
