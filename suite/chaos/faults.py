"""The kinds of fault: how each is delivered to a host of a running job, how it is undone, and by what it is named."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import psutil

from suite.chaos.job import HOLD_LOCK, NAN, Job
from wirebench.cluster import network
from wirebench.cluster.namespaces import inside
from wirebench.training.elastic.host_memory import TMPFS

SLOW_SHARE = 0.01
NEIGHBOURS = 6
FILLER = "filler"

Undo = Callable[[], None]


class Fault(NamedTuple):
    """A kind of fault.

    about    what happens
    deliver  does it to a host; returns how to undo it
    seconds  after which it is undone
    named    pattern of the lines that name the cause, with HOST for the victim; "" where nothing ends and none are due
    who      who has to name it: `others` than the victim, `all` hosts, or `any` one of them
    renews   what it costs comes later, when the victim's rank is started anew
    """

    about: str
    deliver: Callable[[Job, str], Undo]
    seconds: float = 0.0
    named: str = r"lost .*rank \d+ \(pid \d+ on HOST\)"
    who: str = "others"
    renews: bool = False

    def names(self, line: str, victim: str) -> bool:
        """Whether a line names the cause."""
        return bool(self.named) and re.search(self.named.replace("HOST", victim), line) is not None


def nothing() -> None:
    """There is nothing to undo."""


def _signal(number: signal.Signals) -> Callable[[Job, str], Undo]:
    def deliver(job: Job, host: str) -> Undo:
        rank = job.rank_of(host)
        if rank is not None:
            rank.send_signal(number)
        return nothing

    return deliver


def _kill_launcher(job: Job, host: str) -> Undo:
    launcher = job.launcher_of(host)
    if launcher is not None:
        launcher.send_signal(signal.SIGKILL)
    return nothing


def _lose_host(job: Job, host: str) -> Undo:
    rank, launcher = job.rank_of(host), job.launcher_of(host)
    for process in (launcher, rank):
        if process is not None:
            process.send_signal(signal.SIGKILL)
    for memory in job.seen(TMPFS).glob(f"wirebench-*/{host}"):
        shutil.rmtree(memory, ignore_errors=True)
    return nothing


def _cut_link(job: Job, host: str) -> Undo:
    plan, switch = job.cluster.plan, inside(job.cluster.pid, "net")
    network.plug(plan, host, switch, out=True)
    return lambda: network.plug(plan, host, switch)


def _slow_link(job: Job, host: str) -> Undo:
    plan, switch, own = job.cluster.plan, inside(job.cluster.pid, "net"), job.inside(host)
    network.throttle(plan, host, SLOW_SHARE, switch, own)
    return lambda: network.throttle(plan, host, 1.0, switch, own)


def _busy_neighbour(job: Job, host: str) -> Undo:
    """Processes that compute without end on the one core that the rank may use."""
    rank = job.rank_of(host)
    if rank is None:
        return nothing
    before = rank.cpu_affinity()
    core = before[:1]
    with suppress(psutil.NoSuchProcess):
        _pin(rank, core)
    busy = [
        subprocess.Popen([sys.executable, "-I", "-S", "-c", f"import os; os.sched_setaffinity(0, {core})\nwhile 1: 0"])
        for _ in range(NEIGHBOURS)
    ]

    def undo() -> None:
        for each in busy:
            each.kill()
            each.wait()
        with suppress(psutil.NoSuchProcess):
            _pin(rank, before)

    return undo


def _pin(process: psutil.Process, cores: list[int]) -> None:
    for thread in process.threads():
        with suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(thread.id, cores)


def _fill_disk(job: Job, host: str) -> Undo:
    filler = job.disk / FILLER
    # A full disk is what is wanted here.
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return lambda: filler.unlink(missing_ok=True)


FAULTS = {
    "sigkill": Fault("a rank is killed", _signal(signal.SIGKILL)),
    "sigstop": Fault("a rank is stopped, and never goes on", _signal(signal.SIGSTOP)),
    "sigsegv": Fault("a rank crashes", _signal(signal.SIGSEGV)),
    "gil": Fault("a rank holds Python's lock for ever", _signal(HOLD_LOCK)),
    "cut_link": Fault("a host's cable is out for 8 s", _cut_link, seconds=8.0),
    "slow_link": Fault("a host's link has 1 % of its rate for 8 s", _slow_link, seconds=8.0, named=""),
    "slow_rank": Fault(
        f"{NEIGHBOURS} busy processes share a rank's core for 8 s", _busy_neighbour, seconds=8.0, named=""
    ),
    "disk_full": Fault("the disk is full for 3 s", _fill_disk, seconds=3.0, named="No space left on device", who="any"),
    "nan": Fault(
        "one step's gradient is NaN on one rank", _signal(NAN), named="error: .*(is not finite|the loss is)", who="all"
    ),
    "launcher": Fault("a host's launcher is killed", _kill_launcher, named="", renews=True),
    "host": Fault("a host is lost with its memory", _lose_host),
    "none": Fault("nothing: what there is to compare with", lambda job, host: nothing, named=""),
}
