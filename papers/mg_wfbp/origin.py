"""simulated.json: the simulation's numbers, and the commit that first gave them, which the figures name.

The same code gives the same numbers, so a report of a later commit keeps the name of the first as long as they agree.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from papers.mg_wfbp.paper import Efficiencies, Step
from wirebench.errors import UserError
from wirebench.telemetry import environment
from wirebench.utils.parsing import json_of

FILE = "simulated.json"
GIT = "git"
DIGITS = 6
"""Digits kept of each number, so that another processor's rounding does not change the result."""


class Origin(NamedTuple):
    """The commit as an environment has it (None outside a checkout), and the text of the file."""

    git: dict[str, Any] | None
    text: str


def of(
    folder: Path,
    call_seconds: float,
    predicted: Mapping[str, Sequence[Step]],
    starred: Mapping[str, Mapping[int, float]],
    simulated: Mapping[str, Efficiencies],
) -> Origin:
    """Origin of these numbers. The commit comes from the folder's file if that has the same numbers, else from this
    checkout.

    predicted, starred, simulated  by model: steps, seconds of a step on a star by nodes, and efficiencies
    """
    numbers = {
        "call_seconds": _short(call_seconds),
        "steps": {
            label: [[step.nodes, step.schedule, _short(step.predicted)] for step in those]
            for label, those in predicted.items()
        },
        "star": {
            label: {str(nodes): _short(seconds) for nodes, seconds in those.items()} for label, those in starred.items()
        },
        "efficiencies": {
            label: {str(nodes): {name: _short(share) for name, share in each.items()} for nodes, each in those.items()}
            for label, those in simulated.items()
        },
    }
    before = _read(folder / FILE)
    known = {key: value for key, value in before.items() if key != GIT}
    git = before[GIT] if known == numbers else environment.git()
    return Origin(git, json.dumps({GIT: git, **numbers}, indent=1) + "\n")


def _read(path: Path) -> dict[str, Any]:
    """{} where there is no file; UserError where it is not one of these."""
    if not path.is_file():
        return {}
    try:
        content = json_of(path.read_text(encoding="utf-8"))
        return {GIT: content[GIT], **content}
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: is not what `wirebench study mg_wfbp report` writes: {error!r}") from error


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
