"""What the simulator says of runs from outside, how near that comes, and what later predictions take from it.

outside.json has the machine's constants and a line for each run; ranges of predictions rest on it (planner/ranges.py).
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.planner import ranges
from suite.studies.prediction.measured import NEAR, Predicted, near, where_steady
from suite.studies.prediction.resimulated import Resimulated, fit, replayed
from wirebench.errors import UserError
from wirebench.topology import processor
from wirebench.topology.processor import Processor

HEAD = ("simulated ms", "error", "fitted")


@dataclass(frozen=True)
class Outside:
    """Simulated steps by the run's name, whether each was one of those that the machine's numbers are fitted to.

    numbers  the same for programs, with what each run's exchange took over what was simulated
    """

    seconds: dict[str, tuple[float, bool]]
    said: str
    numbers: str

    def cells(self, run: Predicted) -> list[str]:
        """Of the table."""
        if run.name not in self.seconds:
            return ["-"] * len(HEAD)
        seconds, fitted = self.seconds[run.name]
        return [f"{1e3 * seconds:.2f}", f"{100 * (seconds / run.seconds - 1):+.1f} %", "yes" if fitted else ""]


def from_outside(folder: Path, runs: Sequence[Predicted]) -> Outside:
    """Every replayed run of an emulated cluster, simulated; UserError where there are fewer than four."""
    known = replayed(folder, "--simulate")
    made = {run.name: known[run.name] for run in runs if run.name in known}
    fitted = set(list(made)[::2])
    machine = _machine(folder / ranges.SHIPPED.name, made, fitted)
    seconds = {name: (each.seconds(machine), name in fitted) for name, each in made.items()}
    errors = {name: seconds[name][0] / each.measured - 1 for name, each in made.items()}
    held = {name: error for name, error in errors.items() if name not in fitted}
    said = f"{_said(machine, errors, held)} {where_steady(runs, held)}"
    return Outside(seconds, said, _numbers(made, machine, seconds))


def _machine(kept: Path, made: Mapping[str, Resimulated], fitted: set[str]) -> Processor:
    """What was fitted to the same runs before and is kept, or a fit to them now, to the digits that are kept.

    A search ends elsewhere on a processor that rounds otherwise: where schedulers cut anew, the errors jump. With
    constants that are kept, the same records give the same table on every machine. Without the file they are fitted.
    """
    same = [(name, name in fitted, _short(each.measured)) for name, each in made.items()]
    if same == _fitted_before(kept):
        return ranges.machine(kept).processor
    found = fit([each for name, each in made.items() if name in fitted])
    return processor.read({key: _short(value) for key, value in processor.written(found).items()})


def _fitted_before(kept: Path) -> list[tuple[str, bool, float]]:
    """Of each run of the file its name, whether it was fitted to, and its step; [] where there is no such file."""
    try:
        return [(each["run"], each["fitted"], each["measured_seconds"]) for each in ranges.table(kept)["runs"]]
    except (UserError, KeyError, TypeError):
        return []


def _said(machine: Processor, errors: Mapping[str, float], held: Mapping[str, float]) -> str:
    """How near the simulation comes, in sentences. errors: of all runs, by name; held: of those that were held out"""
    sizes = [abs(error) for error in held.values()]
    worst = max(errors, key=lambda name: abs(errors[name]))
    constants = ", ".join(f"{key} {value:.3g}" for key, value in processor.written(machine).items() if key != "cores")
    return (
        "Simulated from outside, with the trace, the links' rate, the copies that a compressor takes, and what the run "
        f"measured of loading and of the update; and with what messages cost the {machine.cores:.0f} cores that play "
        f"all hosts, fitted to every second run (docs/topology.md): {constants}. Of the {len(held)} others "
        f"{sum(map(near, held.values()))} are within {100 * NEAR:.0f} %, with a median error of "
        f"{100 * statistics.median(sizes):.1f} % and a mean of {100 * statistics.fmean(sizes):.1f} %; the largest of "
        f"all is {100 * errors[worst]:+.0f} % ({worst})."
    )


def _numbers(made: Mapping[str, Resimulated], machine: Processor, seconds: Mapping[str, tuple[float, bool]]) -> str:
    """outside.json."""
    entries: list[dict[str, object]] = []
    for name, run in made.items():
        simulated, fitted = seconds[name]
        exchange = run.exchange(machine)
        entries.append({
            "run": name, "fitted": fitted, "measured_seconds": _short(run.measured),
            "simulated_seconds": _short(simulated), "exposed_seconds": _short(exchange.exposed_seconds),
            "factor": None if exchange.factor is None else _short(exchange.factor),
        })  # fmt: skip
    constants = {key: _short(value) for key, value in processor.written(machine).items()}
    hosts = sorted({run.topology.size for run in made.values()})
    others = {
        str(size): _short(statistics.median(run.other for run in made.values() if run.topology.size == size))
        for size in hosts
    }
    return ranges.written(entries, {"writer": ranges.WRITER, "processor": constants, "other_seconds": others})


def _short(value: float) -> float:
    return float(f"{value:.4g}")
