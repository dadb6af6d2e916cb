"""State that outlives a worker in its host's memory: files on a tmpfs, in a folder of the job and of the host.

A commit is a folder `step-00000020-of-0004-in-1f0c5b7a` with the files of a state (state_files.py). Each appears in one
rename, so a process may be killed at any time. The other ranks' files show that a commit is incomplete.
"""

import hashlib
import json
import multiprocessing
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from wirebench.training.state_files import STATE, DamagedError, is_whole, read_state, write_file
from wirebench.utils import this_machine
from wirebench.utils.files import write_atomically
from wirebench.utils.parsing import json_of

TMPFS = Path("/dev/shm")
KEPT = 2
"""Commits that a host holds: of the newest some rank's file may not be written yet when another rank dies."""
TROUBLE = "trouble.json"
NOTED = ("at", "step", "size")
"""Keys that `trouble.json` has."""


class Commit(NamedTuple):
    """A commit's name: made after `step` steps, counted as in a world of `size` ranks.

    world  a word of that world alone: another one may come to the same step by another way, and the files of two
           commits that were never whole are not to make a third
    """

    step: int
    size: int
    world: str


def launcher() -> str:
    """An id of the process that started this one: the same for a replacement of this one, another in other jobs."""
    asked = multiprocessing.parent_process()  # who has asked a fork server for this process, if that is its parent
    pid = os.getppid() if asked is None or asked.pid is None else asked.pid
    try:
        return f"{pid}-{psutil.Process(pid).create_time():.2f}"
    except psutil.NoSuchProcess:
        return f"{pid}-gone"


class HostMemory:
    """This host's commits of the job that `key` names (the same on all ranks and for all its restarts)."""

    def __init__(self, key: str, root: Path = TMPFS, host: str = "") -> None:
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        self.folder = root / f"wirebench-{os.getuid()}-{digest}" / (host or this_machine.hostname())

    def write(self, commit: Commit, name: str, content: Mapping[str, Any] | bytes) -> None:
        """Add a file to a commit. OSError."""
        folder = self._folder(commit)
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / name, content)

    def read(self, commit: Commit, name: str) -> bytes:
        """A file of a commit. OSError."""
        return (self._folder(commit) / name).read_bytes()

    def take_back(self, commit: Commit, names: Iterable[str]) -> None:
        """Remove these files of a commit, and what is there of one that could not be written."""
        folder = self._folder(commit)
        for path in [each for name in names for each in (folder / name, *folder.glob(f".{name}.*"))]:
            with suppress(OSError):
                path.unlink()
        with suppress(OSError):  # another rank's files are there
            folder.rmdir()

    def prune(self) -> None:
        """Leave the newest commits. The first rank of a host calls it, after it has written its part of one.

        By then all ranks have written theirs of the commit before: they wait for that when a commit begins.
        """
        made = sorted(filter(None, (_changed(each / STATE) for each in self._all())))
        for folder in self._all() if made else []:
            # Where the first rank was killed before it wrote its part, there is none.
            if (_changed(folder / STATE) or _changed(folder)) < made[-KEPT:][0]:
                shutil.rmtree(folder, ignore_errors=True)

    def _all(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"))

    def inventory(self) -> list[dict[str, Any]]:
        """The files that this host holds, for each commit.

        step, size, world  its name; files: their names
        job, worlds        whose it is, and how many changes of the world came before it; "" and -1 where this host has
                           no word of that
        A file that cannot be read, or is not whole, is none.
        """
        found = []
        for folder in self._all():
            match = re.fullmatch(r"step-(\d+)-of-(\d+)-in-(\w+)", folder.name)
            if match:
                step, size, world = match.groups()
                commit = Commit(int(step), int(size), world)
                files = sorted(path.name for path in folder.glob("[!.]*") if is_whole(path))
                job, worlds = self._about(commit)
                found.append({**commit._asdict(), "files": files, "job": job, "worlds": worlds})
        return found

    def _about(self, commit: Commit) -> tuple[str, int]:
        try:
            about = read_state(self._folder(commit))
            return str(about["job"]), len(about["progress"].get("worlds", []))
        except (DamagedError, ValueError, KeyError):
            return "", -1

    def trusted(self) -> set[str]:
        """Jobs of which commits were made here under the launcher of this very process."""
        jobs = set()
        with suppress(OSError, ValueError):
            jobs.add((self.folder / f"job-{launcher()}").read_text())
        return jobs

    def trust(self, job: str) -> None:
        """Note that this process and its replacements belong to `job`; OSError if that cannot be written."""
        if job not in self.trusted():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / f"job-{launcher()}", job)

    def note_trouble(self, trouble: Mapping[str, float]) -> None:
        """Remember when and at which step this host's first rank met a failure, for the rank that takes its place.

        Without room for the file the time is unknown afterwards: `began` is then the commit's time.
        """
        with suppress(OSError):
            if self.folder.exists() and not (self.folder / TROUBLE).exists():
                write_atomically(self.folder / TROUBLE, json.dumps(trouble))

    def take_trouble(self) -> dict[str, float]:
        """The note since the last call; {} if there is none, or none that can be read."""
        noted: Any = None
        with suppress(OSError, ValueError):
            noted = json_of((self.folder / TROUBLE).read_bytes())
        with suppress(OSError):
            (self.folder / TROUBLE).unlink(missing_ok=True)
        known = isinstance(noted, dict) and all(isinstance(noted.get(each), int | float) for each in NOTED)
        return {each: noted[each] for each in NOTED} if known else {}

    def forget(self) -> None:
        """Give the memory back."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # another emulated host's folder is there
            self.folder.parent.rmdir()

    def _folder(self, commit: Commit) -> Path:
        return self.folder / f"step-{commit.step:08d}-of-{commit.size:04d}-in-{commit.world}"


def _changed(path: Path) -> int:
    """Time of the last change of the file, in nanoseconds; 0 if the file is missing."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
