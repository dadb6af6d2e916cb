"""The other processes of a job: who they are, whether they live, and what they agree on.

Each process introduces itself once. When a call fails, the survivors can then say which rank is gone instead of
repeating the network's error.
"""

import functools
import json
import os
import signal
import socket
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from wirebench.comm.base import Communicator
from wirebench.errors import PeerLost, UserError

GRACE_SECONDS = 3.0
POLL_SECONDS = 0.05
ANSWER_SECONDS = 2.0
"""A store that takes longer than this for a word is cut off."""
WORD = "farewell"
STOPPED = "T"


@dataclass(frozen=True)
class Peer:
    """A rank's process: host name and process number."""

    rank: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {self.host})"


@contextmanager
def reporting_loss() -> Iterator[None]:
    """Turn the RuntimeError with which back ends report a lost or silent peer into PeerLost."""
    try:
        yield
    except (PeerLost, torch.OutOfMemoryError):
        raise
    except RuntimeError as error:
        raise PeerLost(first_line(error)) from error


def first_line(error: Exception) -> str:
    """The first line of an error's message, not too long of it; back ends append stack traces."""
    return textwrap.shorten((str(error).splitlines() or [type(error).__name__])[0], 160, placeholder=" ...")


def gather_bytes(communicator: Communicator, content: bytes) -> list[bytes]:
    """Every rank's bytes, in rank order."""
    mine = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return [part.numpy().tobytes() for part in communicator.all_gather(mine).wait()]


def introduce(communicator: Communicator) -> list[Peer]:
    """All processes of the job, in rank order."""
    mine = json.dumps([os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname(), os.getpid()]).encode()
    return [Peer(rank, *json.loads(text)) for rank, text in enumerate(gather_bytes(communicator, mine))]


def agree_on(communicator: Communicator, what: str, mine: dict[str, Any]) -> None:
    """Raise UserError on every rank, naming rank and key, unless all ranks bring the same flat dictionary."""
    texts = gather_bytes(communicator, json.dumps(mine, sort_keys=True).encode())
    first = json.loads(texts[0])
    for rank, text in enumerate(texts):
        other = json.loads(text)
        for key in sorted(first.keys() | other.keys()):
            if first.get(key) != other.get(key):
                raise UserError(
                    f"{what}: {key} is {first.get(key)!r} on rank 0 but {other.get(key)!r} on rank {rank}; "
                    "all ranks need the same"
                )


def missing(peers: list[Peer], me: int, store: dist.Store | None) -> list[Peer]:
    """The peers that are gone, as far as this process can tell; it takes at most GRACE_SECONDS.

    On this host the process table tells. A living rank meets the same failure sooner or later and signs in at the
    store before it leaves, so that nobody counts it among the gone; who has not after GRACE_SECONDS is gone, or hangs.
    """
    book = _Book(store)
    book.sign("survivor", me)
    gone = _missing(peers, me, book)
    book.sign("leaving", me)
    return gone


def _missing(peers: list[Peer], me: int, book: "_Book") -> list[Peer]:
    deadline = time.monotonic() + GRACE_SECONDS
    while True:
        silent = [p for p in peers if p.rank != me and not book.has("survivor", p)]
        gone = dead(silent, peers[me].host)
        if book.lost and (gone[:1] == peers[:1] or peers[0].host != peers[me].host):
            # The book was in rank 0's process, which keeps it open as long as others may read it (linger).
            return peers[:1]
        if gone or not silent:
            return gone
        if time.monotonic() > deadline:
            return silent if book.exists else []
        time.sleep(POLL_SECONDS)


def hang_up(store: dist.Store | None) -> None:
    """Close this process's connections, but the one to the store: who waits for it meets the failure now, too.

    Back ends close theirs only when the process ends, which would then look like one more rank that is gone.
    """
    inner = store
    while isinstance(inner, dist.PrefixStore):  # torchrun's store has the job's prefix and the reunion's
        inner = inner.underlying_store
    spared = inner.port if isinstance(inner, dist.TCPStore) else None
    for connection in psutil.Process().net_connections("tcp"):
        ends = {connection.laddr.port, *(connection.raddr[1:] or ())}
        if connection.status == psutil.CONN_ESTABLISHED and spared not in ends:
            # A copy, since the descriptor is the back end's, which may close it at this moment: that is as good.
            with suppress(OSError), socket.socket(fileno=os.dup(connection.fd)) as copy:
                copy.shutdown(socket.SHUT_RDWR)


