"""What the simulator says of runs from outside, how near that comes, and what later predictions take from it.

outside.json has the machine's constants and a line for each run; ranges of predictions rest on it (planner/ranges.py).
Several folders of one machine's runs share the constants, and the file lies in the first of them.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from papers.prediction.measured import NEAR, Predicted, near, where_steady
from wirebench.errors import UserError
from wirebench.planner import ranges
from wirebench.planner.resimulated import Resimulated, check_machine, fit, rates_of, replayed
from wirebench.simulation.compress_rates import Rates
from wirebench.topology import processor
from wirebench.topology.processor import Processor

HEAD = ("simulated ms", "error", "fitted")


@dataclass(frozen=True)
class Outside:
    """A folder's runs by name: the simulated step, and whether the run is one that the constants are fitted to.

    held     the errors of those that they are not fitted to
    numbers  the numbers of all folders for programs, with what each run's exchange took over what was simulated; "" for
             all folders but the first
    """

    seconds: dict[str, tuple[float, bool]]
    held: dict[str, float]
    said: str
    numbers: str

    def cells(self, run: Predicted) -> list[str]:
        """Return the cells of the run's row in the table."""
        if run.name not in self.seconds:
            return ["-"] * len(HEAD)
        seconds, fitted = self.seconds[run.name]
        return [f"{1e3 * seconds:.2f}", f"{100 * (seconds / run.seconds - 1):+.1f} %", "yes" if fitted else ""]


class _Run(NamedTuple):
    """A run of a folder; name: there; key: in outside.json; fitted: whether the constants are fitted to it."""

    folder: Path
    name: str
    key: str
    run: Resimulated
    fitted: bool


def from_outside(runs: Mapping[Path, Sequence[Predicted]]) -> dict[Path, Outside]:
    """Every replayed run of an emulated cluster, simulated, by folder; UserError where a folder has fewer than four.

    The constants are fitted to every second run of each folder. How long compressors work is what was measured beside
    the first one's runs.
    """
    first = next(iter(runs))
    rates = rates_of(first)
    made = [each for folder, found in runs.items() for each in _replayed(first, folder, found, rates)]
    machine = _machine(first / ranges.SHIPPED.name, made)
    seconds = {each.key: each.run.seconds(machine) for each in made}
    outsides = {}
    for folder, found in runs.items():
        own = [each for each in made if each.folder == folder]
        errors = {each.name: seconds[each.key] / each.run.measured - 1 for each in own}
        held = {each.name: errors[each.name] for each in own if not each.fitted}
        said = f"{_said(machine, errors, held, len(runs))} {where_steady(found, held)}"
        numbers = _numbers(made, machine, seconds) if folder == first else ""
        outsides[folder] = Outside({each.name: (seconds[each.key], each.fitted) for each in own}, held, said, numbers)
    return outsides


def _replayed(first: Path, folder: Path, runs: Sequence[Predicted], rates: Rates) -> list[_Run]:
    known = replayed(folder, "--simulate", rates)
    names = [run.name for run in runs if run.name in known]
    where = "" if folder == first else f"{folder.name}/"
    return [_Run(folder, name, where + name, known[name], not place % 2) for place, name in enumerate(names)]


def _machine(kept: Path, made: Sequence[_Run]) -> Processor:
    """What was fitted to the same runs before and is kept, or a fit to them now, to the digits that are kept.

    A search ends elsewhere on a processor that rounds otherwise: where schedulers cut anew, the errors jump. With
    constants that are kept, the same records give the same table on every machine. Without the file they are fitted.
    """
    check_machine(each.run for each in made)
    if [(each.key, each.fitted, _short(each.run.measured)) for each in made] == _fitted_before(kept):
        return ranges.machine(kept).processor
    found = fit([each.run for each in made if each.fitted])
    return processor.read({key: _short(value) for key, value in processor.written(found).items()})


def _fitted_before(kept: Path) -> list[tuple[str, bool, float]]:
    """For each run of the file: its name, whether it was fitted to, and its step; [] without the file."""
    try:
        return [(each["run"], each["fitted"], each["measured_seconds"]) for each in ranges.table(kept)["runs"]]
    except (UserError, KeyError, TypeError):
        return []


def _said(machine: Processor, errors: Mapping[str, float], held: Mapping[str, float], folders: int) -> str:
    """How near the simulation comes, in sentences. errors: of a folder's runs, by name; held: of those held out"""
    every = "every second run" if folders == 1 else f"every second run of {folders} folders"
    sizes = [abs(error) for error in held.values()]
    worst = max(errors, key=lambda name: abs(errors[name]))
    known = ("cores", "gradient_ns_per_byte")
    constants = ", ".join(f"{key} {value:.3g}" for key, value in processor.written(machine).items() if key not in known)
    return (
        "Simulated from outside, with the trace, the links' rate, the copies that a compressor takes, and what the run "
        f"measured of loading and of the update; and with what messages cost the {machine.cores:.0f} cores that play "
        f"all hosts, fitted to {every} (docs/topology.md): {constants}. Of the {len(held)} others here "
        f"{sum(map(near, held.values()))} are within {100 * NEAR:.0f} %, with a median error of "
        f"{100 * statistics.median(sizes):.1f} % and a mean of {100 * statistics.fmean(sizes):.1f} %; the largest of "
        f"all here is {100 * errors[worst]:+.0f} % ({worst})."
    )


def _numbers(made: Sequence[_Run], machine: Processor, seconds: Mapping[str, float]) -> str:
    """outside.json."""
    entries: list[dict[str, object]] = []
    for each in made:
        exchange = each.run.exchange(machine)
        entries.append({
            "run": each.key, "fitted": each.fitted, "measured_seconds": _short(each.run.measured),
            "simulated_seconds": _short(seconds[each.key]), "exposed_seconds": _short(exchange.exposed_seconds),
            "factor": None if exchange.factor is None else _short(exchange.factor),
        })  # fmt: skip
    constants = {key: _short(value) for key, value in processor.written(machine).items()}
    hosts = sorted({each.run.topology.size for each in made})
    others = {
        str(size): _short(statistics.median(each.run.other for each in made if each.run.topology.size == size))
        for size in hosts
    }
    return ranges.written(entries, {"writer": ranges.WRITER, "processor": constants, "other_seconds": others})


def _short(value: float) -> float:
    return float(f"{value:.4g}")
