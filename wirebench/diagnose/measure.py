"""The network alone: all-reduces of a few sizes on the job's own hosts, over its own engine, with nothing beside them.

Every rank of the job calls it. What a run's messages take beside computing says what the run got; this says what there
is to be had.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from wirebench import collectives
from wirebench.bench.all_reduce_benchmark import AllReduceBenchmark
from wirebench.comm.base import ring_reduce_bytes
from wirebench.comm.engine import Engine, start
from wirebench.comm.launch import launched
from wirebench.comm.launch_command import is_torchrun
from wirebench.comm.peers import gather
from wirebench.config.loader import EngineConfig
from wirebench.diagnose.launching import started
from wirebench.diagnose.link import FittedLink, TimedMessage, fitted
from wirebench.errors import UserError
from wirebench.telemetry.nic import InterfaceCounter, find_interface
from wirebench.telemetry.rank_facts import link_mbit
from wirebench.topology.tree import Topology

ITEMS = (1, 64_000, 250_000, 1_000_000, 4_000_000)
"""Floats of each all-reduce; larger ones are left out once a call takes LONG_SECONDS.

None of some kilobytes: what fits into the queues on its way arrives earlier than at the link's rate, and would bend the
line.
"""
REPEATS = 5
LONG_SECONDS = 0.5


class NetworkAlone(NamedTuple):
    """All-reduce times of the network without other traffic.

    times    (bytes of the tensor, seconds of the fastest all-reduce on its slowest rank)
    link     fitted to them: seconds to start an all-reduce, bytes per second that a rank sends
    nominal  nominal rate of the ranks' fastest link, in bytes per second; None if unknown
    by       engine and ranks, in words; differs: how they differ from the run's engine and ranks, or ''
    """

    times: Sequence[tuple[int, float]]
    link: FittedLink
    nominal: float | None
    by: str
    differs: str


def alone(record: dict[str, Any], run: Path) -> NetworkAlone | None:
    """Measure; None on every rank but the first. UserError where no launcher has started several ranks.

    run  where the record was read, for the command that the error shows
    """
    if launched().alone:
        raise UserError(f"--measure: is started as the run was, on every rank: {_how(record, run)}")
    engine = start(EngineConfig(device=record["device"]), fusion_mb=0.0)
    if engine.size == 1:
        raise UserError("--measure: needs at least 2 ranks")
    times = _times(engine)
    nominal = _nominal(engine)
    engine.close()
    if not engine.is_first:
        return None
    messages = [TimedMessage("Sum", seconds, ring_reduce_bytes(size, engine.size), 1) for size, seconds in times]
    by, wanted = (f"{name} x {size}" for name, size in _both(engine, record))
    return NetworkAlone(times, fitted(messages), nominal, f"{by} ({engine.backend})", "" if by == wanted else wanted)


def _both(engine: Engine, record: dict[str, Any]) -> tuple[tuple[str, int], tuple[str, int]]:
    return (engine.name, engine.size), (record["engine"], record["world_size"])


def _times(engine: Engine) -> list[tuple[int, float]]:
    """(bytes, seconds) by size, the same on every rank."""
    topology = Topology.of_hosts([peer.host for peer in engine.peers])
    trial = AllReduceBenchmark(engine, collectives.build("native"), topology, InterfaceCounter(None))
    times: list[tuple[int, float]] = []
    for items in ITEMS:
        tensor = torch.zeros(items, device=engine.device)
        first = trial.check(tensor)
        tensor.zero_()  # sums of zeros stay finite however often they are repeated
        for _ in range(REPEATS):
            trial.repeat(tensor, trial.loop_length(first.seconds))
        times.append((4 * items, min(trial.take().seconds)))
        if first.seconds > LONG_SECONDS:
            break
    return times


def _nominal(engine: Engine) -> float | None:
    """Nominal rate of the ranks' fastest link in bytes per second, from each rank's interface; None if unknown."""
    interface = find_interface(engine.ranks_on_this_host == engine.size)
    rate = link_mbit([interface]).get(interface) if interface else None
    return max((each * 1e6 / 8 for each in gather(engine.communicators[0], rate) if each), default=None)


def _how(record: dict[str, Any], run: Path) -> str:
    """The command line that measures on the run's hosts, made of its own."""
    how = started(record)
    words = how.launcher if how and how.launcher else ["wirebench", "cluster", "run", "--hosts", "2", "--"]
    program = ["-m", "wirebench"] if is_torchrun(words) else ["wirebench"]
    return shlex.join([*words, *program, "diagnose", str(run), "--measure"])
