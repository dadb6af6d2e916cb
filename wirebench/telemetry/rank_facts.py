"""What each rank of a run did with its time and its interfaces, gathered at the end: who waits for whom, and where.

Rank 0's phases alone do not tell why it waits: whether the network is slow, or another rank is.
"""

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from wirebench.comm.engine import Engine
from wirebench.comm.peers import gather_bytes
from wirebench.telemetry import nic
from wirebench.telemetry.step_stats import PHASES, StepTimes

INTERFACES = Path("/sys/class/net")


class InterfaceWatch:
    """Counts what every interface of this host sends, from its creation on."""

    def __init__(self) -> None:
        self._begin = nic.sent_bytes()

    def sent(self) -> dict[str, int]:
        """Bytes by interface, of those that have sent any."""
        now = nic.sent_bytes()
        passed = {name: count - self._begin.get(name, 0) for name, count in now.items()}
        return {name: count for name, count in passed.items() if count > 0}


def gathered(engine: Engine, steps: Sequence[StepTimes], watch: InterfaceWatch) -> list[dict[str, Any]] | None:
    """A table for each rank, in rank order; None where all ranks live in one process. Every rank calls it.

    rank, host, threads  of its process; cores: those it may use, and ranks_on_host share them
    step_seconds         median of the counted steps; phases: their means; None without a counted step
    sent                 bytes by interface of its host since training began, whoever sent them
    link_mbit            nominal rate by interface, where the system says one
    """
    if not engine.distributed:
        return None
    counted = [times for times in steps if times.counted]
    sent = watch.sent()
    mine = {
        "host": engine.peers[engine.ranks[0]].host,
        "threads": torch.get_num_threads(),
        "ranks_on_host": engine.ranks_on_this_host,
        "cores": len(os.sched_getaffinity(0)),
        "step_seconds": statistics.median(each.seconds for each in counted) if counted else None,
        "phases": {name: _mean(counted, name) for name in PHASES} if counted else None,
        "sent": sent,
        "link_mbit": _rates(sent),
    }
    texts = gather_bytes(engine.communicators[0], json.dumps(mine).encode())
    return [{"rank": rank, **json.loads(text)} for rank, text in enumerate(texts)]


def _mean(steps: Sequence[StepTimes], phase: str) -> float:
    return statistics.fmean(each.phases[phase] for each in steps)


def _rates(interfaces: Mapping[str, int]) -> dict[str, float]:
    """Megabits per second by interface; those that do not tell (a loopback, a bridge) are left out."""
    rates = {}
    for name in interfaces:
        try:
            rates[name] = float((INTERFACES / name / "speed").read_text())
        except (OSError, ValueError):
            continue
    return {name: rate for name, rate in rates.items() if rate > 0}
