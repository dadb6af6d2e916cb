"""How jobs end, on a clock that the tests turn."""

import select
import signal
import subprocess
import sys
from queue import Empty, Queue
from typing import Any, cast

import pytest

from tests.cli.verbs import ROOT
from wirebench.cluster import supervisor
from wirebench.cluster.supervisor import Abandoned, Event, RankEnded, StopRequest, conduct

HOSTS = {0: "h0", 1: "h1", 2: "h1"}


class Rank:
    """Stands for a process that dies of some signals."""

    def __init__(self, rank: int, world: "World", dies_of: tuple[int, ...]) -> None:
        self.rank, self.world, self.dies_of = rank, world, dies_of

    def send_signal(self, number: int) -> None:
        self.world.sent.append((self.world.now, self.rank, signal.Signals(number)))
        if number in self.dies_of:
            self.world.put(RankEnded(self.rank, 128 + number))


class World:
    """Events at given times; time passes only while somebody waits."""

    def __init__(self, script: list[tuple[float, Event]], dies_of: tuple[int, ...]) -> None:
        self.now = 0.0
        self.script = sorted(script, key=lambda item: item[0])
        self.sent: list[tuple[float, int, signal.Signals]] = []
        self.ranks = {rank: Rank(rank, self, dies_of) for rank in HOSTS}

    def put(self, event: Event) -> None:
        self.script.insert(0, (self.now, event))

    def get(self, timeout: float | None = None) -> Event:
        end = float("inf") if timeout is None else self.now + timeout
        if not self.script or self.script[0][0] > end:
            assert timeout is not None, "waits for ever"
            self.now = end
            raise Empty
        self.now, event = max(self.now, self.script[0][0]), self.script.pop(0)[1]
        return event


def play(monkeypatch: pytest.MonkeyPatch, script: list[tuple[float, Event]], *dies_of: int) -> tuple[int, World]:
    world = World(script, dies_of)
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: world.now)
    code = conduct(cast(Any, world.ranks), cast("Queue[Event]", world), HOSTS)
    return code, world


def test_all_is_well(monkeypatch: pytest.MonkeyPatch):
    code, world = play(monkeypatch, [(1.0, RankEnded(1, 0)), (2.0, RankEnded(0, 0)), (500.0, RankEnded(2, 0))])
    assert (code, world.sent) == (0, [])


def test_the_first_failure_counts(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    script: list[tuple[float, Event]] = [(1.0, RankEnded(1, 7)), (2.0, RankEnded(0, 1)), (3.0, RankEnded(2, 1))]
    code, world = play(monkeypatch, script)
    assert (code, world.sent) == (7, [])
    assert capfd.readouterr().err == "wirebench cluster: rank 1 on h1 ended with exit code 7\n"


def test_the_others_get_time_for_last_words(monkeypatch: pytest.MonkeyPatch):
    code, world = play(monkeypatch, [(1.0, RankEnded(1, 9))], signal.SIGKILL)
    assert code == 9
    assert [(at, sent) for at, rank, sent in world.sent if rank == 0] == [
        (16.0, signal.SIGTERM),
        (21.0, signal.SIGKILL),
    ]
    assert not [rank for _, rank, _ in world.sent if rank == 1]


def test_after_a_mistake_of_the_users_there_is_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch):
    code, world = play(monkeypatch, [(1.0, RankEnded(0, 2))], signal.SIGTERM)
    assert (code, world.now) == (2, 1.0)


def test_a_wish_to_stop_is_passed_on(monkeypatch: pytest.MonkeyPatch):
    script: list[tuple[float, Event]] = [
        (1.0, StopRequest(signal.SIGINT)),
        *((9.0, RankEnded(rank, 0)) for rank in HOSTS),
    ]
    code, world = play(monkeypatch, script)
    assert code == 0
    assert world.sent == [(1.0, rank, signal.SIGINT) for rank in HOSTS]


def test_who_does_not_stop_is_killed(monkeypatch: pytest.MonkeyPatch):
    code, world = play(monkeypatch, [(1.0, StopRequest(signal.SIGTERM))], signal.SIGKILL)
    assert (code, world.now) == (137, 61.0)
    code, world = play(
        monkeypatch, [(1.0, StopRequest(signal.SIGINT)), (4.0, StopRequest(signal.SIGINT))], signal.SIGKILL
    )
    assert (code, world.now) == (137, 9.0)


def test_nothing_lives_without_its_command(monkeypatch: pytest.MonkeyPatch):
    code, world = play(monkeypatch, [(1.0, Abandoned())])
    assert code == 137
    assert world.sent == [(1.0, rank, signal.SIGKILL) for rank in HOSTS]


PARENT = """
import subprocess, sys, time
from wirebench.cluster.signals import ends_with_parent
child = subprocess.Popen(["sleep", "600"], preexec_fn=ends_with_parent())
print("begun", flush=True)
time.sleep(600)
"""


def test_what_it_started_ends_with_a_process_that_is_killed() -> None:
    """The child holds the pipe, whose end comes when both have ended."""
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=ROOT, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == b"begun\n"
        parent.kill()
        assert select.select([parent.stdout], [], [], 60)[0], "the child lives on"
        assert parent.stdout.read() == b""
