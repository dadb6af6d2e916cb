"""Hosts of one rank each, all of them this machine under other names, that come and go while they train as one job."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from wirebench.training.elastic.host_memory import ABOUT, TMPFS


class Hosts(Protocol):
    """A job that begins when as many hosts are there as it may have.

    names  that its hosts may have, one more than it needs; run: its output.dir
    since  when it was made, by the clock of files
    """

    names: tuple[str, ...]
    run: Path
    since: float

    def start(self, host: str) -> None:
        """The host joins the job."""
        ...

    def lose(self, host: str) -> None:
        """The host is gone, at once."""
        ...

    def until(self, condition: Callable[[], bool], limit_seconds: float = ...) -> None:
        """Wait until `condition` holds; AssertionError, with what was said, where that takes too long."""
        ...

    def finish(self, limit_seconds: float = ...) -> None:
        """Wait for the job's end; AssertionError where that is none as it should be."""
        ...

    def end(self) -> None:
        """Nothing of the job stays."""
        ...


@contextmanager
def ending(hosts: Hosts) -> Iterator[Hosts]:
    """The hosts, of which nothing stays at the end of the block."""
    try:
        yield hosts
    finally:
        hosts.end()


def lose_and_gain(hosts: Hosts, least: int, again: int, limit_seconds: float) -> None:
    """Begin with all hosts but one; lose one after `least` steps, and gain the last `again` steps of the rest later.

    Each waits for what was to come before, however long that takes: nothing here is a matter of time.
    """
    first, *_, lost, new = hosts.names
    size = len(hosts.names) - 1
    for host in hosts.names[:size]:
        hosts.start(host)
    hosts.until(lambda: max(commits_of(hosts, first, size), default=0) >= least, limit_seconds)
    hosts.lose(lost)
    hosts.until(lambda: bool(commits_of(hosts, first, size - 1)), limit_seconds)
    began = max(commits_of(hosts, first, size - 1))
    hosts.until(lambda: max(commits_of(hosts, first, size - 1), default=0) >= began + again, limit_seconds)
    hosts.start(new)
    hosts.until(lambda: bool(commits_of(hosts, new, size)), limit_seconds)


def commits_of(hosts: Hosts, host: str, size: int) -> list[int]:
    """After how many steps the host's commits of a world of `size` ranks were made.

    Those that a killed job has left under the same host's name are older than this job.
    """
    found = []
    for path in TMPFS.glob(f"wirebench-*/{host}/step-*/{ABOUT}"):
        with suppress(FileNotFoundError):  # an old commit, which makes room for a new one
            words = path.parent.name.split("-")
            if path.stat().st_mtime >= hosts.since and int(words[3]) == size:
                found.append(int(words[1]))
    return found
