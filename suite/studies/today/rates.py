"""Learning rates of the methods that have one of their own: a third of it and three times as much, with the first seed.

That is a search of three points, for dense training as for the others: it says whether a method lost for its rate.
The decay of a step, rate x weight decay, stays what it is.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from suite.studies import notes
from suite.studies.convergence.rows import Method, load, read, settings
from suite.studies.convergence.tasks import Composition, Task
from suite.studies.page import Page
from suite.studies.runner import ROOT
from suite.studies.today.outcome import MARGIN
from suite.studies.today.tasks import DENSE, TASKS, compositions
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.utils.markdown import table

RATES = {f"{name}_rates": task for name, task in TASKS.items()}
"""The parts, and what they train."""
SEARCHED = (DENSE, "demo", "dion", "lion_sign", "zero_one_adam", "onebit_adam")
"""Dense training, and whatever has a rate of its own; all else has that of dense training."""
FACTORS = (1 / 3, 3)
LENGTH = ("epochs", "steps")
"""Settings in which dense training on fewer tokens differs from all others."""
OWN = ("learning rate", *LENGTH)
"""Settings in which a task's own runs may differ."""
_RATE, _DECAY = "optimizer.lr", "optimizer.weight_decay"


def at_other_rates(task: Task, names: Sequence[str] | None) -> list[Composition]:
    """The methods at other rates than the task's: of those that are named, such as have a rate of their own.

    UserError for one that the task does not have, and where none has a rate of its own.
    """
    compositions(task, names)
    chosen = [name for name in dict.fromkeys(names or SEARCHED) if name in SEARCHED]
    if not chosen:
        raise UserError(
            f"--methods: none of {', '.join(names or ())} has a rate of its own; {', '.join(SEARCHED)} have"
        )
    found = []
    for each in compositions(task, chosen):
        usual = loader.load(ROOT / task.config, list(each.overrides)).optimizer
        for rate in (float(f"{factor * usual.lr:.2g}") for factor in FACTORS):
            decay = usual.weight_decay * usual.lr / rate
            words = (*each.overrides, f"{_RATE}={rate:g}", f"{_DECAY}={decay:.4g}")
            found.append(Composition(f"{each.label} lr={rate:g}", words, each.density))
    return found


def better_rate(method: Method, others: Sequence[Method]) -> str:
    """What the search says against a method's loss: another rate has less of it, or none was tried; else "".

    others  the runs at other rates
    """
    if method.label not in SEARCHED:
        return ""
    tried = [each for each in others if _is_of(each, method.label)]
    if len(tried) < len(FACTORS):
        return f"other rates of {method.label} were not tried"
    best = min(tried, key=_loss)
    if _loss(best) < (1 - MARGIN) * _loss(method):
        return f"{method.label} has {_loss(best):.4f} at the rate {_rate(best):g} with the first seed"
    return ""


def tried_beside(folder: Path) -> list[Method]:
    """The runs at other rates that belong to a task's folder; none where nothing has run."""
    beside = folder.with_name(f"{folder.name}_rates")
    return load(beside, own=OWN[:1]) if read(beside) else []


def page(folder: Path) -> Page | None:
    """The losses by rate; None where nothing has run. UserError where they were trained otherwise than the study's."""
    task, tried = RATES[folder.name], tried_beside(folder.with_name(RATES[folder.name].name))
    if not tried:
        return None
    usual = [each for each in load(folder.with_name(task.name), own=OWN) if each.label in SEARCHED]
    alike = settings([run for method in (*tried, *usual) for run in method.runs])
    notes.refuse_mixed(folder, {name: {key: each.get(key) for key in LENGTH} for name, each in alike.items()})
    return Page(folder, document(task, tried, usual))


def document(task: Task, tried: Sequence[Method], usual: Sequence[Method]) -> str:
    """The whole file: a row for each method, the rates as they rise."""
    own = {each.label: each for each in usual}
    rows = []
    for label in SEARCHED:
        others = [each for each in tried if _is_of(each, label)]
        if others:
            rows.append([label, *_cells(task, label, [*others, *([own[label]] if label in own else [])])])
    run = tried[0].runs[0]
    return "\n".join(
        [
            f"# The methods of today: learning rates on {task.name}",
            "",
            "Loss of the test set, with the first seed, at a third of a method's rate, at its rate in the study, and "
            "at three times as much; the decay of a step stays. The least is marked. The rate is searched for on the "
            f"set that losses are told of, since there is no third one. On {run.machine}; made by `wirebench study "
            f"today run`, which runs `{run.note['launch']}` and the like.",
            "",
            *table(("method", "a third", "the study's", "three times"), rows),
        ]
    )


def _cells(task: Task, label: str, methods: Sequence[Method]) -> list[str]:
    """A third, the study's own rate, and three times as much; a dash for what was not run."""
    [usual] = compositions(task, [label])
    middle = loader.load(ROOT / task.config, list(usual.overrides)).optimizer.lr
    least = min(map(_loss, methods))
    cells = []
    for factor in (FACTORS[0], 1.0, FACTORS[1]):
        found = [each for each in methods if math.isclose(_rate(each), factor * middle, rel_tol=0.05)]
        cells.append(", ".join(_words(each, least) for each in found) or "-")
    return cells


def _words(method: Method, least: float) -> str:
    loss = _loss(method)
    return f"{_rate(method):g}: " + (f"{loss:.4f}{' *' if loss == least else ''}" if loss < math.inf else "diverged")


def _is_of(method: Method, label: str) -> bool:
    return method.label.startswith(f"{label} lr=")


def _rate(method: Method) -> float:
    return float(method.runs[0].record["config"]["optimizer"]["lr"])


def _loss(method: Method) -> float:
    """Of the first seed; infinite where it has none, or diverged."""
    first = next((run for run in method.runs if run.note["seed"] == 0), None)
    return math.inf if first is None or first.diverged else float(first.has("final", "loss") or math.inf)
