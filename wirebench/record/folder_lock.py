"""One run at a time in a folder: rank 0 keeps a file `run.lock` there from before the run's first file to its last.

The file names the holder: host, process and since when. On the holder's own machine a process that is gone, or that
began at another time, holds nothing. Elsewhere the file's age tells: a holder touches it every BEAT_SECONDS. Both times
that are compared are the file system's, so hosts' clocks need not agree. Neither flock nor hard links are needed.
"""

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from wirebench.errors import Unwritable, UserError
from wirebench.utils import this_machine
from wirebench.utils.parsing import json_of
from wirebench.utils.processes import began

NAME = "run.lock"
BEAT_SECONDS = 10.0
SILENT_SECONDS = 120.0
"""A holder on another machine that has not touched the file for so long is gone."""
TURN_SECONDS = 2.0
"""How long a run waits for another one that is looking at the same file, or for its own predecessor to end."""


@dataclass(frozen=True)
class Holder:
    """Who holds a folder.

    machine  where `pid` means this process: of a boot of a kernel, one of its process namespaces
    began    clock ticks from that boot to the process's begin: a later process may get the same pid
    since    UTC, ISO 8601
    job      an elastic job's name: its restarted ranks take over from each other; "" for any other run
    """

    host: str
    machine: str
    pid: int
    began: int | None
    since: str
    job: str = ""


class FolderLock:
    """Holds `directory` until `release`; makes it if it is missing.

    job  an elastic job's name, "" for any other run
    Raises UserError where a living run holds it, or where it cannot be written.
    """

    def __init__(self, directory: Path, job: str = "") -> None:
        if "\0" in str(directory):
            raise UserError(f"output.dir: {str(directory)!r} is no path")
        self.path = directory / NAME
        self._made = not directory.exists()
        pid = os.getpid()
        since = datetime.now(UTC).isoformat(timespec="seconds")
        self._mine = Holder(this_machine.hostname(), _machine(), pid, began(pid), since, job)
        self._lost_to: Holder | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._take()
        except FileExistsError as error:
            raise UserError(f"output.dir: {directory} is not a folder") from error
        except OSError as error:
            raise UserError(f"output.dir: {directory} cannot be written: {error.strerror}") from error
        self._over = threading.Event()
        # A daemon: it touches the file as long as the process lives, and no longer.
        self._thread = threading.Thread(target=self._beat, name="wirebench-lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise Unwritable where another run has taken the folder: this process was silent for too long."""
        if self._lost_to is not None:
            other = self._lost_to
            raise Unwritable(f"{self.path.parent} was taken over by process {other.pid} on {other.host}")

    def release(self) -> None:
        """Free the folder, and remove it if it was made for nothing; may be called again."""
        if self._over.is_set() or os.getpid() != self._mine.pid:  # a forked process holds nothing
            return
        self._over.set()
        self._thread.join()
        with suppress(OSError):
            if _holder(self.path) == self._mine:
                self.path.unlink()
            if self._made:
                self.path.parent.rmdir()

    def _take(self) -> None:
        temporary = self.path.with_name(f".{NAME}.{self._mine.host}.{self._mine.pid}.tmp")
        try:
            temporary.write_text(json.dumps(asdict(self._mine)) + "\n", encoding="utf-8")
            with _turn(self.path.parent):
                if not _appears(temporary, self.path):
                    self._refuse_living(temporary)
                    os.replace(temporary, self.path)
        finally:
            with suppress(OSError):
                temporary.unlink()

    def _refuse_living(self, temporary: Path) -> None:
        holder, mine = _holder(self.path), self._mine
        same_job = holder is not None and mine.job != "" and holder.job == mine.job
        if holder is not None and holder.machine == mine.machine:
            deadline = time.monotonic() + TURN_SECONDS * same_job
            while (lives := _lives(holder)) and time.monotonic() < deadline:
                time.sleep(0.05)
            if lives and holder.pid != mine.pid:
                raise UserError(f"{self._held_by(holder)}; {ADVICE}")
        elif not same_job:
            try:
                silent = temporary.stat().st_mtime - self.path.stat().st_mtime
            except FileNotFoundError:  # given back meanwhile
                return
            if silent < -SILENT_SECONDS:  # a folder that was copied, or clocks that differ: only a beat tells
                silent = 0.0 if self._beats() else SILENT_SECONDS
            if silent < SILENT_SECONDS:
                gone = f"if that run is gone, remove {self.path}, or wait: after {SILENT_SECONDS:g} s it does not count"
                raise UserError(f"{self._held_by(holder)}, {max(silent, 0):.0f} s ago last; {ADVICE}; {gone}")

    def _beats(self) -> bool:
        """Whether the holder touches the file, within the time in which a living one does."""
        deadline = time.monotonic() + 2 * BEAT_SECONDS
        with suppress(FileNotFoundError):
            first = self.path.stat().st_mtime_ns
            while time.monotonic() < deadline:
                if self.path.stat().st_mtime_ns != first:
                    return True
                time.sleep(0.05)
        return False

    def _held_by(self, holder: Holder | None) -> str:
        who = f"process {holder.pid} on {holder.host} since {holder.since}" if holder else f"the writer of {self.path}"
        return f"output.dir: {self.path.parent} is in use by another run: {who}"

    def _beat(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            with suppress(OSError):
                holder = _holder(self.path)
                if holder == self._mine:
                    os.utime(self.path)
                elif holder is not None:
                    self._lost_to = holder


ADVICE = "wait for its end, stop it, or choose another output.dir"


def _holder(path: Path) -> Holder | None:
    """The process that the file names; None if the file is missing or cannot be read."""
    try:
        if not path.is_file():
            return None
        told = Holder(**json_of(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return told if isinstance(told.pid, int) else None


def _lives(holder: Holder) -> bool:
    """Whether a holder on this machine is the process that runs under its number."""
    return holder.began is not None and began(holder.pid) == holder.began


def _machine() -> str:
    try:
        return f"{this_machine.BOOT.read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return this_machine.hostname()


def _appears(temporary: Path, path: Path) -> bool:
    """Give the file its name unless that is taken; whether it was free."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if path.exists():
            return False
        os.replace(temporary, path)
    return True


@contextmanager
def _turn(directory: Path) -> Iterator[None]:
    """If several runs find the same stale file, only one at a time examines it, on file systems that have flock.

    After TURN_SECONDS it no longer waits for the folder's flock, which `flock FOLDER python train.py ...` holds.
    """
    descriptor, deadline = os.open(directory, os.O_RDONLY), time.monotonic() + TURN_SECONDS
    try:
        while not _flocked(descriptor) and time.monotonic() < deadline:
            time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def _flocked(descriptor: int) -> bool:
    """Whether it is locked now, or cannot be at all."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
