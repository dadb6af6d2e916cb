"""What a file of trials shows: for each kind of fault hangs, names, pauses, and the goodput of all."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from suite.chaos.faults import FAULTS
from wirebench.utils.markdown import table

UNDISTURBED = "none"
Line = Mapping[str, Any]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least this share of them do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def calm_rate(lines: Sequence[Line]) -> float:
    """Images per second of the undisturbed job: in trials without a fault, else before each fault."""
    undisturbed = [line for line in lines if line["kind"] == UNDISTURBED and not line["hang"]]
    if undisturbed:
        return sum(line["images"] for line in undisturbed) / sum(line["seconds"] for line in undisturbed)
    return statistics.median(rate for line in lines if (rate := line["calm_images_per_second"]) is not None)


def goodput(lines: Sequence[Line], rate: float) -> float:
    """The time that the images trained on take at this rate, over all that passed, waits for faults included."""
    return sum(line["images"] for line in lines) / rate / sum(line["seconds"] for line in lines)


def cost(line: Line, rate: float) -> float:
    """Seconds of the undisturbed job's work that the fault of a trial has cost."""
    return float(line["seconds"] - line["images"] / rate)


def lines_of(trials: Sequence[Line], hosts: int) -> list[str]:
    """The report in Markdown: a row for each kind, then one for all faults, then goodput in words."""
    if not trials:
        return ["no trials yet"]
    faults = [line for line in trials if line["kind"] != UNDISTURBED]
    rate = calm_rate(trials)
    groups = {kind: [line for line in faults if line["kind"] == kind] for kind in FAULTS if kind != UNDISTURBED}
    groups |= {"all": faults, UNDISTURBED: [line for line in trials if line["kind"] == UNDISTURBED]}
    head = ["fault", "trials", "hangs", "named by all", "s to name", "longest pause, s", "whole again after, s"]
    head += ["residual lost", "costs, s", "goodput"]
    rows = [[kind, *_cells(group, rate)] for kind, group in groups.items() if group]
    kept = [line for line in trials if not line["hang"]]
    every = sum(line["seconds"] for line in trials) / max(1, len(faults))
    told = [
        f"{hosts} hosts, a fault every {every:.0f} s on average. Seconds are p50 / p95 over {len(kept)} trials that "
        f"ended; goodput is relative to {rate:.0f} images/s undisturbed."
    ]
    if faults:
        mean = statistics.fmean(cost(line, rate) for line in faults)
        told += [f"A fault costs {mean:.1f} s on average: at one a minute, a goodput of {max(0.0, 1 - mean / 60):.0%}."]
    return [*table(head, rows), *told]


def _cells(lines: Sequence[Line], rate: float) -> list[str]:
    due = [line for line in lines if line["due_to_name"]]
    named = sum(line["named_by"] == line["due_to_name"] for line in due)
    lost = [line["lost_residual"] for line in lines if line["lost_residual"]]
    return [
        str(len(lines)),
        str(sum(line["hang"] for line in lines)),
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
