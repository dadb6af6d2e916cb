"""Who is gone when a call fails, and what all ranks must agree on."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.distributed.launch import ROOT
from tests.helpers import Gathering
from wirebench.comm import connections, peers
from wirebench.comm.peers import Peer, agree_on, end_stopped, first_line, introduce, linger, missing, reporting_loss
from wirebench.errors import PeerLost, UserError


class Clock:
    """Time that passes while somebody sleeps, and then alone."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What ranks that wait for each other look at; a store answers in time on the slowest machine."""
    made = Clock()
    monkeypatch.setattr(peers, "time", made)
    monkeypatch.setattr(peers, "ANSWER_SECONDS", 60.0)
    return made


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        ({"a.b": 1, "c.d": 2.5}, "what: c.d is 2 on rank 0 but 2.5 on rank 1; all ranks need the same"),
        ({"a.b": 1}, "what: c.d is 2 on rank 0 but None on rank 1"),
        ({"a.b": "1", "c.d": 2}, "what: a.b is 1 on rank 0 but '1' on rank 1"),
    ],
)
def test_ranks_that_differ_are_named(mine: dict[str, Any], words: str) -> None:
    communicator: Any = Gathering({"a.b": 1, "c.d": 2}, rank=1)
    with pytest.raises(UserError) as caught:
        agree_on(communicator, "what", mine)
    assert words in str(caught.value)


def test_ranks_that_agree() -> None:
    communicator: Any = Gathering({"c.d": [1, 2], "a.b": 1})
    agree_on(communicator, "what", {"a.b": 1, "c.d": (1, 2)})


class OfThree(Gathering):
    """Rank 0's, which sends and receives too: `sent` has what, by rank."""

    size = 3

    def __init__(self, others: list[object], ends: dict[int, list[Any]]) -> None:
        super().__init__(*others)
        self.ends, self.sent = ends, dict[int, Any]()

    def exchange(self, sends: Any, receives: Any, dtype: torch.dtype, lengths_travel: bool) -> Any:
        self.sent = {rank: json.loads(tensor.numpy().tobytes()) for rank, tensor in sends}
        parts = [torch.frombuffer(bytearray(json.dumps(self.ends[r]).encode()), dtype=dtype) for r, _ in receives]
        return SimpleNamespace(wait=lambda: parts)


def test_ranks_tell_each_other_of_the_connections_between_their_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = (("127.0.0.1", 5), ("127.0.0.1", 6)), (("10.0.0.1", 1), ("10.0.0.2", 2))
    monkeypatch.setattr(connections, "by_address", lambda: {other[0]: [own] for own, other in (near, far)})
    monkeypatch.setattr(connections, "other_ends", lambda: {near[1], far[1]})
    others: list[object] = [["a", 7, ["127.0.0.1", "10.0.0.1"]], ["b", 8, ["10.0.0.2"]]]
    communicator: Any = OfThree(others, {1: [near[1], ("127.0.0.1", 9)], 2: [far[1]]})
    _, second, third = introduce(communicator)
    assert communicator.sent == {1: [[*near[0]]], 2: [[*far[0]]]}
    assert (second, third) == (Peer(1, "a", 7, frozenset({near[1]})), Peer(2, "b", 8, frozenset({far[1]})))


@pytest.fixture
def living() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def buried() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.fixture
def unburied() -> Iterator[int]:
    process = subprocess.Popen(["true"])
    while peers._alive(process.pid):
        time.sleep(0.01)
    yield process.pid
    process.wait()


@pytest.fixture
def store() -> dist.Store:
    return dist.HashStore()


def soon_after(seconds: float, clock: Clock) -> bool:
    """Whether it is so late, or a look later."""
    return seconds <= clock.now <= seconds + 1.01 * peers.POLL_SECONDS


def team(*pids: int, hosts: str = "hhh") -> list[Peer]:
    """This process is rank 0."""
    return [Peer(rank, hosts[rank], pid) for rank, pid in enumerate([os.getpid(), *pids])]


def test_a_dead_process_of_this_host_is_named_at_once(
    living, buried: int, unburied: int, store: dist.Store, clock: Clock
) -> None:
    for pid in (buried, unburied):
        all_peers = team(living.pid, pid)
        assert missing(all_peers, 0, store) == missing(all_peers, 0, None) == [all_peers[2]]
    assert clock.now == 0
    assert str(all_peers[2]) == f"rank 2 (pid {unburied} on h)"


def test_a_stopped_process_is_named_at_once_and_ended(living, store: dist.Store, clock: Clock) -> None:
    """It hears no SIGTERM, for which a launcher would wait."""
    living.send_signal(signal.SIGSTOP)
    while peers._state(living.pid) != peers.STOPPED:
        time.sleep(0.01)
    all_peers = team(living.pid)
    assert missing(all_peers, 0, store) == missing(all_peers, 0, None) == [all_peers[1]]
    linger(all_peers, 0, store)
    assert clock.now == 0
    end_stopped(all_peers, "another host")
    assert living.poll() is None
    end_stopped(all_peers, "h")
    assert living.wait(60) == -signal.SIGKILL


