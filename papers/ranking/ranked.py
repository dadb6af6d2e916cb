"""What the planner ranks first on an emulated cluster, written before any of it is run: ranking.json beside the runs.

It is asked from outside. It knows the trace, the links' rate, what was fitted to other runs on the machine that
plays the hosts (outside.json of a prediction's folder), and how long compressors work there (rates.jsonl beside it).
The order is by the expected steps of `wirebench advise` on such links, with all compressors at one density, in that
machine's memory.
"""

import datetime
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from papers.accuracy import known as trained
from papers.break_even.run import memory
from papers.prediction.listed import DENSITY, Composition
from papers.runner import ROOT, within
from wirebench import compressors
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.planner import ranges
from wirebench.planner.advice import Advice
from wirebench.planner.rank import Adviser
from wirebench.planner.resimulated import emulated, rates_of
from wirebench.simulation import trace
from wirebench.telemetry import environment
from wirebench.utils.files import write_atomically
from wirebench.utils.parsing import json_of

FILE, WRITER = "ranking.json", "`wirebench study ranking run`"
COUNT = 10
"""Compositions of each cluster."""


class Clustered(NamedTuple):
    """What is trained, and on how many emulated hosts with links of which rate; more: settings of all runs."""

    config: Path
    hosts: int
    link: str
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ranked:
    """A composition, and by the planner the seconds of its step without loading and update, with their range."""

    scheduler: str
    compressor: str
    collective: str
    seconds: float
    low: float
    high: float

    @property
    def label(self) -> str:
        """In words, by which its runs are known."""
        return f"{self.scheduler}, {self.compressor}, {self.collective}"

    def on(self, cluster: Clustered) -> Composition:
        """The composition that is run."""
        return Composition(cluster.hosts, cluster.link, self.scheduler, self.compressor, self.collective)


@dataclass(frozen=True)
class Ranking:
    """The best compositions in the planner's order, and what it knew.

    commit, changed  that ranked, and whether its checkout had changes; utc: when
    machine          the file of the constants
    elsewhere        whether they were fitted on another kind of machine than the one that ranked
    """

    best: tuple[Ranked, ...]
    commit: str
    changed: bool
    utc: str
    machine: str
    elsewhere: bool


def rank(cluster: Clustered, machine: Path) -> Ranking:
    """Ask the planner: whatever was never trained stands below what was."""
    given = loader.load(ROOT / cluster.config)
    if given.model.name != "replay":
        raise UserError(f"{cluster.config}: names no trace to be replayed, and the planner needs one")
    model = trace.load(trace.find(given.model.options["trace"])).faster(1 / (given.network.dilation or 1))
    rates = rates_of(machine.parent)
    topology = emulated(cluster.link, cluster.hosts, ranges.machine(machine).processor)
    bytes_per_second, told_by = memory(rates)
    adviser = Adviser(model, lambda _: topology, rates, bytes_per_second, ranges.load(machine), DENSITY)
    advices, _ = adviser.all(compressors.available(), named=False)
    known = trained.of_classics()

    def untrained(each: Advice) -> bool:
        ended = known.of(each)
        return bool(known.known) and (ended is None or ended.points is None)

    advices.sort(key=untrained)
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    git = environment.git() or {"commit": "unknown", "dirty": True}
    best = tuple(map(_ranked, advices[:COUNT]))
    return Ranking(best, git["commit"], git["dirty"], now, within(machine), elsewhere=told_by != "rates")


def _ranked(advice: Advice) -> Ranked:
    seconds = (float(f"{each:.4g}") for each in (advice.found.step.seconds, *advice.between))
    return Ranked(advice.scheduler, advice.compressor, advice.collective, *seconds)


def save(folder: Path, ranking: Ranking) -> None:
    """Write it beside the runs. Raises OSError."""
    write_atomically(folder / FILE, json.dumps(asdict(ranking), indent=1) + "\n")


def load(folder: Path) -> Ranking:
    """What was ranked before the runs of `folder`; UserError where nothing can be read."""
    path = folder / FILE
    try:
        content: dict[str, Any] = json_of(path.read_text(encoding="utf-8"))
        best = tuple(_read(each) for each in content["best"])
        if not best:
            raise ValueError("best: ranks nothing")
        commit, utc, machine = (str(content[key]) for key in ("commit", "utc", "machine"))
        datetime.datetime.fromisoformat(utc)
        return Ranking(best, commit, bool(content["changed"]), utc, machine, bool(content["elsewhere"]))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; {WRITER} writes it") from error
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: is not what {WRITER} writes: {error}") from error


def _read(given: dict[str, Any]) -> Ranked:
    scheduler, compressor, collective = (str(given[key]) for key in ("scheduler", "compressor", "collective"))
    seconds, low, high = (float(given[key]) for key in ("seconds", "low", "high"))
    if not 0 < low <= seconds <= high < math.inf:
        raise ValueError(f"best: needs 0 < low <= seconds <= high, got {low}, {seconds}, {high}")
    return Ranked(scheduler, compressor, collective, seconds, low, high)


def labels(best: Sequence[Ranked]) -> dict[str, Ranked]:
    """By label, in the planner's order."""
    return {each.label: each for each in best}
