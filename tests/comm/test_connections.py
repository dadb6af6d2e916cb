"""What a process finds out about its connections: whose are closed, and how long they may be silent."""

import socket
from collections.abc import Iterator

import pytest

from wirebench.comm import connections
from wirebench.comm.peers import Peer, any_dead, closed

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        mine = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
        with mine, theirs:
            yield mine, theirs


def test_both_ends_of_a_connection_are_known(pair: Pair) -> None:
    mine, theirs = (each.getsockname() for each in pair)
    assert {mine, theirs} <= {*connections.by_address()["127.0.0.1"]} & connections.other_ends()


def test_a_process_that_has_ended_has_closed_what_it_had(pair: Pair) -> None:
    _, theirs = pair
    peers = [Peer(0, "h", 1), Peer(1, "there", 2, frozenset({theirs.getsockname()})), Peer(2, "elsewhere", 3)]
    assert closed(peers, 0) == []
    theirs.close()
    assert closed(peers, 0) == [peers[1]] and closed(peers, 1) == []
    assert any_dead([Peer(0, "h", 1), *peers[1:]], 0)


def test_silence_ends_the_connections_that_are_named(pair: Pair) -> None:
    mine, theirs = pair
    connections.end_silence({theirs.getsockname()}, 2.0)
    assert mine.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2000
    assert theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
