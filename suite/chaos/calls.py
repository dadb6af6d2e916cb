"""What a file of trials says of each call that made some: from which trial on, where, and what else the machine did."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from suite.chaos.figures import UNDISTURBED
from suite.chaos.trials_file import Line
from wirebench.telemetry.environment import capture, host

Call = dict[str, Any]


def begun(first: int, hosts: int) -> Call:
    """A call that is about to make trials from number `first` on, with so many hosts, all of them this machine."""
    machine = {**host(), "ranks": list(range(hosts))}
    return {"first": first, "environment": {**capture(torch.device("cpu")), "hosts": [machine]}, "load": None}


def with_load(calls: Sequence[Call], trials: Sequence[Line]) -> list[Call]:
    """The calls, the last with the load of all its undisturbed trials.

    In others ranks die, whose processor time nobody can count any more.
    """
    last = calls[-1]
    loads = [line["load"][0] for line in trials if line["kind"] == UNDISTURBED and line["number"] >= last["first"]]
    return [*calls[:-1], {**last, "load": [_together(loads)] if loads else None}]


def _together(loads: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The load of one machine in several stretches of time."""
    seconds = [load["seconds"] for load in loads]

    def mean(name: str) -> float | None:
        values = [load[name] for load in loads]
        return None if None in values else statistics.fmean(values, seconds)

    ends = [loads[0]["load_average"][0], loads[-1]["load_average"][1]]
    averages = {name: mean(name) for name in ("others_cores", "steal")}
    return {**loads[0], **averages, "seconds": sum(seconds), "load_average": ends}
