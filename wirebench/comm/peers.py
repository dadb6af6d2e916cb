"""The other processes of a job: who they are, whether they live, and what they agree on.

Each process introduces itself once. When a call fails, the survivors can then name the rank that is gone instead of
repeating the network's error.
"""

import functools
import hashlib
import json
import os
import signal
import textwrap
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from wirebench.comm import connections
from wirebench.comm.base import Communicator
from wirebench.comm.connections import End
from wirebench.comm.store import within
from wirebench.errors import PeerLost, UserError
from wirebench.utils import this_machine

GRACE_SECONDS = 3.0
SIGN_SECONDS = 0.5
"""A living rank that closes its connections, as a back end does after a timeout, signs in within this time."""
POLL_SECONDS = 0.05
ANSWER_SECONDS = 2.0
"""A store that takes longer than this for a word is cut off."""
WORD = "farewell"
STOPPED = "T"


@dataclass(frozen=True)
class Peer:
    """A rank's process: host name and process number.

    rank     within the process group; `called`: within the whole job, where that is another
    ends     its ends of the connections that it and this process had when they met; empty if unknown
    stopped  whether a signal had stopped it when it was missed
    """

    rank: int
    host: str
    pid: int
    ends: frozenset[End] = frozenset()
    stopped: bool = field(default=False, compare=False)
    called: int | None = None

    def __str__(self) -> str:
        rank = self.rank if self.called is None else self.called
        return f"rank {rank} (pid {self.pid} on {self.host})" + ", which a signal has stopped" * self.stopped


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


def gather(communicator: Communicator, value: Any) -> list[Any]:
    """Every rank's value, in rank order; it travels as JSON."""
    return [json.loads(text) for text in gather_bytes(communicator, json.dumps(value).encode())]


def introduce(communicator: Communicator) -> list[Peer]:
    """All processes of the job, in rank order.

    A rank receives only those ends of another rank that lead to its own addresses: the number of all ends of all ranks
    grows with the square of the world size.
    """
    name, own = os.environ.get("HOROVOD_HOSTNAME") or this_machine.hostname(), connections.by_address()
    told = gather(communicator, [name, os.getpid(), sorted({end[0] for ends in own.values() for end in ends})])
    others = [rank for rank in range(communicator.size) if rank != communicator.rank]
    sends = [json.dumps([end for address in told[r][2] for end in own.get(address, [])]).encode() for r in others]
    ends = {r: set(map(tuple, json.loads(text))) for r, text in _swapped(communicator, others, sends).items()}
    reached = connections.other_ends()
    return [Peer(r, host, pid, frozenset(reached & ends.get(r, set()))) for r, (host, pid, _) in enumerate(told)]


def _swapped(communicator: Communicator, others: list[int], sends: list[bytes]) -> dict[int, bytes]:
    """Exchange bytes with the `others`: each gets its entry of `sends`; returns their messages, by rank."""
    tensors = [torch.frombuffer(bytearray(content), dtype=torch.uint8) for content in sends]
    messages, receives = list(zip(others, tensors, strict=True)), [(rank, None) for rank in others]
    parts = communicator.exchange(messages, receives, torch.uint8, lengths_travel=True).wait() if others else []
    return {rank: part.numpy().tobytes() for rank, part in zip(others, parts, strict=True)}


def agree_on(communicator: Communicator, what: str, mine: Mapping[str, Any], called: Sequence[int] = ()) -> None:
    """Raise UserError on every rank, naming rank and key, unless all ranks bring the same flat dictionary.

    called  the ranks' numbers in the whole job, by which messages name them; () where these are the communicator's
    """
    text = json.dumps(mine, sort_keys=True).encode()
    if len(set(gather_bytes(communicator, hashlib.sha256(text).digest()))) == 1:
        return  # without sending the whole, which is long where it describes a model
    brought, numbers = [json.loads(each) for each in gather_bytes(communicator, text)], called or range(2**31)
    for rank, other in zip(numbers, brought, strict=False):
        for key in sorted(brought[0].keys() | other.keys()):
            if brought[0].get(key) != other.get(key):
                raise UserError(
                    f"{what}: {key} is {brought[0].get(key)!r} on rank {numbers[0]} but {other.get(key)!r} on rank "
                    f"{rank}; all ranks need the same"
                )


