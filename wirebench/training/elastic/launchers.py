"""How ranks come back after a change of the world: what differs between the launchers that can start them anew.

torchrun ends all ranks and starts new processes in their place. Horovod's elastic launcher starts ranks on new hosts
only, and gives up a host of which a process ends; the others are to go on in their processes, and ask it for their new
ranks. There a rank becomes a new program in the same process, which begins as every rank does.
"""

import os
import sys
import urllib.request
from collections.abc import Callable, Mapping
from typing import Protocol

from wirebench.comm.engine import Engine

Environment = Mapping[str, str]
_PLACE = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
"""A rank's place, in the order in which Horovod's launcher sends it, and by the names of its variables."""


class Launcher(Protocol):
    """Starts an elastic job's ranks."""

    def job(self) -> str:
        """A name that all ranks of the job know, and no other job of these hosts has."""

    def watch(self, changed: Callable[[], object]) -> None:
        """Call `changed`, in a thread, when hosts come or go; a launcher that ends the ranks itself need not."""

    def come_back(self) -> None:
        """Called by a rank that would end: begin anew in the next world, where the launcher wants that, or return."""


class TorchElastic:
    """torchrun: its agent tells a rank to end, and starts another process."""

    def job(self) -> str:
        """The job's id."""
        return os.environ["TORCHELASTIC_RUN_ID"]

    def watch(self, changed: Callable[[], object]) -> None:
        """Do nothing: torchrun ends the ranks itself."""

    def come_back(self) -> None:
        """The agent starts a process in place of this one."""


class HorovodElastic:
    """horovodrun --min-np ... --host-discovery-script ..."""

    def job(self) -> str:
        """The address of the job's rendezvous server."""
        return _rendezvous()

    def watch(self, changed: Callable[[], object]) -> None:
        """Horovod tells rank 0 alone; it learns here where each rank listens for that."""
        from horovod.runner.elastic.worker import WorkerNotificationManager

        self._manager = WorkerNotificationManager()
        self._manager.register_listener(_Listener(changed))
        self._manager.init()

    def come_back(self) -> None:
        """Wait for the next world, and become a new program in this process; return where it has no place there."""
        place = next_place(os.environ)
        if not place:
            return
        os.environ.update(place)
        sys.stdout.flush()
        sys.stderr.flush()
        close_at_exec()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


class _Listener:
    """The listener that Horovod's manager notifies of changed hosts."""

    def __init__(self, changed: Callable[[], object]) -> None:
        self._changed = changed

    def on_hosts_updated(self, timestamp: int, update_res: object) -> None:
        """Hosts have come or gone."""
        self._changed()


def launcher_of(engine: Engine, environment: Environment = os.environ) -> Launcher | None:
    """The elastic launcher that started this rank; None where it was another one."""
    if engine.name == "torch" and "TORCHELASTIC_RUN_ID" in environment:
        return TorchElastic()
    if engine.name == "horovod" and environment.get("HOROVOD_ELASTIC") == "1":
        return HorovodElastic()
    return None


def next_place(environment: Environment) -> dict[str, str]:
    """The variables of this process's place in Horovod's next world, when all its ranks have asked or ended.

    Empty where that world is without this host, or the launcher is gone.
    """
    place = f"{environment['HOROVOD_HOSTNAME']}:{environment['HOROVOD_LOCAL_RANK']}"
    try:
        # No time limit: Horovod's launcher has its own (--elastic-timeout), and ends its ranks then.
        with urllib.request.urlopen(f"http://{_rendezvous(environment)}/rank_and_size/{place}") as answer:
            numbers = answer.read().decode().split(",")
    except OSError:
        return {}
    if numbers[0] == "-1":
        return {}
    return {f"HOROVOD_{name}": number for name, number in zip(_PLACE, numbers, strict=True)}


def close_at_exec() -> None:
    """Let the system close all but the standard files when this process becomes another program.

    Libraries leave connections open then, whose other ends would wait for ever.
    """
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > 2:
            try:
                os.set_inheritable(number, False)
            except OSError:
                continue  # the listing's own descriptor, and what another thread has closed


def _rendezvous(environment: Environment = os.environ) -> str:
    return f"{environment['HOROVOD_GLOO_RENDEZVOUS_ADDR']}:{environment['HOROVOD_GLOO_RENDEZVOUS_PORT']}"
