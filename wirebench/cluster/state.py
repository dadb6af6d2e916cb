"""Clusters with a name: a small file each, in a folder that belongs to the user alone."""

import json
import os
import re
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from wirebench.cluster import plan
from wirebench.cluster.launcher import Cluster
from wirebench.errors import UserError
from wirebench.utils.files import write_atomically
from wirebench.utils.parsing import json_of

END_SECONDS = 10.0


@dataclass(frozen=True)
class Named:
    """A cluster that `up` started. Its first process is known by number and start time, since numbers are reused.

    started_ticks  start time of the process, in the kernel's ticks since boot
    created        when the cluster was made, in seconds since the epoch
    """

    name: str
    cluster: Cluster
    started_ticks: int
    created: float

    @property
    def alive(self) -> bool:
        """Whether its first process runs."""
        return _ticks(self.cluster.pid) == self.started_ticks

    @property
    def age_seconds(self) -> float:
        """Time since it was started."""
        return time.time() - self.created


def folder() -> Path:
    """The user's folder for this machine's clusters; UserError if another user owns it or it cannot be made."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(runtime) / "wirebench" if runtime else Path("/tmp") / f"wirebench-{os.geteuid()}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; set XDG_RUNTIME_DIR to a folder of your own") from error
    if status.st_uid != os.geteuid() or not path.is_dir() or path.is_symlink():
        raise UserError(f"{path} is not a folder of yours; set XDG_RUNTIME_DIR to one")
    return path


def counts_folder() -> Path:
    """An empty folder of the user's over which each job mounts its own."""
    path = folder() / "counts"
    path.mkdir(exist_ok=True)
    return path


@contextmanager
def reserve(name: str) -> Iterator[None]:
    """Keep a name for this process while it starts the cluster; UserError where it is taken or no name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", name):
        raise UserError(f"--name: {name!r} is not up to 32 letters, digits, - and _")
    with FileLock(folder() / "lock"):
        if any(known.name == name and known.alive for known in every()):
            raise UserError(f"--name: a cluster {name!r} is up already; take it down, or choose another name")
        yield


def save(name: str, cluster: Cluster) -> None:
    """Write the file by which `find` knows this running cluster."""
    content = {
        "name": name,
        "pid": cluster.pid,
        "started_ticks": _ticks(cluster.pid),
        "created": time.time(),
        "holders": cluster.holders,
        "plan": cluster.plan.dump(),
    }
    write_atomically(_file(name), json.dumps(content) + "\n")


def every() -> list[Named]:
    """All known clusters, dead ones too, by name."""
    loaded = (_load(path) for path in sorted(folder().glob("*.json")))
    return [known for known in loaded if known is not None]


def find(name: str) -> Named:
    """The running cluster of this name; if there is none, UserError, which lists the running clusters."""
    running = {known.name: known for known in every() if known.alive}
    if name not in running:
        raise UserError(f"--name: no cluster {name!r} is up; there is: {', '.join(running) or 'none'}")
    return running[name]


def end(known: Named) -> bool:
    """Kill a cluster and remove its file; returns whether it ran. UserError where it does not end in END_SECONDS."""
    ran = _kill(known)
    _file(known.name).unlink(missing_ok=True)
    return ran


def _kill(known: Named) -> bool:
    try:
        process = os.pidfd_open(known.cluster.pid)
    except ProcessLookupError:
        return False
    try:
        # Checked while the descriptor holds the process: without it, the number could be another process's by now.
        if not known.alive:
            return False
        # With the first process of a PID namespace the kernel kills all others, jobs included.
        signal.pidfd_send_signal(process, signal.SIGKILL)
        if not select.select([process], [], [], END_SECONDS)[0]:
            raise UserError(
                f"cluster {known.name!r} does not end within {END_SECONDS:g} s; process {known.cluster.pid}"
            )
    finally:
        os.close(process)
    return True


def _file(name: str) -> Path:
    return folder() / f"{name}.json"


def _load(path: Path) -> Named | None:
    try:
        content = json_of(path.read_text())
        cluster = Cluster(plan.load(content["plan"]), content["pid"], content["holders"])
        return Named(content["name"], cluster, content["started_ticks"], content["created"])
    except FileNotFoundError:  # taken down since the folder was listed
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} was written by another version; end its cluster, then remove the file") from error


def _ticks(pid: int) -> int:
    """When a process started, in the kernel's ticks; -1 where it is gone."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return int(after_name[19]) if after_name[0] != "Z" else -1
