"""The kinds of fault: how each is delivered to a host of a running job, how it is undone, and by what it is named."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import psutil

from wirebench.chaos.job import HOLD_LOCK, NAN, SPOILED_LAYER, Job
from wirebench.cluster import network
from wirebench.cluster.namespaces import inside

SLOW_SHARE = 0.01
NEIGHBOURS = 6
FILLER = "filler"

Undo = Callable[[], None]
Deliver = Callable[[Job, str], Undo | None]

LOST = r"lost "
_RANK = re.compile(r"rank \d+ \(pid \d+ on ([^)]*)\)")


class Fault(NamedTuple):
    """A kind of fault.

    about    what happens
    deliver  does it to a host; returns how to undo it, None where it did nothing, as the process to do it to was gone
    seconds  after which it is undone
    named    pattern of the lines that name the cause; where it is LOST the victim's rank is the only one that is named
    who      which hosts must name the cause: `others` than the victim, `all`, `any` one of them
    silent   why no host must name it; "" if one must
    renews   the cost comes later, when the victim's rank is started anew
    """

    about: str
    deliver: Deliver
    seconds: float = 0.0
    named: str = LOST
    who: str = "others"
    silent: str = ""
    renews: bool = False

    @property
    def due(self) -> bool:
        """Whether any host must name the cause."""
        return not self.silent

    def names(self, line: str, victim: str) -> bool:
        """Whether a line names the cause, and no rank other than the victim's."""
        found = re.search(self.named, line) if self.due else None
        if found is None or self.named != LOST:
            return found is not None
        return set(_RANK.findall(line, found.end())) == {victim}


def due_to_name(fault: "Fault", hosts: int) -> int:
    """How many of the `hosts` must name the fault's cause."""
    return {"others": hosts - 1, "all": hosts, "any": 1}[fault.who] if fault.due else 0


def nothing() -> None:
    """There is nothing to undo."""


def _send(process: psutil.Process | None, number: signal.Signals) -> bool:
    """Whether the process was there and got the signal."""
    try:
        if process is not None:
            process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return process is not None


def _signal(number: signal.Signals) -> Deliver:
    return lambda job, host: nothing if _send(job.rank_of(host), number) else None


def _kill_launcher(job: Job, host: str) -> Undo | None:
    return nothing if _send(job.launcher_of(host), signal.SIGKILL) else None


def _lose_host(job: Job, host: str) -> Undo | None:
    if not job.lose(host):
        return None
    job.gain(host)
    return nothing


def _cut_link(job: Job, host: str) -> Undo:
    plan, switch = job.cluster.plan, inside(job.cluster.pid, "net")
    network.plug(plan, host, switch, out=True)
    return lambda: network.plug(plan, host, switch)


def _slow_link(job: Job, host: str) -> Undo:
    plan, switch, own = job.cluster.plan, inside(job.cluster.pid, "net"), job.inside(host)
    network.throttle(plan, host, SLOW_SHARE, switch, own)
    return lambda: network.throttle(plan, host, 1.0, switch, own)


def _busy_neighbour(job: Job, host: str) -> Undo | None:
    """Processes that compute without end on the one core that the rank may use."""
    rank = job.rank_of(host)
    if rank is None:
        return None
    try:
        before = rank.cpu_affinity()
        core = before[:1]
        _pin(rank, core)
    except psutil.NoSuchProcess:
        return None
    # They end with this process, also where it is killed.
    words = f"import os; os.sched_setaffinity(0, {core})\nwhile os.getppid() == {os.getpid()}: sum(range(1000))"
    busy = [subprocess.Popen([sys.executable, "-I", "-S", "-c", words]) for _ in range(NEIGHBOURS)]

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


def _fill_disk(job: Job, host: str) -> Undo | None:
    filler = job.disk / FILLER
    # A full disk is what is wanted here.
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return (lambda: filler.unlink(missing_ok=True)) if filler.exists() else None


FAULTS = {
    "sigkill": Fault("a rank is killed", _signal(signal.SIGKILL)),
    "sigstop": Fault("a rank is stopped, and never continues", _signal(signal.SIGSTOP)),
    "sigsegv": Fault("a rank crashes", _signal(signal.SIGSEGV)),
    "gil": Fault("a rank holds Python's lock for ever", _signal(HOLD_LOCK)),
    "cut_link": Fault("a host's cable is out for 8 s", _cut_link, seconds=8.0),
    "slow_link": Fault(
        "a host's link has 1 % of its rate for 8 s", _slow_link, seconds=8.0,
        silent="no rank is lost; the job continues",
    ),
    "slow_rank": Fault(
        f"{NEIGHBOURS} busy processes share a rank's core for 8 s", _busy_neighbour, seconds=8.0,
        silent="no rank is lost; the job continues",
    ),
    "disk_full": Fault("the disk is full for 3 s", _fill_disk, seconds=3.0, named="No space left on device", who="any"),
    "nan": Fault(
        "one step's gradient is NaN on one rank", _signal(NAN), who="all",
        named=rf"the gradient of layers? (\S+ to )?{re.escape(SPOILED_LAYER)}\b.* is not finite",
    ),
    "launcher": Fault(
        "a host's launcher is killed", _kill_launcher, silent="no rank is lost; the host's rank lives on", renews=True
    ),
    "host": Fault("a host is lost with its memory", _lose_host),
    "none": Fault("nothing: what there is to compare with", lambda job, host: nothing, silent="nothing happens"),
}  # fmt: skip
