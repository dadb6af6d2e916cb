"""Other learning rates: a third of a method's and three times as much, with the first seed.

That is a search of three points: it shows whether a method lost because of its rate. It covers dense training, the
methods that have a rate of their own, and the methods that claims on losses name. The decay of a step, rate x weight
decay, stays what it is. Three points are a coarse grid. Where the one in the middle is the best, a parabola is laid
through it and its neighbours, by the logarithm of the rate. Its least loss is an estimate of what a finer search
could find. Where that alone would turn a claim, a further rate is tried.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from papers.accuracy.modern import DENSE, FORM, OTHER_DENSE, OTHERS_OF_DION, OWN, SHORTER
from papers.accuracy.rows import MARGIN, MethodRuns, load, settings, tokens
from papers.accuracy.task import Composition, Task, listed, methods_in
from papers.page import Page
from wirebench.errors import UserError
from wirebench.record import notes
from wirebench.record.notes import NotedRun
from wirebench.utils.markdown import table

SUFFIX = "_rates"
"""A part's name is its task's with this suffix."""
_OWN_RATE = (DENSE, "demo", "dion", "lion_sign", "zero_one_adam", "onebit_adam")
_OTHERS_OF_GPT = (
    *OTHER_DENSE, "muon", "muon quantised_sum", "muon sparseloco every=2 beta=1", *OTHERS_OF_DION, "local_sgd",
    "diloco", "diloco momentum=0.5", "muloco momentum=0.5", "streaming_diloco", "sparseloco", "sparseloco k=512",
    "sparseloco every=2", "sparseloco every=2 beta=1",
)  # fmt: skip
SEARCHED = {
    "gpt": (*_OWN_RATE, *_OTHERS_OF_GPT),
    "resnet": (*_OWN_RATE, *SHORTER),
}
"""By task: dense training in all its forms, with which all is compared, whatever has a rate of its own, and what claims
on losses name."""
FACTORS = (1 / 3, 3)
FINER = {"gpt": {"diloco": (0.6,), "diloco momentum=0.5": (0.75,)}}
"""By task and method further rates, as shares of its own: where a parabola has its least, and would turn a claim."""
_RATE, _DECAY = "optimizer.lr", "optimizer.weight_decay"


def at_other_rates(part: Task, names: Sequence[str] | None, density: float = 0.0) -> list[Composition]:
    """The methods at other rates than the task's, all or those that are named; UserError for one that has none."""
    searched = SEARCHED[_task(part)]
    for name in names or ():
        if name not in searched:
            raise UserError(f"--methods: no other rates of {name!r}; there are of: {', '.join(searched)}")
    found = []
    for each in listed(part, list(dict.fromkeys(names or searched))):
        usual = part.composed(each).optimizer
        finer = FINER.get(_task(part), {}).get(each.label, ())
        for rate in (float(f"{factor * usual.lr:.2g}") for factor in (*FACTORS, *finer)):
            decay = usual.weight_decay * usual.lr / rate
            words = (*each.overrides, f"{_RATE}={rate:g}", f"{_DECAY}={decay:.4g}")
            found.append(Composition(f"{each.label} lr={rate:g}", words))
    return found


def _task(part: Task) -> str:
    return part.name.removesuffix(SUFFIX)


class Best(NamedTuple):
    """The rate of a method with the least loss of the first seed.

    share     that loss over the one at the study's rate, at most 1
    words     which rate, and both losses
    measured  whether a run has it; false: it is the parabola's, and the study's rate the best of those that ran
    """

    share: float
    words: str
    measured: bool


def best_rate(method: MethodRuns, others: Sequence[MethodRuns]) -> Best | None:
    """What the search says of a method; None where it was not searched on both sides. `others`: at other rates."""
    tried, own = [each for each in others if _is_of(each, method.label) and _first(each)], _loss(method)
    rates = [*map(_rate, tried)]
    if not _first(method) or not min(rates, default=math.inf) < _rate(method) < max(rates, default=0.0):
        return None
    best = min(tried, key=_loss)
    if _loss(best) >= own:
        return _between(method, tried)
    words = f"{method.label} has {_loss(best):.4f} at {_rate(best):g} with the first seed"
    return Best(_loss(best) / own if own < math.inf else 0.0, f"{words}, and {own:.4f} at {_rate(method):g}", True)


def _between(method: MethodRuns, tried: Sequence[MethodRuns]) -> Best:
    """The least of the parabola through the losses at the study's rate, and at the nearest below and beyond it.

    Without a bound where one of these diverged.
    """
    own, middle = _loss(method), _rate(method)
    points = [(math.log(_rate(each) / middle), _loss(each)) for each in tried]
    low, below = max(each for each in points if each[0] < 0)
    high, beyond = min(each for each in points if each[0] > 0)
    if math.inf in (below, beyond):
        words = f"{method.label} diverged at the next rate to {middle:g} that was tried: what is between nobody knows"
        return Best(0.0, words, False)
    # Newton's divided differences on both sides of the study's own rate, which lies at 0.
    rise, fall = (beyond - own) / high, (below - own) / -low
    if rise + fall <= 0:
        return Best(1.0, f"{method.label} has its least loss at {middle:g}", False)
    bend, slope = (rise + fall) / (high - low), (rise * -low - fall * high) / (high - low)
    least, rate = own - slope**2 / (4 * bend), middle * math.exp(-slope / (2 * bend))
    words = f"a parabola through the losses of {method.label} with the first seed has its least, {least:.4f}"
    return Best(least / own, f"{words}, at {rate:.2g}, and {own:.4f} at {middle:g}", False)


