"""How far predictions from outside have been off, and the range that this gives to a predicted step.

`wirebench study planner report --fit` compares steps that were measured with what the simulator says of them,
and writes how many times as long as predicted their exchanges took (results/prediction/outside.json, here
data/outside.json). The range of a prediction is its step with an exchange as short and as long as 9 out of 10 of them.

A step that hides its exchange says nothing of how short exchanges are: one that took less than simulated has no factor,
since no exchange, however short, makes it shorter than its computation. Were it counted, the short end would lie nearer
than it does. At the long end it counts: what was hidden took so long that it shows, or computing did, and a range
without it would hold fewer steps than it says.
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

NAME = "outside.json"
SHIPPED = Path(__file__).parent / "data" / NAME
WRITER = "wirebench study planner report --fit"
TAIL = 0.05
"""Share of the exchanges that are left out at either end: nine out of ten lie between."""
LEAST_EXPOSED = 0.05
"""Share of a step that its exchange adds, where it is not hidden. Computing alone is off by 2 % of a step."""


class Between(NamedTuple):
    """A range of seconds."""

    low: float
    high: float

    def expected(self, predicted: float) -> float:
        """The seconds that are to be expected: of what is predicted and of the ends of its range, as PERT weighs."""
        return (self.low + 4 * predicted + self.high) / 6

    def rates(self, amount: float) -> "Between":
        """What is done of `amount` in a second, at least and at most."""
        return Between(amount / self.high, amount / self.low)


@dataclass(frozen=True)
class Errors:
    """Factors on a predicted exchange.

    low, high  what nine out of ten measured exchanges took, over what was predicted of them
    runs       how many runs say so
    network    share by which the fit of the links' speeds was off at its median cell; 0 where none was fitted
    """

    low: float
    high: float
    runs: int
    network: float = 0.0

    def factors(self, compress: tuple[float, float]) -> tuple[Factors, Factors]:
        """The shortest and the longest exchange; compress: how far the compressor's measured turns lay apart."""
        shortest = Factors(self.low / (1 + self.network), self.low * compress[0])
        return shortest, Factors(self.high * (1 + self.network), self.high * compress[1])

    @property
    def said(self) -> str:
        """The ranges in one line of text."""
        fitted = f", and by {100 * self.network:.1f} % more for the fit of the links" if self.network else ""
        return (
            f"Ranges: exchanges of {self.low:.2g} to {self.high:.2g} times what is predicted, as nine out of ten of "
            f"{self.runs} measured runs had{fitted}."
        )


def of(factors: Sequence[float], showing: Sequence[float] | None = None) -> Errors:
    """The range from `factors`, measured over predicted times of exchanges; it always contains the prediction.

    showing  factors of steps that do not hide their exchange, which give the lower end; None: all
    """
    low = _quantile(sorted(factors if showing is None else showing), TAIL)
    return Errors(min(low, 1.0), max(_quantile(sorted(factors), 1 - TAIL), 1.0), len(factors))


def load(path: Path = SHIPPED, network: float = 0.0) -> Errors:
    """What the study of predictions wrote; UserError for a file that is not that."""
    try:
        held = held_out(table(path))
        factors = [float(each["factor"]) for each in held]
        showing = [float(each["factor"]) for each in held if _shows(each)]
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: is not what `{WRITER}` writes: {error}") from error
    if not factors or not all(0 < each < math.inf for each in factors):
        raise UserError(f"{path}: runs: needs factors above 0 of runs that nothing was fitted to; `{WRITER}` writes it")
    return replace(of(factors, showing or None), network=network)


def held_out(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs of the file that say how far a prediction was off: nothing was fitted to them."""
    return [each for each in content["runs"] if not each["fitted"] and each["factor"] is not None]


def _shows(run: dict[str, Any]) -> bool:
    """Whether the exchange adds enough to the simulated step; files of earlier versions do not say it."""
    exposed = run.get("exposed_seconds")
    return exposed is None or float(exposed) >= LEAST_EXPOSED * float(run["simulated_seconds"])


class Machine(NamedTuple):
    """Constants fitted to a machine's runs: the processors' cost of messages, and the rest of a step.

    others  seconds of loading and of the update, by the number of hosts
    """

    processor: Processor
    others: dict[int, float]

    def other_seconds(self, hosts: int) -> float:
        """Seconds of loading and update among `hosts` hosts: the value of the nearest measured number."""
        return self.others[min(self.others, key=lambda known: abs(known - hosts))]


def machine(path: Path = SHIPPED) -> Machine:
    """The machine of the file; UserError for a file that has none."""
    content = table(path)
    try:
        others = {int(hosts): float(seconds) for hosts, seconds in content["other_seconds"].items()}
        if not others or not all(0 <= seconds < math.inf for seconds in others.values()):
            raise ValueError("other_seconds: needs seconds by the number of hosts")
        return Machine(processors.read(content["processor"]), others)
    except (TypeError, KeyError, AttributeError, ValueError, UserError) as error:
        raise UserError(f"{path}: is not what `{WRITER}` writes: {error}") from error


def table(path: Path = SHIPPED) -> dict[str, Any]:
    """The file's content; UserError for one that cannot be read or is no JSON."""
    try:
        content: dict[str, Any] = json_of(path.read_text(encoding="utf-8"))
        return content
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; `{WRITER} {path.parent}` writes it") from error
    except ValueError as error:
        raise UserError(f"{path}: is not what `{WRITER}` writes: {error}") from error


def written(runs: Sequence[dict[str, object]], about: dict[str, object]) -> str:
    """The text of the file."""
    lines = ",\n".join(f"  {json.dumps(run)}" for run in runs)
    head = json.dumps(about, indent=1).removesuffix("\n}")
    return f'{head},\n "runs": [\n{lines}\n ]\n}}\n'


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Quantile of sorted values by linear interpolation, as numpy's default."""
    place = share * (len(ordered) - 1)
    low = min(int(place), len(ordered) - 2) if len(ordered) > 1 else 0
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
