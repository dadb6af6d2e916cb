"""Spans of the traces that runs have saved (wirebench/telemetry/timeline.py)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wirebench.errors import UserError

Interval = tuple[float, float]

FORMERLY_ALL_GATHER = "handed out"
"""How the span of an all-gather ended in older traces, such as some in results/."""


def spans_of(saved: Any, path: Path) -> list[tuple[str, float, float]]:
    """The spans of what was read of a trace at `path`, none of None; UserError for what is no trace."""
    try:
        drawn = [event for event in ([] if saved is None else saved["traceEvents"]) if event["ph"] == "X"]
        return [(str(each["name"]), each["ts"] / 1e6, (each["ts"] + each["dur"]) / 1e6) for each in drawn]
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: is not a timeline that a run has saved: {error}") from error


def together(some: Sequence[Interval], others: Sequence[Interval]) -> float:
    """Seconds in which both are under way; neither overlaps itself."""
    pairs = ((min(e, end) - max(b, begin)) for b, e in others for begin, end in some)
    return sum(max(0.0, both) for both in pairs)
