"""What a file of trials shows: for each kind of fault hangs, names, pauses; the goodput of all; the bounds."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from wirebench.chaos.bounds import EVERY_SECONDS, bounds_of
from wirebench.chaos.faults import FAULTS
from wirebench.chaos.figures import UNDISTURBED, calm_rate, cost, goodput, percentile
from wirebench.chaos.trials_file import Line
from wirebench.utils.markdown import table


class CampaignReport(NamedTuple):
    """The report in Markdown, and whether all bounds are held."""

    lines: list[str]
    held: bool


def report_of(trials: Sequence[Line], header: Line) -> CampaignReport:
    """A row for each kind, then one for all faults, then in words goodput, who names nothing, and the bounds."""
    if not trials:
        return CampaignReport(["no trials yet"], True)
    faults = [line for line in trials if line["kind"] != UNDISTURBED]
    rate = calm_rate(trials)
    groups = {kind: [line for line in faults if line["kind"] == kind] for kind in FAULTS if kind != UNDISTURBED}
    groups |= {"all": faults, UNDISTURBED: [line for line in trials if line["kind"] == UNDISTURBED]}
    head = ["fault", "trials", "hangs", "started anew", "named by all", "s to name", "longest pause, s"]
    head += ["whole again after, s", "residual lost", "costs, s", "goodput"]
    rows = [[kind, *_cells(group, rate)] for kind, group in groups.items() if group]
    bounds = bounds_of(trials, header, rate)
    told = [*_in_words(trials, faults, header, rate), *_silent(faults), "", "Bounds:", ""]
    return CampaignReport(
        [*table(head, rows), *told, *(bound.line() for bound in bounds)], all(bound.held for bound in bounds)
    )


def _in_words(trials: Sequence[Line], faults: Sequence[Line], header: Line, rate: float) -> list[str]:
    """What the columns count, and what faults a minute apart would cost."""
    kept = [line for line in trials if not line["hang"]]
    every = sum(line["seconds"] for line in trials) / max(1, len(faults))
    told = [
        f"{header['hosts']} hosts, a fault every {every:.0f} s on average. Seconds are p50 / p95 over {len(kept)} "
        f"trials that ended; goodput is relative to {rate:.0f} images/s undisturbed."
    ]
    if faults:
        mean = statistics.fmean(cost(line, rate) for line in faults)
        share = max(0.0, 1 - mean / EVERY_SECONDS)
        told += [f"A fault costs {mean:.1f} s on average: extrapolated to one a minute, a goodput of {share:.0%}."]
    return told


def _silent(faults: Sequence[Line]) -> list[str]:
    """One line for each kind among these faults whose cause no host must name, with the reason."""
    kinds = [kind for kind, fault in FAULTS.items() if fault.silent and any(line["kind"] == kind for line in faults)]
    return [f"No host must name {kind}: {FAULTS[kind].silent}." for kind in kinds]


def _cells(lines: Sequence[Line], rate: float) -> list[str]:
    due = [line for line in lines if line["due_to_name"]]
    named = sum(line["named_by"] == line["due_to_name"] for line in due)
    lost = [line["lost_residual"] for line in lines if line["lost_residual"]]
    return [
        str(len(lines)),
        str(sum(line["hang"] for line in lines)),
        str(sum(line["started_anew"] for line in lines)),
        f"{named} of {len(due)}" if due else "-",
        _both([line["name_seconds"] for line in due]),
        _both([line["pause_seconds"] for line in lines if not line["hang"]]),
        _both([line["whole_seconds"] for line in lines]),
        f"{max(lost):.1%} at most, in {len(lost)}" if lost else "0",
        _both([cost(line, rate) for line in lines]),
        f"{goodput(lines, rate):.0%}",
    ]


def _both(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{percentile(known, 0.5):.1f} / {percentile(known, 0.95):.1f}" if known else "-"