def test_who_is_silent_is_missing_and_a_survivor_is_not(living, buried: int, unburied: int, store: dist.Store) -> None:
    """Rank 1 has said that it goes on, and may have left; a process number of another host says nothing here."""
    store.set("survivor/1", "1")
    for all_peers in (team(buried, unburied), team(living.pid, 1), team(buried, living.pid, hosts="hii")):
        assert missing(all_peers, 0, store) == [all_peers[2]]
    assert missing(team(living.pid, 1), 0, None) == []


def test_nobody_is_gone_where_all_have_met_the_failure(living, store: dist.Store, clock: Clock) -> None:
    store.set("survivor/1", "1")
    store.set("survivor/2", "1")
    assert missing(team(living.pid, 1), 0, store) == []
    assert store.check(["survivor/0", "leaving/0"])
    assert clock.now == 0


def test_whose_connections_are_closed_is_gone_unless_it_has_signed_in(
    living, store: dist.Store, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """It says so itself before it closes them."""
    all_peers = [Peer(0, "h", os.getpid()), *(Peer(rank, f"h{rank}", 1) for rank in (1, 2, 3))]
    monkeypatch.setattr(peers, "closed", lambda team, me: all_peers[1:3])
    order: list[bool] = []
    store.set("survivor/1", "1")
    assert missing(all_peers, 0, store, lambda: order.append(store.check(["survivor/0"]))) == [all_peers[2]]
    assert order == [True] and soon_after(peers.SIGN_SECONDS, clock)
    store.set("leaving/1", "1")
    store.set("leaving/3", "1")
    linger(all_peers, 0, store, [all_peers[2]])
    assert soon_after(peers.SIGN_SECONDS, clock)


def test_a_process_that_has_closed_all_connections_itself_knows_nothing_by_that(
    store: dist.Store, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Back ends do so after a timeout."""
    all_peers = [Peer(0, "h", os.getpid()), *(Peer(rank, f"h{rank}", 1) for rank in (1, 2))]
    monkeypatch.setattr(peers, "closed", lambda team, me: all_peers[1:])
    assert missing(all_peers, 0, store) == all_peers[1:] and soon_after(peers.GRACE_SECONDS, clock)


def test_a_store_that_is_gone_lived_with_rank_0(living) -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    del server
    all_peers = [Peer(0, "there", 1), Peer(1, "h", os.getpid()), Peer(2, "h", living.pid)]
    assert missing(all_peers, 1, client) == [all_peers[0]]


def test_a_store_that_is_cut_off_was_with_rank_0(living, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own timeout does not end a call whose answer does not come."""
    monkeypatch.setattr(peers, "ANSWER_SECONDS", 0.1)
    over = threading.Event()

    class CutOff:
        def set(self, key: str, value: str) -> None:
            over.wait(60)

    silent: Any = CutOff()
    all_peers = [Peer(0, "there", 1), Peer(1, "h", os.getpid()), Peer(2, "h", living.pid)]
    assert missing(all_peers, 1, silent) == [all_peers[0]]
    over.set()


def test_rank_0_waits_until_the_living_have_read(living, buried: int, store: dist.Store, clock: Clock) -> None:
    all_peers = team(living.pid, buried)
    for me, keeper in ((1, store), (0, None)):
        linger(all_peers, me, keeper)
        assert clock.now == 0
    linger(all_peers, 0, store)
    assert soon_after(peers.GRACE_SECONDS, clock)
    store.set("leaving/1", "1")
    linger(all_peers, 0, store)
    assert soon_after(peers.GRACE_SECONDS, clock)


HANGING_UP = """
import socket, torch.distributed as dist
from wirebench.comm.connections import hang_up
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
inner = dist.PrefixStore("a", dist.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False))
store = dist.PrefixStore("b", inner)  # as torchrun's: the job's, and the reunion's
listening = socket.create_server(("127.0.0.1", 0))
mine = socket.create_connection(listening.getsockname())
theirs, _ = listening.accept()
hang_up(store)
assert theirs.recv(1) == b"" and mine.recv(1) == b""
store.set("key", "still there")
print(store.get("key").decode())
"""


@pytest.mark.slow
def test_hanging_up_spares_the_store() -> None:
    """In a process of its own, for it closes every connection."""
    done = subprocess.run([sys.executable, "-c", HANGING_UP], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "still there\n"), done.stderr


def test_a_back_ends_error_is_a_lost_peer() -> None:
    with pytest.raises(PeerLost, match=r"^Connection closed$"), reporting_loss():
        raise RuntimeError("Connection closed\nException raised from ...")
    with pytest.raises(PeerLost, match=r"^as it was$"), reporting_loss():
        raise PeerLost("as it was")
    with pytest.raises(UserError, match=r"^mine$"), reporting_loss():
        raise UserError("mine")


def test_messages_are_cut_to_a_line() -> None:
    assert first_line(RuntimeError("")) == "RuntimeError"
    assert len(first_line(RuntimeError("word " * 100))) <= 160
