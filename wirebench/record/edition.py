"""Editions: frozen targets, seeds and settings, so that runs of other times and machines can be compared.

configs/editions/NAME.toml has the tasks of one. A new record names the newest edition that has a task which the run
kept to, as {"name": "2026.12", "task": "resnet20"}. The rule "edition" (rules.py) finds a record that names one
wrongly.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from wirebench.utils.package import CONFIGS
from wirebench.utils.parsing import toml_of

FOLDER = CONFIGS / "editions"


class EditionTask(NamedTuple):
    """What can be compared: a table of results, and what a run has to have to belong into it.

    claim   accuracy or speed
    seeds   its runs' seeds; empty where any seed will do
    turns   how often each composition is to be run; 0 where seeds count
    metric  the record's number, of which `dense` is dense training's mean and `target` where times are read, if any
    text    the digest of the text that is trained on, which is made of the sources of this `python`; "" without one
    frozen  values by their place in the record's config, or by `world_size` and `link_mbit`
    """

    edition: str
    name: str
    table: str
    claim: str
    metric: str
    frozen: Mapping[str, Any]
    seeds: tuple[int, ...] = ()
    turns: int = 0
    dense: float | None = None
    target: float | None = None
    text: str = ""
    python: str = ""

    def differences(self, record: Mapping[str, Any]) -> Iterator[str]:
        """Where the run left what is frozen, in words."""
        for place, value in self.frozen.items():
            found = _found(record, place)
            if found != value:
                yield f"{place} is {found!r}, and {self.edition}'s {self.name} has {value!r}"
        text, python = record.get("samples", {}).get("text"), record["environment"].get("versions", {}).get("python")
        if self.text and (python != self.python if text is None else text != self.text):
            known = f"{self.text!r} (Python {self.python})"
            yield f"samples.text is {text!r} (Python {python}), and {self.edition}'s {self.name} has {known}"
        seed = _found(record, "train.seed")
        if self.seeds and seed not in self.seeds:
            yield f"train.seed is {seed!r}, and {self.edition}'s {self.name} has {', '.join(map(str, self.seeds))}"


@functools.cache
def tasks() -> tuple[EditionTask, ...]:
    """All editions' tasks, the newest edition's first."""
    files = sorted(FOLDER.glob("*.toml"), reverse=True)
    return tuple(_task(file.stem, given) for file in files for given in toml_of(file.read_text())["tasks"])


def kept(record: Mapping[str, Any]) -> dict[str, str] | None:
    """The edition and the task that a run kept to; None where it is none of any edition's."""
    found = next((task for task in tasks() if not any(task.differences(record))), None)
    return None if found is None else {"name": found.edition, "task": found.name}


def named(record: Mapping[str, Any]) -> EditionTask | None:
    """The task that a record names; None where it names none. KeyError where there is no such one."""
    told = record.get("edition")
    if told is None:
        return None
    return {(task.edition, task.name): task for task in tasks()}[told["name"], told["task"]]


def _task(edition: str, given: Mapping[str, Any]) -> EditionTask:
    frozen = dict(_flat(given["frozen"]))
    return EditionTask(edition, **{**given, "frozen": frozen, "seeds": tuple(given.get("seeds", ()))})


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _found(record: Mapping[str, Any], place: str) -> Any:
    if place == "world_size":
        return record["world_size"]
    if place == "link_mbit":
        rates = {rate for rank in record.get("ranks") or () for rate in (rank.get("link_mbit") or {}).values()}
        return rates.pop() if len(rates) == 1 else None
    section, _, key = place.partition(".")
    return record["config"].get(section, {}).get(key)