def doubts(methods: Sequence[MethodRuns], others: Sequence[MethodRuns]) -> list[str]:
    """A line on the rows that another rate would make better by more than `MARGIN`; none without any."""
    searched = [best for each in methods if (best := best_rate(each, others)) is not None and best.measured]
    found = [best for best in searched if best.share < 1 - MARGIN]
    if not found:
        return []
    return [
        f"At another learning rate: {'; '.join(best.words for best in found)}. Rows are of the rates that they name.",
        "",
    ]


def tried(folder: Path, part: Task) -> list[MethodRuns]:
    """The runs at other rates in the folder of this part; none where nothing has run. UserError for other ones."""
    found = methods_in(folder, part)
    refuse_mixed(folder, found)
    return found


def refuse_mixed(folder: Path, methods: Sequence[MethodRuns]) -> None:
    """UserError where methods were trained on other lengths or batches, but for other forms of dense training."""
    alike = [each for each in methods if not any(_is_of(each, form) or each.label == form for form in OTHER_DENSE)]
    known = settings([run for method in alike for run in method.runs])
    notes.refuse_mixed(folder, {name: {key: each.get(key) for key in FORM} for name, each in known.items()})


def page(folder: Path, part: Task) -> Page | None:
    """The losses by rate; None where nothing has run. UserError where they were trained otherwise than the study's."""
    others, searched = tried(folder, part), SEARCHED[_task(part)]
    if not others:
        return None
    usual = [each for each in load(folder.with_name(_task(part)), own=OWN) if each.label in searched]
    refuse_mixed(folder, [*others, *usual])
    return Page(folder, document(part, others, usual))


def document(part: Task, tried: Sequence[MethodRuns], usual: Sequence[MethodRuns]) -> str:
    """The whole file: a row for each method, the rates as they rise."""
    own = {each.label: each for each in usual}
    rows = []
    for label in SEARCHED[_task(part)]:
        others = [each for each in tried if _is_of(each, label)]
        if others:
            rows.append([label, *_cells(part, label, [*others, *([own[label]] if label in own else [])])])
    run = tried[0].runs[0]
    seen = (
        f", after {told} tokens a parameter"
        if (told := tokens(run for each in tried for run in each.runs)) != "-"
        else ""
    )
    return "\n".join(
        [
            f"# The methods of today: learning rates on {_task(part)}",
            "",
            f"Loss of the test set, with the first seed{seen}, at a third of a method's rate, at its rate in the "
            "study, and at three times as much; the decay of a step stays. The least is marked. There is no validation "
            f"set: rates are compared on the set that losses are told of. On {run.machine}; made by `wirebench study "
            f"accuracy run`, which runs `{run.note['launch']}` and the like.",
            "",
            *table(("method", "a third", "the study's", "three times", "between"), rows),
        ]
    )


def _cells(part: Task, label: str, methods: Sequence[MethodRuns]) -> list[str]:
    """A third, the study's own rate, three times as much, and what else was tried; a dash for what was not run."""
    middle = part.composed(listed(part, [label])[0]).optimizer.lr
    least = min(map(_loss, methods))
    cells, there = [], [each for each in methods if _first(each)]
    for column in ((FACTORS[0],), (1.0,), (FACTORS[1],), FINER.get(_task(part), {}).get(label, ())):
        rates = [factor * middle for factor in column]
        found = [each for each in there if any(math.isclose(_rate(each), rate, rel_tol=0.05) for rate in rates)]
        cells.append(", ".join(_words(each, least) for each in found) or "-")
    return cells


def _words(method: MethodRuns, least: float) -> str:
    loss = _loss(method)
    return f"{_rate(method):g}: " + (f"{loss:.4f}{' *' if loss == least else ''}" if loss < math.inf else "diverged")


def _first(method: MethodRuns) -> NotedRun | None:
    return next((run for run in method.runs if run.note["seed"] == 0), None)


def _is_of(method: MethodRuns, label: str) -> bool:
    return method.label.startswith(f"{label} lr=")


def _rate(method: MethodRuns) -> float:
    return float(method.runs[0].record["config"]["optimizer"]["lr"])


def _loss(method: MethodRuns) -> float:
    """Loss of the first seed; infinite where it has none, or diverged."""
    first = _first(method)
    return math.inf if first is None or first.diverged else float(first.has("final", "loss") or math.inf)
