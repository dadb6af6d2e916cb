"""The rows of a task in the planner's words: which compressor, after which local steps, with which options."""

from collections.abc import Iterator
from typing import NamedTuple

from papers.convergence.tasks import Task
from papers.today.tasks import OTHER_DENSE, SETTINGS
from wirebench import compressors
from wirebench.planner.schedules import words_of
from wirebench.utils.parsing import value_of

WITH_DENSITY = ("density", "warmup")
"""What is no option of a method's own: the planner tells the density apart, and a warm-up of all that have one."""


class Source(NamedTuple):
    """A row of the study, and what it trained.

    schedule  with local steps; "": an exchange in every step
    options   of the compressor, that are not its defaults
    """

    label: str
    compressor: str
    schedule: str
    options: str


def sources(task: Task) -> list[Source]:
    """For each compressor its first row in every step, and all rows after local steps with its default options.

    Rows with another optimizer than the task's or the method's own, and other forms of dense training, are left out.
    """
    found: list[Source] = []
    for each in _rows(task):
        first = all((each.compressor, each.schedule) != (other.compressor, other.schedule) for other in found)
        if first and not (each.schedule and each.options):
            found.append(each)
    return found


def _rows(task: Task) -> Iterator[Source]:
    for label, words in SETTINGS[task.name].items():
        given = dict(word.split("=", 1) for word in words)
        if label in OTHER_DENSE or given.get("optimizer.name") == "muon":
            continue
        name, schedule = given.pop("compressor.name"), _of(given, "scheduler")
        options, usual = _of(given, "compressor"), compressors.PLUGINS.defaults(name)
        other = [
            f"{key}={text}" for key, text in options.items() if key not in WITH_DENSITY and value_of(text) != usual[key]
        ]
        text = ":".join(f"{key}={value}" for key, value in schedule.items() if key != "name")
        local = words_of(f"outer:{text}".rstrip(":")) if schedule.get("name") == "outer" else ""
        yield Source(label, name, local, " ".join(other))


def _of(given: dict[str, str], section: str) -> dict[str, str]:
    return {key.partition(".")[2]: value for key, value in given.items() if key.startswith(f"{section}.")}
