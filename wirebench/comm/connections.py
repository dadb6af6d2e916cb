"""This process's connections to the other ranks: whose are closed, how long one may be silent, and closing them all.

Back ends (Gloo, Horovod, the store) open them and do not list them, so they are found in the kernel's table. Each rank
sends its own ends to the others once. A Peer knows the ends of its connections to this rank.
"""

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psutil
import torch.distributed as dist

End = tuple[str, int]
"""Address and port."""


def by_address() -> dict[str, list[End]]:
    """This process's ends of its connections, by the address of the other end."""
    found: dict[str, list[End]] = {}
    for each in _established():
        found.setdefault(_end(each.raddr)[0], []).append(_end(each.laddr))
    return found


def other_ends() -> set[End]:
    """The other ends of this process's connections."""
    return {_end(each.raddr) for each in _established()}


def connections_to(port: int) -> Iterator[socket.socket]:
    """This process's connections to a port: copies, of which each is closed when the next one is asked for."""
    return _copies(lambda each: each.raddr.port == port)


def end_silence(ends: set[End], seconds: float) -> None:
    """Let the connections to these ends fail when the host there has been silent for `seconds`: it is cut off, or gone.

    A process that only waits does not count as silent: its host answers for it. Without this a back end waits as long
    as TCP tries, a quarter of an hour, or for its own timeout, which also counts the time that other ranks compute.
    """
    for copy in _copies(lambda each: _end(each.raddr) in ends):
        end_silence_of(copy, seconds)


def end_silence_of(connection: socket.socket, seconds: float) -> None:
    """Let `connection` fail when the host at its other end has been silent for `seconds`."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * seconds))
    # Where the question has arrived and the answer has not, there is nothing that TCP would try again.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, round(seconds / 2)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)


def end_wait_of(connection: socket.socket, seconds: float) -> None:
    """Let a read from `connection` fail after `seconds`: the host of a stopped process still answers for it."""
    wait = struct.pack("ll", *divmod(round(1e6 * seconds), 10**6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)


def cut(store: dist.Store) -> None:
    """Close this process's connections to a store that did not answer: a late answer would pass for the next one's."""
    for copy in connections_to(_port(store) or 0):
        with suppress(OSError):
            copy.shutdown(socket.SHUT_RDWR)


def hang_up(store: dist.Store | None) -> None:
    """Close this process's connections, but the one to the store: who waits for it meets the failure now, too.

    Back ends close theirs only when the process ends, which would then look like one more rank that is gone.
    """
    spared = _port(store)
    for copy in _copies(lambda each: spared not in (each.laddr.port, each.raddr.port)):
        with suppress(OSError):
            copy.shutdown(socket.SHUT_RDWR)


def _port(store: dist.Store | None) -> int | None:
    inner = store
    while isinstance(inner, dist.PrefixStore):  # torchrun's store has the job's prefix and the reunion's
        inner = inner.underlying_store
    return inner.port if isinstance(inner, dist.TCPStore) else None


def _established() -> list[Any]:
    known = psutil.Process().net_connections("tcp")
    return [each for each in known if each.status == psutil.CONN_ESTABLISHED and each.raddr]


def _end(address: Any) -> End:
    # One end may call the other's address of IPv4 by its name in IPv6.
    return address.ip.removeprefix("::ffff:"), address.port


def _copies(which: Callable[[Any], bool]) -> Iterator[socket.socket]:
    """Copies, since the descriptors are the back ends'; without those that are closed at this moment."""
    for each in filter(which, _established()):
        with suppress(OSError), socket.socket(fileno=os.dup(each.fd)) as copy:
            yield copy
