"""The store in which ranks meet listens where it has to, and two jobs in one are kept apart."""

import errno
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from wirebench.comm import connections, engine, store
from wirebench.comm.launch import Launch
from wirebench.comm.store import StorePlace
from wirebench.config.sections import EngineConfig
from wirebench.errors import PeerLost, UserError

SECONDS = 30.0


def reachable(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=SECONDS).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_job_on_one_host_is_not_reached_by_another_address_and_notices_in_time_that_its_store_is_cut_off() -> None:
    place, server = store.listen("127.0.0.1")
    kept = store.keep(place, server, SECONDS)
    joined = store.join(place, SECONDS)
    joined.set("a", "b")
    assert kept.get("a") == b"b"
    timeouts = [
        connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        for connection in connections.connections_to(place.port)
    ]
    assert 1000 * SECONDS in timeouts
    assert not reachable("127.0.0.2", place.port), "it listens on other interfaces, too"


def test_nobody_else_can_take_the_port_before_it_is_used() -> None:
    place, server = store.listen("127.0.0.1")
    with server, pytest.raises(OSError) as taken:
        store.listen("127.0.0.1", place.port)
    assert taken.value.errno == errno.EADDRINUSE


def test_who_comes_by_mistake_meets_nobodys_keys() -> None:
    place, server = store.listen("127.0.0.1")
    other, spare = store.listen("127.0.0.1")
    spare.close()
    assert place.word != other.word and len(place.word) == 32
    kept = store.keep(place, server, SECONDS)
    kept.set("a", "b")
    stranger = dist.TCPStore("127.0.0.1", place.port, wait_for_workers=False, timeout=timedelta(seconds=SECONDS))
    assert not stranger.check(["a"]) and not stranger.check(["wirebench/a"])
    assert not store.join(StorePlace("127.0.0.1", place.port, other.word), SECONDS).check(["a"])


@pytest.mark.parametrize(
    ("host", "one_host", "elsewhere"),
    [("127.0.0.1", True, False), ("127.0.0.1", False, True), ("192.0.2.1", False, True), ("localhost", True, False)],
)
def test_a_place_that_the_launcher_names(host: str, one_host: bool, elsewhere: bool) -> None:
    """192.0.2.1 is nobody's address (RFC 5737), as that of a service is that leads here."""
    with store.listen("127.0.0.1")[1] as probe:
        port = probe.getsockname()[1]
    with store.listen_for(StorePlace(host, port, ""), one_host):
        assert reachable(host if one_host else "127.0.0.1", port)  # localhost may be ::1
        assert reachable("127.0.0.2", port) == elsewhere


def test_the_word_is_the_launchers_name_of_the_job() -> None:
    environment = {"TORCHELASTIC_RUN_ID": "a", "SLURM_JOB_ID": "7"}
    assert [store.word_of_job(each, environment) for each in ("torchrun", "srun", "mpirun")] == ["a", "7", ""]
    assert store.word_of_job("srun", {}) == ""


def test_ranks_meet_at_rank_0s_own_store_which_outlives_the_agents() -> None:
    agents = dist.HashStore()
    kept = store.by_rank_0(agents, 0, "127.0.0.1", True, SECONDS)
    joined = store.by_rank_0(agents, 1, "127.0.0.1", True, SECONDS)
    del agents
    kept.set("a", "b")
    assert joined.get("a") == b"b"


HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
def strange(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a program that is no store: it says `request.param` and holds the connection, or (None) closes it."""
    held: list[socket.socket] = []

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                if request.param is None:
                    connection.close()
                    continue
                connection.sendall(request.param)
                held.append(connection)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    for connection in held:
        connection.close()
    for waiting in threading.enumerate():
        if waiting.name == "wirebench-join":
            waiting.join(10)


@pytest.mark.parametrize("strange", [b"", HTTP, None], indirect=True, ids=["silent", "http", "closes"])
def test_a_port_of_another_program_is_named_in_time(strange: int) -> None:
    began = time.monotonic()
    with pytest.raises(PeerLost, match=rf"at 127.0.0.1:{strange} within 0.2 s: what listens there is no store"):
        store.join(StorePlace("127.0.0.1", strange, ""), 0.2)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("127.0.0.1", r"at 127.0.0.1:\d+ within 0.2 s: nothing listens there"),
        ("::1", r"at \[::1\]:\d+ within 0.2 s: (nothing listens there|no connection)"),
        ("no such host", r"at no such host:\d+ within 0.2 s: the name does not resolve"),
    ],
)
def test_a_store_that_is_not_there_is_named_with_the_cause(host: str, why: str) -> None:
    with store.listen("127.0.0.1")[1] as probe:
        port = probe.getsockname()[1]
    with pytest.raises(PeerLost, match=why):
        store.join(StorePlace(host, port, ""), 0.2)


@pytest.mark.parametrize("strange", [b""], indirect=True)
def test_an_interrupt_ends_the_wait_for_a_silent_port(strange: int) -> None:
    class Asked(Exception):
        pass

    def stop(number: int, frame: object) -> None:
        raise Asked

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        main = threading.main_thread().ident
        assert main is not None
        with pytest.raises(Asked):
            threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGUSR1)).start()
            store.join(StorePlace("127.0.0.1", strange, ""), 3.0)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_rank_0_names_the_variable_where_it_cannot_listen() -> None:
    with store.listen("127.0.0.1")[1] as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"MASTER_PORT: .*127.0.0.1:{port}: Address already in use"):
            store.listen_for(StorePlace("127.0.0.1", port, ""), one_host=True)
    with pytest.raises(UserError, match="MASTER_ADDR: 'no such host' does not resolve"):
        store.listen_for(StorePlace("no such host", port, ""), one_host=False)


def test_ranks_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("wait timeout after 5000ms, keys: /x")

    monkeypatch.setattr(dist, "init_process_group", fail)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    launch, place = Launch("", ("torch",), 0, 3, 0, 3, sharing=3), StorePlace("127.0.0.1", 1, "word")
    section = EngineConfig(timeout_seconds=5.0)
    said = r"^ranks 1, 2 of 3 did not come within 5 s .* at 127\.0\.0\.1:1$"
    with pytest.raises(PeerLost, match=said):
        engine._join(section, launch, torch.device("cpu"), dist.HashStore(), place)