def leave_word(store: dist.Store | None, why: str) -> None:
    """Write down why this rank ends."""
    _Book(store).write(WORD, why)


def word_left(store: dist.Store | None, me: int) -> str:
    """Why another rank has ended, '' where none has said; who reads it no longer needs that rank (see `linger`)."""
    book = _Book(store)
    why = book.read(WORD)
    if why:
        book.sign("leaving", me)
    return why


def linger(peers: list[Peer], me: int, store: dist.Store | None) -> None:
    """On rank 0, whose process may keep the store: let the living read it before it goes, at most GRACE_SECONDS."""
    if me != 0 or store is None:
        return
    book = _Book(store)
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and not book.lost:
        silent = [p for p in peers if p.rank != me and not book.has("leaving", p)]
        if silent == dead(silent, peers[me].host):
            return
        time.sleep(POLL_SECONDS)


def dead(peers: list[Peer], host: str) -> list[Peer]:
    """The peers that ran on `host`, this process's own, and have ended, or are stopped by a signal."""
    return [p for p in peers if p.host == host and not _alive(p.pid)]


def stopped(peers: list[Peer], host: str) -> list[Peer]:
    """The peers on `host`, this process's own, that a signal has stopped (SIGSTOP)."""
    return [p for p in peers if p.host == host and _state(p.pid) == STOPPED]


def in_words(gone: list[Peer], host: str) -> str:
    """Who is gone, as a process on `host` says it."""
    still = stopped(gone, host)
    return ", ".join(f"{peer}, which a signal has stopped" if peer in still else str(peer) for peer in gone)


def end_stopped(peers: list[Peer], host: str) -> None:
    """Kill the stopped peers on `host`, this process's own, for their job is over.

    No SIGTERM reaches them, so that the launcher would wait for them: torchrun half a minute.
    """
    for peer in stopped(peers, host):
        with suppress(OSError):
            os.kill(peer.pid, signal.SIGKILL)


def any_dead(peers: list[Peer], host: str) -> bool:
    """Whether one of the peers on `host` is dead, or is within GRACE_SECONDS.

    A process closes its connections, which others notice, a little before it is gone from the process table.
    """
    deadline = time.monotonic() + GRACE_SECONDS
    while not dead(peers, host):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


class _Book:
    """Pages of the store in which ranks that have met a failure sign. `lost`: the store's own process is gone."""

    def __init__(self, store: dist.Store | None) -> None:
        self._store = store
        self.exists = store is not None
        self.lost = False

    def sign(self, page: str, me: int) -> None:
        self._ask(lambda store: store.set(f"{page}/{me}", "1"))

    def has(self, page: str, peer: Peer) -> bool:
        return bool(self._ask(lambda store: store.check([f"{page}/{peer.rank}"])))

    def write(self, page: str, text: str) -> None:
        self._ask(lambda store: store.set(page, text))

    def read(self, page: str) -> str:
        if not self._ask(lambda store: store.check([page])):
            return ""
        content = self._ask(lambda store: store.get(page))
        return content.decode() if content else ""

    def _ask(self, call: Callable[[dist.Store], Any]) -> Any:
        if self._store is None or self.lost:
            return None
        answered, answer = _within(ANSWER_SECONDS, functools.partial(call, self._store))
        self.lost = not answered
        return answer


def _within(seconds: float, call: Callable[[], Any]) -> tuple[bool, Any]:
    """Whether a call of the store's ends without a RuntimeError within so many seconds, and what it returns.

    The store's own timeout does not count while it waits for an answer: where the host that keeps it is cut off, that
    takes as long as TCP tries, a quarter of an hour.
    """
    answers: list[Any] = []

    def ask() -> None:
        with suppress(RuntimeError):
            answers.append(call())

    thread = threading.Thread(target=ask, name="wirebench-book", daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(answers), answers[0] if answers else None


def _alive(pid: int) -> bool:
    """Whether a process of this host runs; a zombie, which its launcher has not buried yet, does not."""
    return _state(pid) not in ("", "Z", STOPPED)


def _state(pid: int) -> str:
    """The letter by which the kernel tells the state of a process of this host; "" where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
