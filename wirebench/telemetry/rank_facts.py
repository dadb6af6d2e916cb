"""What each rank of a run did with its time and its interfaces, gathered at the end: who waits for whom, and where.

Rank 0's phases alone do not tell why it waits: whether the network is slow, or another rank is.
"""

import os
import statistics
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from wirebench.comm.engine import Engine
from wirebench.comm.launch_command import LINK_MBIT
from wirebench.comm.peers import gather
from wirebench.telemetry import nic
from wirebench.telemetry.step_stats import PHASES, StepSeries
from wirebench.utils import this_machine

COMPUTING = ("forward", "backward", "update")
"""Phases in which a rank computes."""
OURS = "wirebench"
"""Key under which a profiler's file has the facts on its rank, as `wirebench.watch` writes them."""


class InterfaceWatch:
    """Counts what every interface of this host sends, from its creation on."""

    def __init__(self) -> None:
        self._begin = nic.sent_bytes()

    def sent(self) -> dict[str, int]:
        """Bytes by interface, of those that have sent any."""
        now = nic.sent_bytes()
        passed = {name: count - self._begin.get(name, 0) for name, count in now.items()}
        return {name: count for name, count in passed.items() if count > 0}


class CoreWatch:
    """Counts, from its creation on, how long the main thread, which trains, had no core although it was ready to run.

    Where ranks share cores this is by how much computing takes longer than alone; no clock of one rank tells it.
    """

    def __init__(self) -> None:
        self._began, self._begin = time.perf_counter(), _waited_for_a_core()

    def share(self) -> float | None:
        """The share of the time passed; None where the kernel does not count it."""
        waited, passed = _waited_for_a_core(), time.perf_counter() - self._began
        return None if waited is None or self._begin is None else (waited - self._begin) / max(passed, 1e-9)


def gathered(
    engine: Engine, steps: StepSeries, interfaces: InterfaceWatch, cores: CoreWatch
) -> list[dict[str, Any]] | None:
    """A table for each rank, in rank order; None where all ranks live in one process. Every rank calls it.

    rank, host, threads  of its process; cores: those it may use, and ranks_on_host share them
    core_wait            CoreWatch.share
    step_seconds         median of the counted steps; phases: their means; None without a counted step
    compute_seconds      median of their computing time, so that one delayed step does not make a rank slow
    sent                 bytes by interface of its host since training began, from all processes there
    link_mbit            nominal rate by interface, if the launcher or the system gives one
    """
    if not engine.distributed:
        return None
    columns, counted = steps.columns, steps.count > 0
    computed = [a + b + c for a, b, c in zip(*(columns[name] for name in COMPUTING), strict=True)]
    sent = interfaces.sent()
    mine = {
        "host": engine.peers[engine.ranks[0]].host,
        "threads": torch.get_num_threads(),
        "ranks_on_host": engine.ranks_on_this_host,
        "cores": this_machine.cores(),
        "core_wait": cores.share(),
        "step_seconds": statistics.median(columns["seconds"]) if counted else None,
        "compute_seconds": statistics.median(computed) if counted else None,
        "phases": {name: statistics.fmean(columns[name]) for name in PHASES} if counted else None,
        "sent": sent,
        "link_mbit": link_mbit(sent),
    }
    return [{"rank": rank, **facts} for rank, facts in enumerate(gather(engine.communicators[0], mine))]


def link_mbit(interfaces: Iterable[str], environment: Mapping[str, str] = os.environ) -> dict[str, float]:
    """Nominal megabits per second by interface; interfaces without a nominal rate (loopback, bridge) are left out.

    The variable WIREBENCH_LINK_MBIT has priority: 1000, for Gloo's interface, or eth0=1000,eth1=100.
    """
    if told := environment.get(LINK_MBIT):
        # Then nothing else counts: what the system shows in an emulated host are another one's interfaces.
        used = environment.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
        pairs = [each.rpartition("=") for each in told.split(",")]
        rates = {name or used: _number(rate) for name, _, rate in pairs}
    else:
        rates = {name: this_machine.link_mbit(name) for name in interfaces}
    return {name: rate for name, rate in rates.items() if rate > 0 and name}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _waited_for_a_core() -> float | None:
    """Seconds that the main thread has been ready and not running; None where the kernel does not count them."""
    return this_machine.waited_for_a_core(os.getpid())  # the main thread's number is the process's
