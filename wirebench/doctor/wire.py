"""A connection between two hosts, timed: messages of several sizes, then bytes per second one way.

Who connects sends a header with each message's size; who listens answers a message with one byte, when all of it is
there. After the size 0 follows a stream, which is only counted: the listener says at its end how fast that came, so
that the sender's buffers are not on its way.
"""

import os
import socket
import statistics
import struct
import threading
import time
from typing import NamedTuple

from wirebench.utils import this_machine

PINGS = 50
SIZES = (4_096, 65_536, 1_048_576)
"""Bytes of messages that are timed; their number falls where a link takes long for one."""
MESSAGES, LONG_SECONDS = 9, 0.2
PATIENCE = 10.0
"""Seconds without an answer after which a host counts as unreachable."""
_CHUNK = bytes(2**18)
_RATE, _SIZE = struct.Struct("!d"), struct.Struct("!I")


class LinkTimes(NamedTuple):
    """What a connection did.

    round_trip        seconds for a byte there and back, the median
    bytes_per_second  one way, over the last four fifths of the time: a connection starts slowly
    by_size           (bytes, seconds) of a message one way, the median: until all of it has arrived, start-up included
    segment           bytes of TCP's largest segment, which follows from the smallest MTU on the way; 0: not known
    source            the address from which the connection was made
    waited            share of the time in which the sender was ready and had no core: other programs had them
    """

    round_trip: float
    bytes_per_second: float
    by_size: tuple[tuple[int, float], ...] = ()
    segment: int = 0
    source: str = ""
    waited: float = 0.0

    @property
    def start_up(self) -> float:
        """Seconds that a message takes one way, whatever its size (alpha of the cost model)."""
        return self.round_trip / 2

    def better(self, other: "LinkTimes") -> "LinkTimes":
        """The faster one of two measurements of a way: what disturbs one makes it slower, never faster."""
        faster = max(self, other, key=lambda each: each.bytes_per_second)
        return faster._replace(round_trip=min(self.round_trip, other.round_trip))


def listen(port: int) -> int:
    """Take one connection at `port` (0: any free one), by IPv4 or IPv6, in a thread of its own; returns the port."""
    try:
        server = _server(port)
    except OSError as error:  # its words repeat the address
        raise OSError(error.errno, os.strerror(error.errno or 0)) from error
    server.settimeout(6 * PATIENCE)
    threading.Thread(target=_serve, args=(server,), daemon=True).start()
    return int(server.getsockname()[1])


def _server(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


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
    room = bytearray(2**18)
    while size := _SIZE.unpack(_exactly(connection, _SIZE.size))[0]:
        while size > 0:
            got = connection.recv_into(room, min(size, len(room)))
            if not got:
                return
            size -= got
        connection.sendall(b"!")
    connection.sendall(_RATE.pack(_rate(connection)))


def _exactly(connection: socket.socket, size: int) -> bytes:
    told = connection.recv(size, socket.MSG_WAITALL)
    if len(told) < size:
        raise ConnectionResetError("the other host closed the connection")
    return told


def _rate(connection: socket.socket) -> float:
    """Bytes per second of what comes until the sender is done; 0 where all of it comes at once."""
    room = bytearray(2**18)
    count = connection.recv_into(room)
    seen = [(time.perf_counter(), count)]
    while got := connection.recv_into(room):
        count += got
        seen.append((time.perf_counter(), count))
    (begin, first), (end, total) = seen[0], seen[-1]
    steady, before = next((when, sum_) for when, sum_ in seen if when >= begin + (end - begin) / 5)
    if steady == end:  # all but the last came in the first fifth
        steady, before = begin, first
    return (total - before) / (end - steady) if end > steady else 0.0


def measure(address: str, port: int, seconds: float) -> LinkTimes:
    """Time the way to a host that listens; OSError where it is not reached.

    The rate is 0 where single bytes come through and longer messages do not, as where a switch drops long packets.
    """
    with socket.create_connection((address, port), timeout=PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trip = statistics.median(_sent(connection, 1) for _ in range(PINGS))
        source = connection.getsockname()[0].removeprefix("::ffff:")
        by_size: list[tuple[int, float]] = []
        try:
            if seconds >= 2 * LONG_SECONDS:
                by_size += _by_size(connection, trip)
            connection.sendall(_SIZE.pack(0))
            begin, before, sent = time.perf_counter(), _waiting(), 0
            while not sent or time.perf_counter() < begin + seconds:
                connection.sendall(_CHUNK)
                sent += len(_CHUNK)
            waited = (_waiting() - before) / (time.perf_counter() - begin)
            segment = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
            connection.shutdown(socket.SHUT_WR)
            rate = _RATE.unpack(_exactly(connection, _RATE.size))[0] or sent / (time.perf_counter() - begin)
        except (TimeoutError, ConnectionError):  # whichever end loses patience first
            return LinkTimes(trip, 0.0, source=source)
        return LinkTimes(trip, rate, tuple(by_size), segment, source, min(max(waited, 0.0), 1.0))


def _waiting() -> float:
    """Seconds in which this thread, which sends, was ready and had no core; 0 where the kernel counts none."""
    return this_machine.waited_for_a_core(threading.get_native_id()) or 0.0


def _by_size(connection: socket.socket, trip: float) -> list[tuple[int, float]]:
    """(bytes, seconds one way) of SIZES, up to the first that takes long."""
    found: list[tuple[int, float]] = []
    for size in SIZES:
        took = [_sent(connection, size)]
        while len(took) < MESSAGES and sum(took) < LONG_SECONDS:
            took.append(_sent(connection, size))
        found.append((size, max(trip / 2, statistics.median(took) - trip / 2)))
        if took[0] > LONG_SECONDS:
            break
    return found


def _sent(connection: socket.socket, size: int) -> float:
    """Seconds until a message of `size` bytes is answered."""
    content = bytes(size)
    begin = time.perf_counter()
    connection.sendall(_SIZE.pack(size) + content)
    _exactly(connection, 1)
    return time.perf_counter() - begin
