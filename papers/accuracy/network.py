"""Time to an accuracy on networks that no run used: measured computing, simulated exchange.

A step takes what a worker computed, by the record, and what its requests cost on a network, by the cost model; nothing
overlaps, as in the study's scheduler. In a warm-up the requests cost more, as the bytes of the epoch are more.
"""

from collections.abc import Iterable
from functools import lru_cache

from papers.accuracy.rows import first_reaching, history, wire_bytes
from wirebench import collectives
from wirebench.costmodel.played_exchange import RequestSize
from wirebench.costmodel.request_cost import Pricer
from wirebench.gradient import requests
from wirebench.record.notes import NotedRun
from wirebench.topology import presets
from wirebench.topology.tree import Topology

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
    """Seconds of the requests of the last step on machines of one worker each.

    A plan begins with the name of its collective; what none serves, an all-to-all, is priced as the engine's own.
    """
    size = run.record["world_size"]
    total = 0.0
    for request in run.record["requests"]:
        kind = getattr(requests, request["kind"])
        sent = float(request["payload_bytes"])
        name = request["plan"].split()[0]
        name = name if name in collectives.available() else "native"
        # A record has what rank 0 sent. Where one rank chooses for all, it alone sends its choice, and is rank 0.
        alone = kind is requests.Gather and run.has("config", "compressor", "broadcast") == "indices"
        total += _pricer(name, size, gbit).seconds(RequestSize(kind, sent / size if alone else sent, sent))
    return total


@lru_cache
def _pricer(plan: str, size: int, gbit: float) -> Pricer:
    return Pricer(collectives.build(plan), plan, _network(size, gbit))


def _network(size: int, gbit: float) -> Topology:
    """Machines of one worker each, with links of this rate and the start-up time of Ethernet of about that rate."""
    nearest = "25gbe" if gbit >= 25 else "10gbe" if gbit >= 10 else "1gbe"
    network = presets.find(nearest)
    return presets.cluster(network._replace(bytes_per_second=gbit * 1e9 / 8), size)
