"""What a step of the measured map should take: its measured computing, and its exchange as the cost model prices it.

One machine plays all hosts, so messages cost its cores time that no link's rate tells. These costs are fitted to the
cells of one link; the other links' cells show how far they carry. Ranks that share cores end their local steps at
different times, and wait for the last: that share of the computing is taken from the same cells.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from papers.accuracy.curve import sizes_of
from papers.accuracy.rows import history
from wirebench import collectives
from wirebench.costmodel.request_cost import Pricer
from wirebench.planner import ranges, resimulated
from wirebench.record.notes import NotedRun
from wirebench.topology.processor import Processor

IN_ROUNDS = 0.5
"""Exchanges a step, below which a method makes rounds of local steps."""
TURNS = 2
"""Of finding the waiting and what messages cost in turn: the first one prices the few exchanges by the shipped file."""
PAYLOAD = 1448 / 1514
"""Share of a packet's bytes that are a message's: 1,500 less the headers of IPv4 and of TCP with time stamps. An
emulated link counts them and Ethernet's header."""


class Constants(NamedTuple):
    """Of the machine: what messages cost its cores, and the share of computing that ranks wait for the last.

    fitted  to cells that were measured on it; else they are the shipped file's, and no rank waits
    """

    processor: Processor
    waiting: float
    fitted: bool


@dataclass(frozen=True)
class Priced:
    """A run on hosts of one rank each, with links of a rate in words; `waiting` as in Constants."""

    run: NotedRun
    link: str
    waiting: float = 0.0
    gradient_seconds_per_byte = 0.0

    @property
    def cores(self) -> int:
        """Of the machine that plays all hosts."""
        return int(self.run.record["environment"]["cpu"]["cores"])

    @property
    def machine(self) -> str:
        """Its name."""
        return self.run.machine

    @cached_property
    def step(self) -> float:
        """Measured seconds of a mean step, without evaluations."""
        return seconds_of(self.run)[-1] / float(self.run.record["steps_done"])

    @property
    def computing(self) -> float:
        """Measured seconds of a mean step outside of its exchange."""
        return self.step - float(self.run.record["phases"]["exchange_exposed"])

    @cached_property
    def exchanges(self) -> float:
        """Exchanges a step: 1, or one in a round of local steps; by bytes where steps send different amounts."""
        steps, _, sent = self.run.note["curve"][-1]
        last = self.run.note["last_bytes"]
        return float(sent / steps / last) if last else 0.0

    def exchange(self, processor: Processor) -> float:
        """Seconds of one exchange."""
        topology = resimulated.emulated(self.link, self.run.record["world_size"], processor, PAYLOAD)
        return sum(Pricer(collectives.build(plan), topology).seconds(request) for plan, request in sizes_of(self.run))

    def seconds(self, machine: Constants) -> float:
        """Predicted seconds of a step."""
        return self.computing * (1 + machine.waiting) + self.exchanges * self.exchange(machine.processor)

    def error(self, processor: Processor) -> float:
        """The predicted step over the measured one, less 1."""
        return self.seconds(Constants(processor, self.waiting, fitted=True)) / self.step - 1


def seconds_of(run: NotedRun) -> list[float]:
    """Seconds of training until the end of each epoch, without its evaluations."""
    each = [entry["seconds"] - (entry.get("eval_seconds") or 0.0) for entry in history(run)]
    return [sum(each[: place + 1]) for place in range(len(each))]


def priced(run: NotedRun, link: str) -> Priced | None:
    """The run in parts; None for one that diverged, or whose record lacks requests."""
    lacks = None in (run.has("phases", "exchange_exposed"), run.has("requests"), run.has("environment", "cpu", "cores"))
    return None if run.diverged or lacks or not run.note["curve"] else Priced(run, link)


def constants(runs: Sequence[Priced]) -> Constants:
    """Fitted to these runs of one link, where there are enough of them; the shipped ones else."""
    shipped = ranges.machine().processor
    if len(runs) < resimulated.LEAST:
        return Constants(shipped, 0.0, fitted=False)
    processor, waiting = shipped, 0.0
    for _ in range(TURNS):
        waiting = _waiting(runs, processor)
        processor = resimulated.fit([replace(each, waiting=waiting) for each in runs])
    return Constants(processor, waiting, fitted=True)


def _waiting(runs: Sequence[Priced], processor: Processor) -> float:
    """The share of the computing that is left over in rounds of local steps, whose exchanges are few."""
    rounds = [each for each in runs if each.exchanges < IN_ROUNDS]
    left = [each.step - each.computing - each.exchanges * each.exchange(processor) for each in rounds]
    shares = [max(0.0, seconds) / each.computing for seconds, each in zip(left, rounds, strict=True)]
    return statistics.mean(shares) if shares else 0.0
