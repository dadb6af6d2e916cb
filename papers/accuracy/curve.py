"""How long steps take on networks that no run used, and the loss of a run on the way.

Computing is measured, the exchange simulated.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from papers.accuracy.rows import first_reaching, history, wire_bytes
from wirebench import collectives, compressors, schedulers
from wirebench.costmodel.played_exchange import RequestSize
from wirebench.costmodel.request_cost import Pricer
from wirebench.errors import UserError
from wirebench.exchange.outer import OuterSteps
from wirebench.gradient import requests
from wirebench.record.notes import NotedRun
from wirebench.topology import presets
from wirebench.topology.tree import Topology
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
    """How many steps were made; notes of some tasks have no curve."""
    curve = run.note.get("curve")
    return int(curve[-1][0]) if curve else run.has("steps_done") or 0


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
    return name is not None and schedulers.PLUGINS.load(name).driver is OuterSteps


def _needs_all(run: NotedRun) -> bool:
    """Whether a worker's whole gradient is clipped before it is sent, so that nothing goes before the last layer."""
    name = run.has("config", "compressor", "name")
    clips = run.has("config", "optimizer", "clip")
    return bool(clips and name is not None and compressors.class_of(name).makes_update)


def backward_seconds(run: NotedRun, passes: float) -> float:
    """Seconds of one backward pass of a worker, on a machine whose passes take `passes`."""
    own = sum(phase_seconds(run, name) for name in PASSES)
    return passes * phase_seconds(run, "backward") / own if own else 0.0


RATES = (0.1, 1.0, 10.0, 25.0)
"""Gbit/s of every worker's link."""
PASSES, OWN = ("forward", "backward"), ("update", "compress")
"""The phases that all methods of a task share, and the phases of each method's own. A method that returns updates
does the optimizer's work in its compressor, and an outer optimizer its own in the update."""


def seconds_to(run: NotedRun, accuracy: float | None, gbit: float, passes: float) -> float | None:
    """Seconds until the first epoch after which the test accuracy was at least `accuracy`; None if it never was.

    None, too, for a record that lacks phases, requests or bytes. `passes` as from `quietest`.
    """
    reached, epochs = first_reaching(run, accuracy), history(run)
    if reached is None or None in (run.has("phases", "forward"), run.has("requests"), run.has("steps_done")):
        return None
    totals = [count for count in map(wire_bytes, epochs) if count is not None]
    if len(totals) < len(epochs):
        return None
    sent = [after - before for before, after in zip([0.0, *totals], totals, strict=False)]
    steps = run.record["steps_done"] / len(epochs)
    last, exchange = sent[-1], exchange_seconds(run, gbit)
    done = epochs.index(reached) + 1
    return steps * sum(
        computing_seconds(run, passes) + exchange * (each / last if last else 1.0) for each in sent[:done]
    )


def quietest(runs: Iterable[NotedRun]) -> float:
    """Least seconds of a worker's forward and backward pass, the same for all methods of a task; 0 without any.

    A record's phases also have the time of whatever else the machine did in the hours of a study.
    """
    return min((seconds for seconds in map(passes_seconds, runs) if seconds), default=0.0)


def computing_seconds(run: NotedRun, passes: float) -> float:
    """Seconds of one worker's step of one pass without its exchange, on a machine whose passes take `passes`."""
    own = passes_seconds(run)
    return passes + (sum(phase_seconds(run, name) for name in OWN) * passes / own if own else 0.0)


def phase_seconds(run: NotedRun, name: str) -> float:
    """Seconds of a phase in one worker's step."""
    return (run.has("phases", name) or 0.0) / _shared_by(run)


def passes_seconds(run: NotedRun) -> float:
    """Seconds of one worker's forward and backward pass; a step has several where gradients are accumulated."""
    return sum(phase_seconds(run, name) for name in PASSES) / passes_per_step(run)


def passes_per_step(run: NotedRun) -> int:
    """Over how many backward passes gradients are accumulated before they are exchanged."""
    return int(run.has("config", "train", "accumulation") or 1)


def _shared_by(run: NotedRun) -> int:
    """The number of workers that share the record's phases: the local engine runs all its workers one after the
    other.
    """
    return int(run.record["world_size"]) if run.record["engine"] == "local" else 1


def exchange_seconds(run: NotedRun, gbit: float) -> float:
    """Seconds of the requests of the last step on machines of one worker each."""
    size = run.record["world_size"]
    return sum(_pricer(plan, size, gbit).seconds(request) for plan, request in sizes_of(run))


def sizes_of(run: NotedRun) -> list[tuple[str, RequestSize]]:
    """The requests of the last step, each with its collective.

    A plan begins with the name of its collective; what none serves, an all-to-all, is priced as the engine's own.
    """
    size, sizes = run.record["world_size"], []
    for request in run.record["requests"]:
        kind = getattr(requests, request["kind"])
        sent = float(request["payload_bytes"])
        name = request["plan"].split()[0]
        # A record has what rank 0 sent. Where one rank chooses for all, it alone sends its choice, and is rank 0.
        alone = kind is requests.Gather and run.has("config", "compressor", "broadcast") == "indices"
        plan = name if name in collectives.available() else "native"
        sizes.append((plan, RequestSize(kind, sent / size if alone else sent, sent)))
    return sizes


@lru_cache
def _pricer(plan: str, size: int, gbit: float) -> Pricer:
    return Pricer(collectives.build(plan), _network(size, gbit))


def _network(size: int, gbit: float) -> Topology:
    """Machines of one worker each, with links of this rate and the start-up time of Ethernet of about that rate."""
    nearest = "25gbe" if gbit >= 25 else "10gbe" if gbit >= 10 else "1gbe"
    network = presets.find(nearest)
    return presets.cluster(network._replace(bytes_per_second=gbit * 1e9 / 8), size)
