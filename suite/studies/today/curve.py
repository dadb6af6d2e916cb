"""The loss of a run on the way: by steps and bytes as its note has it, and by seconds on a network that is simulated.

A step takes what a worker computed, by the record, and what its requests cost on the network, by the cost model. Where
steps differ (local steps, dense steps) the requests are those of the last step, which exchanges, and all others cost as
much more or less as they sent. Nothing overlaps but what an outer step with a delay sends: that has those steps' time.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from suite.studies.convergence.network import computing_seconds, exchange_seconds
from suite.studies.notes import NotedRun
from wirebench.errors import UserError
from wirebench.utils.parsing import json_of

WINDOW = 20
"""Steps over which the training loss is averaged."""


class Pace(NamedTuple):
    """Seconds of a mean step: a worker's computing, the exchange that nothing hides, and what is hidden of it."""

    computing: float
    exposed: float
    hidden: float

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.computing + self.exposed


def curve_of(path: Path) -> dict[str, Any]:
    """Of a run's steps.jsonl: `curve`, by window [steps done, mean loss, bytes sent until then], and `last_bytes`.

    last_bytes  that the last step sent. UserError for a file that cannot be read.
    """
    try:
        steps = [json_of(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    curve: list[list[float]] = []
    sent = 0.0
    for begin in range(0, len(steps), WINDOW):
        window = steps[begin : begin + WINDOW]
        sent += sum(step["wire_bytes"] or 0.0 for step in window)
        losses = [step["loss"] for step in window if step["loss"] is not None]
        if losses:
            curve.append([begin + len(window), round(sum(losses) / len(losses), 5), sent])
    return {"curve": curve, "last_bytes": float(steps[-1]["wire_bytes"] or 0.0) if steps else 0.0}


def steps_of(run: NotedRun) -> int:
    """How many steps were made."""
    curve = run.note["curve"]
    return int(curve[-1][0]) if curve else 0


def pace(run: NotedRun, gbit: float, passes: float) -> Pace | None:
    """How long a mean step takes at this link rate; None where the record does not say. `passes` as from `quietest`."""
    curve = run.note["curve"]
    if not curve or None in (run.has("phases", "forward"), run.has("requests")):
        return None
    computing, once = computing_seconds(run, passes), exchange_seconds(run, gbit)
    steps, _, sent = curve[-1]
    last = run.note["last_bytes"]
    mean = once * (sent / steps / last) if last else 0.0
    ahead = (run.has("config", "scheduler", "delay") or 0) * computing
    share = min(ahead / once, 1.0) if once else 0.0
    return Pace(computing, mean * (1 - share), mean * share)


def loss_after(curve: Sequence[Sequence[float]], steps: float) -> float | None:
    """The training loss after so many steps, on a line between windows; None before the first one has ended."""
    if not curve or steps < curve[0][0]:
        return None
    for (one, loss, _), (other, next_loss, _) in pairwise(curve):
        if steps <= other:
            return loss + (next_loss - loss) * (steps - one) / (other - one)
    return curve[-1][1]
