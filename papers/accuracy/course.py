"""How trainings went, epoch by epoch: one panel of a measure, a line for each method, for the figures of papers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from papers.accuracy.rows import DENSE, Method, history, shared
from wirebench.figures import colours
from wirebench.figures.curves import Curve, curves
from wirebench.figures.provenance import counted, provenance
from wirebench.figures.style import Panel, around
from wirebench.record.notes import NotedRun

WIDTH, HEIGHT = 260, 230
EPOCHS = "epochs"


class Measure(NamedTuple):
    """A number of each epoch: its axis, and where an entry of the history has it; None for an epoch without."""

    title: str
    of: Callable[[Mapping[str, Any]], float | None]


TOP1 = Measure("top-1 on the test set, %", lambda entry: _percent(entry.get("top1")))
LOSS = Measure("training loss", lambda entry: entry.get("loss"))


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def line(
    method: Method, measure: Measure, dash: Sequence[int] = colours.DASHES[0], tone: str | None = None
) -> Curve | None:
    """Means over seeds, with the least and the largest, of the epochs that all seeds have; None without any."""
    by_run = [_by_epoch(run, measure) for run in method.runs]
    epochs = sorted(set.intersection(*(set(each) for each in by_run))) if by_run else []
    if not epochs:
        return None
    values = [[each[epoch] for each in by_run] for epoch in epochs]
    means = [sum(each) / len(each) for each in values]
    low, high = ([of(each) for each in values] if len(by_run) > 1 else [] for of in (min, max))
    breadth = 2.4 if method.label == DENSE else 1.6
    tone = tone or colours.method(method.label)
    return Curve(method.label, tone, epochs, means, low, high, dash, points=False, width=breadth)


def _by_epoch(run: NotedRun, measure: Measure) -> dict[int, float]:
    """Return the measure by epoch, counted from 1."""
    known = ((entry["epoch"] + 1, measure.of(entry)) for entry in history(run))
    return {epoch: value for epoch, value in known if value is not None}


def panel(
    methods: Sequence[Method], measure: Measure, title: str, beside: Sequence[Curve] = (),
    tones: Mapping[str, str] | None = None,
) -> Panel | None:  # fmt: skip
    """A panel of all methods that reached their end; None where no epoch has the measure.

    beside  further lines, such as a paper's numbers
    tones   colours by label, for figures that would otherwise have the same colours
    """
    whole = [method for method in methods if not method.ends]
    dash = colours.dashes([method.label for method in whole])
    lines = [
        made for method in whole if (made := line(method, measure, dash[method.label], (tones or {}).get(method.label)))
    ]
    if not lines:
        return None
    across = around(EPOCHS, [float(at) for each in (*lines, *beside) for at in each.across])
    amounts = [value for each in lines for value in (*each.up, *each.low, *each.high)]
    up = around(measure.title, [*amounts, *(value for each in beside for value in each.up)], zero=False)
    return curves([*lines, *beside], across, up, title, width=WIDTH, height=HEIGHT)


def at_epoch(name: str, epoch: float, methods: Sequence[Method], measure: Measure, tone: str) -> Curve | None:
    """A vertical line at an epoch, as high as the methods' lines; None where all of them ended before it."""
    lines = [made for method in methods if not method.ends and (made := line(method, measure))]
    if not lines or max(float(at) for each in lines for at in each.across) < epoch:
        return None
    amounts = [value for each in lines for value in (*each.up, *each.low, *each.high)]
    return Curve(name, tone, [epoch, epoch], [min(amounts), max(amounts)], dash=(2, 2), points=False)


def setting(methods: Sequence[Method]) -> str:
    """What all runs share, how many seeds there are, what bands mean, and where they ran."""
    known = shared(methods)
    words = {"workers": "{} workers", "batch size": "batch size {}", "epochs": "{} epochs"}
    what = f"{known.get('model', 'a model')} on {known.get('data', 'some data')}"
    what = ", ".join([what, *(said.format(known[key]) for key, said in words.items() if key in known)])
    seeds = counted((len(method.runs) for method in methods), "seed")
    where = provenance(run.has("environment") or {} for method in methods for run in method.runs)
    left_out = [method.title for method in methods if method.ends]
    ended = f" Left out: {', '.join(left_out)}." if left_out else ""
    return f"{what}; means over {seeds}, bands from the least to the largest. {where}.{ended}"
