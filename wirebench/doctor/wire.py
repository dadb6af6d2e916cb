"""A connection between two hosts, timed: bytes per second one way, and seconds there and back.

The one who listens sends each of the first PINGS bytes back at once. What follows it only counts, and says at the end
how fast that came: the sender's buffers are not on its way.
"""

import os
import socket
import statistics
import struct
import threading
import time
from typing import NamedTuple

PINGS = 50
PATIENCE = 10.0
"""Seconds without an answer after which a host counts as unreachable."""
_CHUNK = bytes(2**18)
_RATE = struct.Struct("!d")


class LinkTimes(NamedTuple):
    """What a connection did.

    round_trip        seconds for a byte there and back, the median
    bytes_per_second  one way, over the last four fifths of the time: a connection starts slowly
    """

    round_trip: float
    bytes_per_second: float


def listen(port: int) -> int:
    """Take one connection at `port` (0: any free one) in a thread of its own; returns the port."""
    try:
        server = socket.create_server(("", port))
    except OSError as error:  # its words repeat the address
        raise OSError(error.errno, os.strerror(error.errno or 0)) from error
    server.settimeout(6 * PATIENCE)
    threading.Thread(target=_serve, args=(server,), daemon=True).start()
    return int(server.getsockname()[1])


def _serve(server: socket.socket) -> None:
    with server:
        try:
            connection, _ = server.accept()
            with connection:
                _answer(connection)
        except OSError:  # nobody came, or who came has gone: it tells
            return


def _answer(connection: socket.socket) -> None:
    connection.settimeout(PATIENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(PINGS):
        connection.sendall(connection.recv(1))
    connection.sendall(_RATE.pack(_rate(connection)))


def _rate(connection: socket.socket) -> float:
    """Bytes per second of what comes until the sender is done."""
    room = bytearray(2**18)
    count = connection.recv_into(room)
    seen = [(time.perf_counter(), count)]
    while got := connection.recv_into(room):
        count += got
        seen.append((time.perf_counter(), count))
    (begin, _), (end, total) = seen[0], seen[-1]
    steady, before = next((when, sum_) for when, sum_ in seen if when >= begin + (end - begin) / 5)
    return (total - before) / (end - steady) if end > steady else 0.0


def measure(address: str, port: int, seconds: float) -> LinkTimes:
    """Time the way to a host that listens; OSError where it is not reached."""
    with socket.create_connection((address, port), timeout=PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = [_ping(connection) for _ in range(PINGS)]
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            connection.sendall(_CHUNK)
        connection.shutdown(socket.SHUT_WR)
        told = connection.recv(_RATE.size, socket.MSG_WAITALL)
        if len(told) < _RATE.size:
            raise ConnectionResetError("the other host closed the connection")
        return LinkTimes(statistics.median(trips), *_RATE.unpack(told))


def _ping(connection: socket.socket) -> float:
    begin = time.perf_counter()
    connection.sendall(b"?")
    if not connection.recv(1):
        raise ConnectionResetError("the other host closed the connection")
    return time.perf_counter() - begin
