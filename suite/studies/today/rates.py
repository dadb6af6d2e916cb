"""Learning rates of the methods that have one of their own: a third of it and three times as much, with the first seed.

That is a search of three points, for dense training as for the others: it says whether a method lost for its rate.
The decay of a step, rate x weight decay, stays what it is.
"""

from collections.abc import Sequence
from pathlib import Path

from suite.studies.convergence.rows import Method, load, read
from suite.studies.convergence.tasks import Composition, Task
from suite.studies.page import Page
from suite.studies.runner import ROOT
from suite.studies.today.tasks import DENSE, TASKS, compositions
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.utils.markdown import table

RATES = {f"{name}_rates": task for name, task in TASKS.items()}
"""The parts, and what they train."""
SEARCHED = (DENSE, "demo", "dion", "lion_sign", "zero_one_adam")
FACTORS = (1 / 3, 3)
OWN = ("learning rate", "epochs", "steps")
"""Settings in which the study's own runs differ."""
_RATE, _DECAY = "optimizer.lr", "optimizer.weight_decay"


def at_other_rates(task: Task, names: Sequence[str] | None) -> list[Composition]:
    """The methods at other rates than the task's, or those that are named; UserError for one that is not searched."""
    if unknown := next((name for name in names or () if name not in SEARCHED), None):
        raise UserError(f"--methods: no {unknown!r}; there is: {', '.join(SEARCHED)}")
    found = []
    for each in compositions(task, list(dict.fromkeys(names or SEARCHED))):
        usual = loader.load(ROOT / task.config, list(each.overrides)).optimizer
        for rate in (float(f"{factor * usual.lr:.2g}") for factor in FACTORS):
            decay = usual.weight_decay * usual.lr / rate
            words = (*each.overrides, f"{_RATE}={rate:g}", f"{_DECAY}={decay:.4g}")
            found.append(Composition(f"{each.label} lr={rate:g}", words, each.density))
    return found


def page(folder: Path) -> Page | None:
    """The losses by rate; None where nothing has run."""
    if not read(folder):
        return None
    tried, usual = load(folder, own=("learning rate",)), load(folder.with_name(RATES[folder.name].name), own=OWN)
    return Page(folder, document(RATES[folder.name], tried, usual))


def document(task: Task, tried: Sequence[Method], usual: Sequence[Method]) -> str:
    """The whole file: a row for each method, the rates as they rise."""
    rows = []
    for label in SEARCHED:
        others = [each for each in tried if each.label.startswith(f"{label} lr=")]
        if others:
            own = [each for each in usual if each.label == label]
            rows.append([label, *_cells([*others, *own], own)])
    run = tried[0].runs[0]
    return "\n".join(
        [
            f"# The methods of today: learning rates on {task.name}",
            "",
            "Test loss of the first seed at a third of a method's rate, at its rate in the study, and at three times "
            f"as much. The least is marked. On {run.machine}; made by `wirebench study today run`, which runs "
            f"`{run.note['launch']}` and the like.",
            "",
            *table(("method", "a third", "the study's", "three times"), rows),
        ]
    )


def _cells(methods: Sequence[Method], own: Sequence[Method]) -> list[str]:
    """By rate; a dash for the study's own where it was not run."""
    known = sorted((_rate(each), _loss(each)) for each in methods)
    least = min(loss for _, loss in known)
    cells = [f"{rate:g}: {loss:.4f}{' *' if loss == least else ''}" if loss < float("inf") else f"{rate:g}: diverged"
             for rate, loss in known]  # fmt: skip
    return cells if own else [cells[0], "-", *cells[1:]]


def _rate(method: Method) -> float:
    return float(method.runs[0].record["config"]["optimizer"]["lr"])


def _loss(method: Method) -> float:
    """Of the first seed; infinite for a run that diverged."""
    first = min(method.runs, key=lambda run: int(run.note["seed"]))
    return float("inf") if first.diverged else float(first.has("final", "loss") or float("inf"))
