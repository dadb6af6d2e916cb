"""How long each task of a call takes, by the cells that are there: what `run` says before it trains, or instead."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from papers.accuracy.grid import CELLS, STEPS
from papers.accuracy.sizes import SIZED, WORKERS, without_rate
from papers.accuracy.task import Task
from papers.accuracy.tasks import GPT_BY_FORMAT, TASKS
from papers.runner import in_words
from papers.trainings import Training
from wirebench.record import recorded
from wirebench.topology.rates import parse_rate
from wirebench.utils import this_machine

BYTES = "data.train_bytes="


class _Took(NamedTuple):
    """Seconds of the median cell of a task: before its first step, and from there on."""

    startup: float
    training: float


def lines(planned: Sequence[tuple[Task, Sequence[Training]]], out: Path, again: bool = False) -> list[str]:
    """A line for each task, and one for all: cells that are there, minutes a cell, and how long the others take.

    again: those that are there are made anew, so that none counts.

    A task without a cell is expected to take as long for a token and a parameter as the nearest task that has some.
    On emulated hosts the workers share the machine's cores, and every method is expected to send as much as dense
    training, which is the most.
    """
    told, alone, shared = [], 0.0, 0.0
    for task, those in planned:
        missing = [each for each in those if again or not each.is_there(out / task.folder)]
        took, by = _expected(task, out)
        there, time = len(those) - len(missing), "no cell tells how long one takes"
        if took is not None:
            left = sum(took.startup + _share(each, task) * took.training for each in missing) / 60
            time = f"{in_words((took.startup + took.training) / 60)} each{by}, {in_words(left)} left"
            alone += left if task.place is not None else 0.0
            shared += left if task.place is None else 0.0
        lacking = without_rate(task) if task in (*SIZED, *CELLS, *GPT_BY_FORMAT) else []
        rates = f"; no rate yet: {', '.join(lacking)}" if lacking else ""
        told.append(f"{task.name}: {there} of {len(those)} cells are there; {time}{rates}")
    if len(planned) > 1 or alone or shared:
        hosts = f", {in_words(alone)} of it on emulated hosts, alone on the machine" if alone else ""
        half = "; what needs no hosts takes half as long in two calls side by side" if shared else ""
        told.append(f"in all about {in_words(alone + shared)}{hosts}{half}")
    return told


def _expected(task: Task, out: Path) -> tuple[_Took | None, str]:
    """Seconds of a cell, None where no cell tells them; and by which task, "" for its own."""
    own = _took(out / task.folder)
    if own is not None:
        return own, ""
    work = _work(task)
    others = [each for each in TASKS.values() if each.place is None and each.config == task.config and _work(each)]
    known = [(each, took) for each in others if work and (took := _took(out / each.folder))]
    if not known:
        return None, ""
    nearest, took = min(known, key=lambda each: abs(math.log(work / _work(each[0]))))
    training = took.training * work / _work(nearest)
    if task.place is not None:
        training /= min(this_machine.cores(), WORKERS)
        training += STEPS * 2 * (WORKERS - 1) / WORKERS * 32 * task.parameters / parse_rate(task.place.link)
    by = f" at most (by {nearest.name})" if task.place else f" (by {nearest.name})"
    return took._replace(training=training), by


def _took(folder: Path) -> _Took | None:
    """What the runs of a folder took; None if nothing has run."""
    runs = [run.record for run in recorded.directly_below(folder)]
    if not runs:
        return None
    startup = statistics.median(each.get("startup_seconds") or 0.0 for each in runs)
    return _Took(startup, statistics.median(each["seconds_total"] for each in runs))


def _work(task: Task) -> float:
    """Tokens x parameters; 0 for a task that does not say its bytes."""
    return float(_bytes(task.shared) * task.parameters)


def _share(each: Training, task: Task) -> float:
    """Tokens of a cell over those of the task's cells."""
    own, usual = _bytes(each.overrides), _bytes(task.shared)
    return own / usual if own and usual else 1.0


def _bytes(words: Sequence[str]) -> int:
    """The bytes of text that the last of these words names, which counts; 0 without one."""
    return next((int(word.removeprefix(BYTES)) for word in reversed(words) if word.startswith(BYTES)), 0)
