"""Records of the calls that made a file of trials: the first trial of each, its environment, and the machine's load.

Processor time is counted while the job is undisturbed: for some seconds at the start, and in the wait before each
fault. It is not counted during a fault, since the processor time of a rank that died cannot be read.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from wirebench.chaos.trials_file import Line
from wirebench.telemetry.environment import capture, host

Call = dict[str, Any]
Load = Mapping[str, Any]
"""Load of a machine, as LoadMeter counts it."""


def begun(first: int, hosts: int) -> Call:
    """A call that is about to make trials from number `first` on; `hosts` ranks, all on this machine."""
    machine = {**host(), "ranks": list(range(hosts))}
    environment = {**capture(torch.device("cpu")), "hosts": [machine]}
    return {"first": first, "environment": environment, "beginnings": [], "load": None}


def with_loads(calls: Sequence[Call], trials: Sequence[Line]) -> list[Call]:
    """The calls, each with the load of all that was counted during it."""
    ends = [*(call["first"] for call in calls[1:]), None]
    return [{**call, "load": load_of(call, trials[call["first"] : end])} for call, end in zip(calls, ends, strict=True)]


def load_of(call: Call, trials: Sequence[Line]) -> list[dict[str, Any]] | None:
    """The load of the one machine during a call; None where nothing was counted. trials: its own"""
    loads = [load for each in (*call["beginnings"], *(line["load"] for line in trials)) for load in each]
    counted = [load for load in loads if load["seconds"] > 0]
    return [_together(counted)] if counted else None


def _together(loads: Sequence[Load]) -> dict[str, Any]:
    """The load over several stretches of time, weighted by their seconds."""
    seconds = [load["seconds"] for load in loads]

    def mean(name: str) -> float | None:
        values = [load[name] for load in loads]
        return None if None in values else statistics.fmean(values, seconds)

    ends = [loads[0]["load_average"][0], loads[-1]["load_average"][1]]
    averages = {name: mean(name) for name in ("others_cores", "steal")}
    return {**loads[0], **averages, "seconds": sum(seconds), "load_average": ends}
