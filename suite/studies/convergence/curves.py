"""Accuracy against epochs and against bytes: a few curves to a panel, each with its name at its end."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from suite.studies.convergence.rows import Method, history, wire_bytes
from suite.studies.convergence.tasks import DENSE

PER_PANEL, ACROSS = 4, 3
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Okabe and Ito's, which the colour-blind can tell apart; dense is black."""

Place = Callable[[dict[str, Any]], float | None]
"""Where an entry of the history stands on the horizontal axis."""
LABEL_GAP = 0.055
"""Between two labels, as a share of the height of a panel."""


class Curve(NamedTuple):
    """A method's mean over seeds, with its least and largest."""

    name: str
    colour: str
    across: list[float]
    mean: list[float]
    least: list[float]
    most: list[float]


def against_epochs(methods: Sequence[Method]) -> Figure:
    """Top-1 after each epoch."""
    return _panels(methods, "epochs", lambda entry: entry["epoch"] + 1, logarithmic=False)


def against_bytes(methods: Sequence[Method]) -> Figure:
    """Top-1 by what a worker had sent."""
    return _panels(methods, "MB that a worker sent", _megabytes, logarithmic=True)


def _panels(methods: Sequence[Method], across: str, place: Place, logarithmic: bool) -> Figure:
    dense = [curve for method in methods if method.label == DENSE for curve in _curve(method, place, "black")]
    others = [method for method in methods if method.label != DENSE]
    shown = [others[i : i + PER_PANEL] for i in range(0, len(others), PER_PANEL)] or [[]]
    tall = -(-len(shown) // ACROSS)
    figure = Figure(figsize=(4.4 * min(len(shown), ACROSS), 3.4 * tall), layout="constrained")
    axes = figure.subplots(tall, min(len(shown), ACROSS), sharex=True, sharey=True, squeeze=False).ravel()
    low = min((value for method in methods for value in _curve_means(method, place)), default=0.0)
    for axis, those in zip(axes, shown, strict=False):
        coloured = zip(those, COLOURS, strict=False)
        curves = [curve for method, colour in coloured for curve in _curve(method, place, colour)]
        _draw(axis, [*dense, *curves], low, logarithmic)
    for axis in axes[len(shown) :]:
        axis.set_visible(False)
    for axis in axes[:: min(len(shown), ACROSS)]:
        axis.set_ylabel("top-1 on the test set, %")
    for axis in axes[max(len(shown) - ACROSS, 0) : len(shown)]:
        axis.set_xlabel(across)
        axis.tick_params(labelbottom=True)
    return figure


def _draw(axis: Axes, curves: Sequence[Curve], low: float, logarithmic: bool) -> None:
    for curve in curves:
        axis.fill_between(curve.across, curve.least, curve.most, color=curve.colour, alpha=0.15, linewidth=0)
        axis.plot(curve.across, curve.mean, color=curve.colour, linewidth=2 if curve.name == DENSE else 1.4)
    axis.set_ylim(max(low, 10.0), None)
    if logarithmic:
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    _label(axis, [curve for curve in curves if curve.mean])


def _label(axis: Axes, curves: Sequence[Curve]) -> None:
    """Names to the right of the panel, each with a line to the end of its curve, as near to it as the others allow."""
    bottom, top = axis.get_ylim()
    ends = sorted(curves, key=lambda each: each.mean[-1])
    places = apart([(curve.mean[-1] - bottom) / (top - bottom) for curve in ends], LABEL_GAP)
    for curve, place in zip(ends, places, strict=True):
        axis.annotate(
            curve.name, (curve.across[-1], curve.mean[-1]), xytext=(1.06, place), textcoords="axes fraction",
            color=curve.colour, fontsize=8, va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": curve.colour, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip


def apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Ascending places, at least `gap` apart, with the least sum of squared distances from those that are wanted.

    Places that would overlap form a block, which lies where it is wanted on average (pool adjacent violators).
    """
    blocks: list[list[float]] = []
    for number, place in enumerate(wanted):
        # Without the gaps, what is left is to ascend.
        blocks.append([place - number * gap])
        while len(blocks) > 1 and statistics.mean(blocks[-2]) > statistics.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    level = [statistics.mean(block) for block in blocks for _ in block]
    return [each + number * gap for number, each in enumerate(level)]


def _curve(method: Method, place: Place, colour: str) -> list[Curve]:
    """The method's curve, as far as all its runs came; none where they have no place on the axis."""
    runs = [[(place(entry), entry["top1"]) for entry in history(run)] for run in method.runs]
    points = [
        ([at for at, _ in each if at is not None], [100 * top1 for _, top1 in each if top1 is not None])
        for each in zip(*runs, strict=False)
    ]
    whole = [(sum(at) / len(at), top1) for at, top1 in points if len(at) == len(top1) == len(runs)]
    if not whole:
        return []
    across, values = zip(*whole, strict=True)
    means = [sum(each) / len(each) for each in values]
    return [Curve(method.title, colour, list(across), means, [min(v) for v in values], [max(v) for v in values])]


def _curve_means(method: Method, place: Place) -> list[float]:
    """What decides where the vertical axis begins: accuracies after the first third of a run."""
    return [value for curve in _curve(method, place, "") for value in curve.mean[len(curve.mean) // 3 :]]


def _megabytes(entry: dict[str, Any]) -> float | None:
    count = wire_bytes(entry)
    return None if count is None else count / 1e6
