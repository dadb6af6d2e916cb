"""The store in which ranks meet listens where it has to, and two jobs in one are kept apart."""

import errno
import socket
from datetime import timedelta

import pytest
import torch.distributed as dist

from wirebench.comm import connections, store
from wirebench.comm.store import Place

SECONDS = 5.0


def reachable(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=SECONDS).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_job_on_one_host_is_not_reached_by_another_address() -> None:
    place, server = store.listen("127.0.0.1")
    kept = store.keep(place, server, SECONDS)
    joined = store.join(place, SECONDS)
    joined.set("a", "b")
    assert kept.get("a") == b"b"
    assert not reachable("127.0.0.2", place.port), "it listens on other interfaces, too"


def test_a_host_of_the_store_that_is_cut_off_is_noticed_in_time() -> None:
    place, server = store.listen("127.0.0.1")
    kept = store.keep(place, server, SECONDS)
    joined = store.join(place, SECONDS)
    joined.set("a", "b")
    timeouts = [
        connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        for connection in connections.connections_to(place.port)
    ]
    assert 1000 * SECONDS in timeouts and kept.get("a") == b"b"


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
    assert not store.join(Place("127.0.0.1", place.port, other.word), SECONDS).check(["a"])


@pytest.mark.parametrize(
    ("host", "one_host", "elsewhere"),
    [("127.0.0.1", True, False), ("127.0.0.1", False, True), ("192.0.2.1", False, True), ("localhost", True, False)],
)
def test_a_place_that_the_launcher_names(host: str, one_host: bool, elsewhere: bool) -> None:
    """192.0.2.1 is nobody's address (RFC 5737), as that of a service is that leads here."""
    with store.listen("127.0.0.1")[1] as probe:
        port = probe.getsockname()[1]
    with store.listen_for(Place(host, port, ""), one_host):
        assert reachable("127.0.0.1", port)
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
