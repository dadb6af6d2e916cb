"""How far predictions from outside have been off, and the range that this gives to a predicted step.

`wirebench study prediction report --simulate` compares steps that were measured with what the simulator says of them,
and writes how many times as long as predicted their exchanges took (results/prediction/outside.json). A prediction's
range is its step with an exchange as short, and as long, as nine out of ten of those.

A step that hides its exchange says nothing of it. What computing was off by would count as the exchange's, and only
where a step took longer than simulated: one that took less has no factor. So exchanges would seem to take longer than
predicted more often than they do, and the short end of the range would lie nearer than it does. What these steps are
off by is computing's range.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.errors import UserError
from wirebench.simulation.simulator import Factors
from wirebench.topology import processor as processors
from wirebench.topology.processor import Processor
from wirebench.utils.parsing import json_of

SHIPPED = Path(__file__).resolve().parents[2] / "results" / "prediction" / "outside.json"
WRITER = "wirebench study prediction report --simulate"
TAIL = 0.05
"""Share of the exchanges that are left out at either end: nine out of ten lie between."""


class Between(NamedTuple):
    """A range of seconds."""

    low: float
    high: float


@dataclass(frozen=True)
class Errors:
    """Factors on a predicted exchange.

    low, high  what nine out of ten measured exchanges took, over what was predicted of them
    runs       how many runs say so
    network    share by which the fit of the links' speeds was off at its median cell; 0 where none was fitted
    computing  the same as low and high, of whole steps whose exchange is hidden
    """

    low: float
    high: float
    runs: int
    network: float = 0.0
    computing: tuple[float, float] = (1.0, 1.0)

    def factors(self, compress: tuple[float, float]) -> tuple[Factors, Factors]:
        """The shortest and the longest exchange; compress: how far the compressor's measured turns lay apart."""
        shortest = Factors(self.low / (1 + self.network), self.low * compress[0])
        return shortest, Factors(self.high * (1 + self.network), self.high * compress[1])

    def of_steps(self, compress: tuple[float, float]) -> tuple[Factors, Factors]:
        """The same of steps that are held against measured ones, with what computing may be off by.

        Where compositions are compared with one another it moves all of them alike, and is left out.
        """
        shortest, longest = self.factors(compress)
        return shortest._replace(compute=self.computing[0]), longest._replace(compute=self.computing[1])

    @property
    def said(self) -> str:
        """In a line."""
        fitted = f", and by {100 * self.network:.1f} % more for the fit of the links" if self.network else ""
        return (
            f"Ranges: exchanges of {self.low:.2g} to {self.high:.2g} times what is predicted, as nine out of ten of "
            f"{self.runs} measured runs had{fitted}."
        )


def of(factors: Sequence[float]) -> Errors:
    """From what exchanges took, over what was predicted of them; what was predicted is always in the range."""
    return Errors(*_ends(factors), len(factors))


def load(path: Path = SHIPPED, network: float = 0.0) -> Errors:
    """What the study of predictions wrote; UserError for a file that is not that."""
    try:
        held = [each for each in _table(path)["runs"] if not each["fitted"]]
        factors = [float(each["factor"]) for each in held if each["factor"] is not None]
        hidden = [each for each in held if each["factor"] is None]
        steps = [float(each["measured_seconds"]) / float(each["simulated_seconds"]) for each in hidden]
    except (ValueError, TypeError, KeyError, ArithmeticError) as error:
        raise UserError(f"{path}: is not what `{WRITER}` writes: {error}") from error
    if not factors or not all(0 < each < math.inf for each in (*factors, *steps)):
        raise UserError(f"{path}: runs: needs factors above 0 of runs that nothing was fitted to; `{WRITER}` writes it")
    return replace(of(factors), network=network, computing=_ends(steps or [1.0]))


class Machine(NamedTuple):
    """What was fitted to a machine's runs: what messages cost its processors, and what a step takes beside.

    others  seconds of loading and of the update, by the number of hosts
    """

    processor: Processor
    others: dict[int, float]

    def other_seconds(self, hosts: int) -> float:
        """Seconds of loading and update among so many hosts: of the nearest number that was measured."""
        return self.others[min(self.others, key=lambda known: abs(known - hosts))]


def machine(path: Path = SHIPPED) -> Machine:
    """The machine of the file; UserError for a file that has none."""
    table = _table(path)
    try:
        others = {int(hosts): float(seconds) for hosts, seconds in table["other_seconds"].items()}
        if not others or not all(0 <= seconds < math.inf for seconds in others.values()):
            raise ValueError("other_seconds: needs seconds by the number of hosts")
        return Machine(processors.read(table["processor"]), others)
    except (TypeError, KeyError, AttributeError, ValueError, UserError) as error:
        raise UserError(f"{path}: is not what `{WRITER}` writes: {error}") from error


def _table(path: Path) -> dict[str, Any]:
    try:
        table: dict[str, Any] = json_of(path.read_text(encoding="utf-8"))
        return table
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; `{WRITER}` writes it") from error
    except ValueError as error:
        raise UserError(f"{path}: is not what `{WRITER}` writes: {error}") from error


def written(runs: Sequence[dict[str, object]], about: dict[str, object]) -> str:
    """The text of the file."""
    lines = ",\n".join(f"  {json.dumps(run)}" for run in runs)
    head = json.dumps(about, indent=1).removesuffix("\n}")
    return f'{head},\n "runs": [\n{lines}\n ]\n}}\n'


def _ends(ratios: Sequence[float]) -> tuple[float, float]:
    """Between which nine out of ten lie, with 1 always inside."""
    ordered = sorted(ratios)
    return min(_quantile(ordered, TAIL), 1.0), max(_quantile(ordered, 1 - TAIL), 1.0)


def _quantile(ordered: Sequence[float], share: float) -> float:
    """On straight lines between the values, as numpy has it."""
    place = share * (len(ordered) - 1)
    low = min(int(place), len(ordered) - 2) if len(ordered) > 1 else 0
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
