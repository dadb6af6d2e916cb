"""What is predicted before the runs: each compressor's break-even, and both compositions on either side of it."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.errors import UserError
from wirebench.planner.advice import Advice
from wirebench.planner.compositions import DENSE
from wirebench.planner.rank import Adviser
from wirebench.topology.rates import parse_rate
from wirebench.utils.files import write_atomically
from wirebench.utils.parsing import json_of

FILE, WRITER = "predicted.json", "`wirebench study break_even run`"


@dataclass(frozen=True)
class Side:
    """A compressor at one rate.

    break_even_gbit  below which it pays, by the planner
    factor           times that rate is what the links have here
    link             what the emulated links are shaped to, so that they carry so much, e.g. 1100mbit
    dense, lossy     scheduler, collective and step of the best composition of either
    """

    compressor: str
    break_even_gbit: float
    factor: float
    link: str
    dense: dict[str, Any]
    lossy: dict[str, Any]

    @property
    def pays(self) -> bool:
        """Whether the planner predicts that compressing pays."""
        return self.factor < 1

    def folder(self, which: str, turn: int) -> str:
        """Folder of the dense or the lossy composition's run."""
        return f"{self.compressor}-{self.factor:g}-{which}-{turn}"

    def overrides(self, which: str, density: dict[str, float]) -> tuple[str, ...]:
        """Return the command-line overrides of the dense or the lossy run."""
        chosen = self.dense if which == "dense" else self.lossy
        name = DENSE if which == "dense" else self.compressor
        options = [] if which == "dense" else [f"compressor.{key}={value:g}" for key, value in density.items()]
        named = (f"scheduler.name={chosen['scheduler']}", f"collective.name={chosen['collective']}")
        return (f"compressor.name={name}", *options, *named)


def sides(adviser: Adviser, names: Sequence[str], factors: Sequence[float], bits_per_gbit: float) -> list[Side]:
    """The sides of every compressor at every factor; UserError for one without a break-even.

    bits_per_gbit  what links have to be shaped to for a Gbit/s of the adviser's topology
    """
    chosen = []
    for name in names:
        # By the values of noise no break-even can be told, also where the user asks for it.
        if reason := adviser.unknown(name, named=False):
            raise UserError(f"--compressors: {name!r}: {reason}")
        limit = adviser.break_even(name)
        if limit is None or math.isinf(limit):
            where = "nowhere" if limit is None else "at any rate"
            raise UserError(f"--compressors: {name!r} pays {where} by the planner, so there are no two sides to run")
        for factor in factors:
            gbit = factor * limit
            both = [_composition(adviser.best(each, gbit)) for each in (DENSE, name)]
            link = f"{round(gbit * bits_per_gbit / 1e3)}kbit"
            parse_rate(link, f"--factors {factor:g}: the link of {name!r}")
            chosen.append(Side(name, limit, factor, link, *both))
    return chosen


class Predicted(NamedTuple):
    """The sides, and what the planner was given: the trace and the topology by name, rates, a density or None."""

    sides: list[Side]
    given: dict[str, Any]


def save(folder: Path, predicted: Predicted) -> None:
    """Write it beside the runs. Raises OSError."""
    text = json.dumps({"given": predicted.given, "sides": [asdict(side) for side in predicted.sides]}, indent=1)
    write_atomically(folder / FILE, text + "\n")


def load(folder: Path) -> Predicted:
    """What was predicted before the runs of `folder`; UserError where nothing can be read."""
    path = folder / FILE
    try:
        content = json_of(path.read_text(encoding="utf-8"))
        return Predicted([_side(each) for each in content["sides"]], dict(content["given"]))
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read: {error.strerror}; `wirebench study break_even run` writes it"
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: is not what {WRITER} writes: {error}") from error


def _side(given: dict[str, Any]) -> Side:
    def positive(value: Any) -> float:
        if not 0 < float(value) < math.inf:
            raise ValueError(f"{value} is not positive and finite")
        return float(value)

    def composition(each: dict[str, Any]) -> dict[str, Any]:
        return {"scheduler": str(each["scheduler"]), "collective": str(each["collective"]),
                "seconds": positive(each["seconds"])}  # fmt: skip

    numbers = positive(given["break_even_gbit"]), positive(given["factor"])
    both = composition(given["dense"]), composition(given["lossy"])
    return Side(str(given["compressor"]), *numbers, str(given["link"]), *both)


def _composition(best: Advice) -> dict[str, Any]:
    return {"scheduler": best.scheduler, "collective": best.collective, "seconds": best.expected_seconds}
