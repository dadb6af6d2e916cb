"""The machines of a run: what each is, and how busy it was with anything but the run.

A load average alone is ambiguous: at the start it may contain an earlier run, at the end it contains the run itself. So
each process also counts its own processor time. The machine's time that no process of the run used belongs to other
programs.
"""

import json
import os
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import psutil

from wirebench.comm.engine import Engine
from wirebench.comm.peers import gather
from wirebench.telemetry import environment
from wirebench.utils import this_machine

COUNTED = ("seconds", "busy_seconds", "steal_seconds", "own_seconds")


def hosts(engine: Engine) -> list[dict[str, Any]]:
    """`environment.host` of every machine of the job, each once, with its `ranks`; every rank calls it."""
    return _each_once(engine, environment.host(), lambda same: same[0])


class LoadMeter:
    """Counts from its creation on, in every process of a run."""

    def __init__(self) -> None:
        self._begin = _read()

    def loads(self, engine: Engine) -> list[dict[str, Any]]:
        """How busy each machine was until now; every rank calls it. Emulated hosts are one machine, the first's name.

        ranks            that ran there; all the other figures are of the time that the run's first process there took
        seconds          of that time
        cores            of the machine, whether or not the run may use them
        load_average     of one minute, when the run began and when it ended
        others_cores     how many cores were busy with what no process of the run did, on average; the kernel's own work
                         for the network is part of it
        steal            share of the processors' time that the hypervisor gave to other guests; None: not counted
        """
        return _each_once(engine, {"boot": this_machine.boot()}, _machine_load, self._mine())

    def load(self) -> list[dict[str, Any]]:
        """The load of this machine, as `loads` gives it, for a process that is no rank of a job."""
        return [{"ranks": [0]} | _machine_load([self._mine()])]

    def _mine(self) -> dict[str, Any]:
        begin, end = self._begin, _read()
        counted = {name: None if None in (end[name], begin[name]) else end[name] - begin[name] for name in COUNTED}
        machine = {"hostname": this_machine.hostname(), "cores": this_machine.all_cores()}
        return {**machine, **counted, "load_begin": begin["load"], "load_end": end["load"]}


def _machine_load(processes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = processes[0]
    seconds, steal = max(first["seconds"], 1e-9), first["steal_seconds"]
    others = first["busy_seconds"] - sum(each["own_seconds"] for each in processes)
    return {
        "hostname": first["hostname"],
        "cores": first["cores"],
        "seconds": first["seconds"],
        "load_average": [first["load_begin"], first["load_end"]],
        "others_cores": max(others, 0.0) / seconds,
        "steal": None if steal is None else steal / seconds / first["cores"],
    }


def _each_once(
    engine: Engine,
    identity: dict[str, Any],
    together: Callable[[Sequence[dict[str, Any]]], dict[str, Any]],
    more: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """One table for each `identity`: the ranks of its processes, and the result of `together` on these processes."""
    mine = {"identity": identity, "ranks": list(engine.ranks), "more": more or {}}
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in gather(engine.communicators[0], mine) if engine.distributed else [mine]:
        groups.setdefault(json.dumps(each["identity"], sort_keys=True), []).append(each)
    return [
        {"ranks": [rank for each in group for rank in each["ranks"]]}
        | together([each["identity"] | each["more"] for each in group])
        for group in groups.values()
    ]


def _read() -> dict[str, Any]:
    """Seconds of COUNTED since some time in the past, summed over processors, and the load average.

    steal_seconds is None where the kernel counts none.
    """
    times = psutil.cpu_times()
    # The kernel counts a guest's time as its host process's too; what is stolen is nobody's here.
    busy = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
    seconds = monotonic(), busy, getattr(times, "steal", None), _own_seconds()
    return {**dict(zip(COUNTED, seconds, strict=True)), "load": os.getloadavg()[0]}


def _own_seconds() -> float:
    """Processor time of this process and of its children, those that have ended included."""
    process = psutil.Process()
    total = sum(process.cpu_times()[:4])
    for child in process.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:2])
        except psutil.Error:
            continue  # it has ended meanwhile
    return float(total)
