"""The loss of a run on the way: by steps and bytes as its note has it, and by seconds on a network that is simulated.

It is the first worker's training loss; with local steps it belongs to the worker's own weights. A step takes what a
worker computed, by the record, and what its requests cost on the network, by the cost model. Where steps differ
(local steps, dense steps) the requests are taken from the last step, which exchanges. All other steps cost in
proportion to the bytes that they sent; so does a part of a run. An exchange comes after the backward pass; only what
an outer step with a delay sends has those steps' time.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from papers.accuracy.network import (
    PASSES,
    computing_seconds,
    exchange_seconds,
    passes_per_step,
    phase_seconds,
)
from wirebench import compressors, schedulers
from wirebench.errors import UserError
from wirebench.record.notes import NotedRun
from wirebench.utils.parsing import json_of

WINDOW = 30
"""Steps over which the training loss is averaged: whole rounds of 30 local steps, so that no window has more of the
steps just after an exchange than another."""
ROUND_BYTES = 1000
"""A step that sends less takes no part in a round: 0/1 Adam's steps within an interval agree on one number."""


class Pace(NamedTuple):
    """Seconds of a mean step.

    computing  of a worker
    exposed    the exchange after the backward pass, which nothing hides; hidden: what a delay hides of it
    least      the exposed part at best, were each exchange of gradients beside its backward pass, as far as it lasts
    """

    computing: float
    exposed: float
    hidden: float
    least: float

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.computing + self.exposed

    def until(self, point: Sequence[float], last: Sequence[float]) -> float:
        """Seconds until a point of the curve of which `last` is the last: exchanges are counted in proportion to
        bytes.
        """
        return self.computing * point[0] + self.exposed * last[0] * (point[2] / last[2] if last[2] else 0.0)

    @property
    def at_best(self) -> float:
        """Seconds of a step with its exchange of gradients overlapped with the backward pass."""
        return self.computing + self.least


def curve_of(path: Path, total: float | None) -> dict[str, Any]:
    """From a run's steps.jsonl: `curve`, by window [steps done, mean loss, bytes sent until then], last_bytes, rounds.

    total       bytes that a worker sent in the whole run, the mean of all: the file has the first one's, which are
                scaled to it; None where it is not known
    last_bytes  that the last step sent; rounds: steps that exchanged
    UserError for a file that cannot be read.
    """
    try:
        steps = [json_of(line) for line in path.read_text(encoding="utf-8").splitlines()]
        sizes, every = [step["wire_bytes"] or 0.0 for step in steps], [step["loss"] for step in steps]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    scale = total / sum(sizes) if total and sum(sizes) else 1.0
    curve: list[list[float]] = []
    for begin in range(0, len(steps), WINDOW):
        window = every[begin : begin + WINDOW]
        losses = [loss for loss in window if loss is not None]
        if losses:
            done = begin + len(window)
            curve.append([done, round(sum(losses) / len(losses), 5), scale * sum(sizes[:done])])
    last = scale * sizes[-1] if sizes else 0.0
    return {"curve": curve, "last_bytes": float(last), "rounds": sum(size >= ROUND_BYTES for size in sizes)}


def steps_of(run: NotedRun) -> int:
    """How many steps were made."""
    curve = run.note["curve"]
    return int(curve[-1][0]) if curve else 0


def pace(run: NotedRun, gbit: float, passes: float, computes: NotedRun | None = None) -> Pace | None:
    """How long a mean step takes at this link rate; None where the record does not say.

    passes    seconds of a worker's forward and backward pass, the same for all methods
    computes  the run whose computing counts, of the same method (alone.py); None: this one
    None, too, for a run that made rounds and ended in a step that took part in none, as one that diverged between them:
    what a round costs is not in its record.
    """
    curve, computes = run.note["curve"], computes or run
    if not curve or None in (run.has("phases", "forward"), run.has("requests")):
        return None
    steps, _, sent = curve[-1]
    last = run.note["last_bytes"]
    if sent and (not last or (last < ROUND_BYTES and run.note.get("rounds"))):
        return None
    computing = computing_seconds(computes, passes) + (passes_per_step(run) - 1) * passes
    once = exchange_seconds(run, gbit)
    share = sent / steps / last if last else 0.0
    beside = min((run.has("config", "scheduler", "delay") or 0) * computing, once)
    under = 0.0 if _in_rounds(run) or _needs_all(run) else backward_seconds(computes, passes)
    return Pace(computing, share * (once - beside), share * beside, share * max(0.0, once - beside - under))


def _in_rounds(run: NotedRun) -> bool:
    """Whether it exchanged weights' differences, which have no backward pass beside them."""
    name = run.has("config", "scheduler", "name")
    return name is not None and schedulers.PLUGINS.load(name).mode == "outer"


def _needs_all(run: NotedRun) -> bool:
    """Whether a worker's whole gradient is clipped before it is sent, so that nothing goes before the last layer."""
    name = run.has("config", "compressor", "name")
    clips = run.has("config", "optimizer", "clip")
    return bool(clips and name is not None and compressors.class_of(name).makes_update)


def backward_seconds(run: NotedRun, passes: float) -> float:
    """Seconds of one backward pass of a worker, on a machine whose passes take `passes`."""
    own = sum(phase_seconds(run, name) for name in PASSES)
    return passes * phase_seconds(run, "backward") / own if own else 0.0
