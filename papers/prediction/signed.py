"""Predictions that are written before their runs, with the commit that made them: predicted.json beside the runs.

They are made from outside: from the trace, the links' rate, the copies that compressors take, and constants. The
constants were fitted to other runs of the same machine (results/prediction/outside.json). They include what a step
takes for loading and for the update.
"""

import datetime
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import kendalltau

from papers.prediction.listed import Composition
from papers.prediction.measured import NEAR, near
from papers.runner import ROOT, within
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.planner import ranges
from wirebench.planner.resimulated import FromOutside, rates_of
from wirebench.telemetry import environment
from wirebench.utils.files import write_atomically
from wirebench.utils.parsing import json_of

FILE, WRITER = "predicted.json", "`wirebench study prediction run --list`"


KEY = "steps"
"""Key of the file for the predictions by the run's name. Another study's predictions are not signed."""
KEYS = ("seconds", "low", "high")
HEAD = ("predicted before ms", "range", "error")


class Signed(NamedTuple):
    """Seconds of steps by the run's name, with their ranges, the commit that predicted them, and when it did.

    fitted_to  the file of the machine's constants
    """

    commit: str
    utc: str
    fitted_to: str
    steps: dict[str, dict[str, float]]

    def cells(self, name: str, measured: float) -> list[str]:
        """Cells of the table's row. measured: seconds of the step"""
        if name not in self.steps:
            return ["-"] * len(HEAD)
        seconds, low, high = (1e3 * self.steps[name][key] for key in KEYS)
        return [f"{seconds:.2f}", f"{low:.2f}-{high:.2f}", f"{0.1 * seconds / measured - 100:+.1f} %"]

    def errors(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Predicted over measured, less 1, by name. measured: seconds of the steps, by name"""
        both = ((name, seconds) for name, seconds in measured.items() if name in self.steps)
        return {name: self.steps[name]["seconds"] / seconds - 1 for name, seconds in both}

    def said(self, measured: Mapping[str, float]) -> str:
        """How near they came, in sentences. measured: as above"""
        both = [(self.steps[name], seconds) for name, seconds in measured.items() if name in self.steps]
        if not both:
            return ""
        errors = [abs(error) for error in self.errors(measured).values()]
        good = sum(near(error) for error in errors)
        inside = sum(step["low"] <= seconds <= step["high"] for step, seconds in both)
        order = kendalltau([step["seconds"] for step, _ in both], [seconds for _, seconds in both]).statistic
        tau = f"; Kendall's tau of their order {order:.2f}" if math.isfinite(order) else ""
        return (
            f"Predicted before the runs, by commit {self.commit[:10]} at {self.utc}, with the constants of "
            f"{self.fitted_to}: {len(both)} of {len(self.steps)} were run; {good} are within "
            f"{100 * NEAR:.0f} %; the median error is {100 * statistics.median(errors):.1f} %, the mean "
            f"{100 * statistics.fmean(errors):.1f} %, the largest {100 * max(errors):.1f} %, {inside} lie in the "
            f"predicted range{tau}."
        )


def predict(compositions: Sequence[Composition], config: Path, machine: Path) -> Signed:
    """Predict all of them; UserError in a checkout that differs from its commit, which then signs nothing."""
    git = environment.git()
    if git is None or git["dirty"]:
        raise UserError("--list: predictions are signed with the commit that makes them; commit what was changed first")
    constants, errors = ranges.machine(machine), ranges.load(machine)
    rates, steps = rates_of(machine.parent), {}
    for each in compositions:
        resolved = resolve(loader.load(ROOT / config, list(each.overrides)))
        other = constants.other_seconds(each.hosts)
        made = FromOutside(loader.to_dict(resolved), each.hosts, each.link, other, rates)
        low, high = made.between(constants.processor, errors.factors(rates.spread(each.compressor)))
        steps[each.name] = {"seconds": made.seconds(constants.processor), "low": low, "high": high}
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Signed(git["commit"], now, within(machine), steps)


def save(folder: Path, signed: Signed) -> None:
    """Write them. Raises OSError."""
    write_atomically(folder / FILE, json.dumps(signed._asdict(), indent=1) + "\n")


def load(folder: Path) -> Signed | None:
    """What was predicted before the runs of `folder`, None where nothing was; UserError for a file that is damaged."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = json_of(path.read_text(encoding="utf-8"))
        steps = {
            name: {key: float(step[key]) for key in ("seconds", "low", "high")}
            for name, step in content["steps"].items()
        }
        if not all(step["seconds"] > 0 for step in steps.values()):
            raise ValueError("a step takes more than 0 seconds")
        return Signed(str(content["commit"]), str(content["utc"]), str(content["fitted_to"]), steps)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path}: is not what {WRITER} writes: {error}") from error