def missing(
    peers: list[Peer], me: int, store: dist.Store | None, hang_up: Callable[[], object] = lambda: None
) -> list[Peer]:
    """The peers that are gone, as far as this process can tell; it takes GRACE_SECONDS, or a little more, at most.

    On this host the process table decides. A living rank meets the same failure sooner or later. It signs in at the
    store before it leaves, so that no rank counts it as gone. A rank whose connections are closed and that has not
    signed in after SIGN_SECONDS is gone. A connected rank that has not signed in after GRACE_SECONDS is gone, or hangs.

    hang_up  closes this process's connections, when it has signed in, so that all meet the failure now
    """
    book, left = _Book(store), closed(peers, me)
    # What this rank signs and reads is in rank 0's process: where that is gone, no answer comes.
    book.lost = me != 0 and peers[0] in left
    book.sign("survivor", me)
    # After a timeout this process's own back end closes what it has, which says nothing of the others.
    left = [] if len(left) == len(peers) - 1 > 1 else _closing(peers, me, book)
    hang_up()
    gone = _missing(peers, me, book, left)
    still = stopped(gone, peers[me].host)  # until all have seen it: then it is ended, too
    book.sign("leaving", me)
    return [replace(peer, stopped=peer in still) for peer in gone]


def _closing(peers: list[Peer], me: int, book: "_Book") -> list[Peer]:
    """The peers whose connections are closed, and who have not signed in: who is killed needs a moment for the last."""
    deadline = time.monotonic() + SIGN_SECONDS
    while True:
        left = [p for p in closed(peers, me) if not book.has("survivor", p)]
        known = any(p.ends for p in peers) and not dead(peers, peers[me].host)
        if left or not known or time.monotonic() > deadline:
            return left
        time.sleep(POLL_SECONDS)


def _missing(peers: list[Peer], me: int, book: "_Book", left: Collection[Peer]) -> list[Peer]:
    began, here = time.monotonic(), peers[me].host
    while True:
        silent = [p for p in peers if p.rank != me and not book.has("survivor", p)]
        gone = dead(silent, here)
        if book.lost and (gone[:1] == peers[:1] or peers[0].host != here):
            # The book was in rank 0's process, which keeps it open as long as others may read it (linger).
            return peers[:1]
        waited = time.monotonic() - began
        if waited > SIGN_SECONDS and book.exists:
            gone = [p for p in silent if p in gone or p in left]
        if gone or not silent:
            return gone
        if waited > GRACE_SECONDS:
            return silent if book.exists else []
        time.sleep(POLL_SECONDS)


def closed(peers: list[Peer], me: int) -> list[Peer]:
    """The peers that have closed all connections to this process, or whose system has, as they have ended."""
    reached = connections.other_ends()
    return [p for p in peers if p.rank != me and p.ends and not p.ends & reached]


def leave_word(store: dist.Store | None, why: str) -> None:
    """Write down why this rank ends."""
    _Book(store).write(WORD, why)


def word_left(store: dist.Store | None, me: int) -> str:
    """Why another rank has ended, '' if none left a reason; its reader no longer needs that rank (see `linger`)."""
    book = _Book(store)
    why = book.read(WORD)
    if why:
        book.sign("leaving", me)
    return why


def linger(peers: list[Peer], me: int, store: dist.Store | None, gone: Collection[Peer] = ()) -> None:
    """On rank 0, whose process may keep the store: let the living read it before it goes, at most GRACE_SECONDS.

    Where a peer is stopped, on all ranks: let the others see it before it ends. gone: peers that are known to be
    """
    if store is None or (me != 0 and not stopped(peers, peers[me].host)):
        return
    book = _Book(store)
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and not book.lost:
        silent = [p for p in peers if p.rank != me and p not in gone and not book.has("leaving", p)]
        if silent == dead(silent, peers[me].host):
            return
        time.sleep(POLL_SECONDS)


def dead(peers: list[Peer], host: str) -> list[Peer]:
    """The peers that ran on `host`, this process's own, and have ended, or are stopped by a signal."""
    return [p for p in peers if p.host == host and not _alive(p.pid)]


def stopped(peers: list[Peer], host: str) -> list[Peer]:
    """The peers on `host`, this process's own, that a signal has stopped (SIGSTOP)."""
    return [p for p in peers if p.host == host and _state(p.pid) == STOPPED]


def end_stopped(peers: list[Peer], host: str) -> None:
    """Kill the stopped peers on `host`, this process's own, for their job is over.

    No SIGTERM reaches them, so that the launcher would wait for them: torchrun half a minute.
    """
    for peer in stopped(peers, host):
        with suppress(OSError):
            os.kill(peer.pid, signal.SIGKILL)


def any_dead(peers: list[Peer], me: int) -> bool:
    """Whether one of the others has ended, or does within GRACE_SECONDS.

    A process closes its connections, which others notice, a little before it is gone from the process table.
    """
    deadline = time.monotonic() + GRACE_SECONDS
    while not dead(peers, peers[me].host) and not closed(peers, me):
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
        answered, answer = within(ANSWER_SECONDS, functools.partial(call, self._store))
        self.lost = not answered
        return answer


def _alive(pid: int) -> bool:
    """Whether a process of this host runs; a zombie, which its launcher has not buried yet, does not."""
    return _state(pid) not in ("", "Z", STOPPED)


def _state(pid: int) -> str:
    """The kernel's letter for the state of a process of this host; "" if the process does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
