"""What a campaign promises, and whether its trials hold it."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from wirebench.chaos.figures import UNDISTURBED, cost, goodput, percentile
from wirebench.chaos.trials_file import Line

RECOVERY_SECONDS = 10.0
GOODPUT = 0.88
EVERY_SECONDS = 60.0


class Bound(NamedTuple):
    """What is promised, what the trials show in words and as a number, and whether that holds it.

    id  by which the study `failures` knows it
    """

    id: str
    what: str
    seen: str
    value: float
    held: bool

    def line(self) -> str:
        """The bound as an item of a list."""
        return f"- {'held' if self.held else 'NOT HELD'}: {self.what}: {self.seen}"


def bounds_of(trials: Sequence[Line], header: Line, rate: float) -> list[Bound]:
    """The bounds that these trials can hold or not; of a job with checkpoints hangs alone.

    rate  images per second of the undisturbed job
    """
    hangs = sum(line["hang"] for line in trials)
    found = [Bound("hangs", "hangs 0", f"{hangs} in {len(trials)} trials", 1 - hangs / len(trials), not hangs)]
    faults = [line for line in trials if line["kind"] != UNDISTURBED]
    if not header["elastic"] or not faults:
        return found
    due = [line for line in faults if line["due_to_name"]]
    if due:
        found.append(_named(due, header["timeout_seconds"]))
    if header["mirror"]:
        found.append(_lost(faults))
    pauses = [float("inf") if line["hang"] else line["pause_seconds"] for line in faults]
    recovery = percentile(pauses, 0.95)
    what = f"recovery (longest pause) p95 <= {RECOVERY_SECONDS:g} s"
    within = Bound("recovery", what, f"{recovery:.1f} s", recovery, recovery <= RECOVERY_SECONDS)
    return [*found, within, _goodput(faults, header, rate)]


def _lost(faults: Sequence[Line]) -> Bound:
    lost = [line["lost_residual"] for line in faults if line["lost_residual"] or line["started_anew"]]
    seen = f"{max(lost):.3g} of it at most, in {len(lost)} of {len(faults)} trials" if lost else "0"
    return Bound("residual", "lost residual mass 0 with mirroring", seen, 1 - max(lost, default=0.0), not lost)


def _named(due: Sequence[Line], within: float) -> Bound:
    """Every cause is named by all who have to, in time."""
    named = [line for line in due if line["named_by"] == line["due_to_name"] and line["name_seconds"] is not None]
    soon = sum(line["name_seconds"] <= within for line in named)
    seen = f"{soon} of {len(due)} ({len(named)} named by all)"
    what = f"every cause named within engine.timeout_seconds ({within:g} s)"
    return Bound("named", what, seen, soon / len(due), soon == len(due))


def _goodput(faults: Sequence[Line], header: Line, rate: float) -> Bound:
    """Measured where faults were so far apart, else from what a fault costs on average."""
    if header["mtbf_seconds"] == EVERY_SECONDS:
        value, how = goodput(faults, rate), "measured"
    else:
        value = 1 - statistics.fmean(cost(line, rate) for line in faults) / EVERY_SECONDS
        how = f"extrapolated from faults {header['mtbf_seconds']:g} s apart"
    what = f"goodput >= {GOODPUT:.0%} at {EVERY_SECONDS:g} s between faults"
    return Bound("goodput", what, f"{max(0.0, value):.1%}, {how}", value, value >= GOODPUT)
