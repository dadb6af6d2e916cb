"""The key-value store in which the ranks of a job meet: where it listens, and what its keys are called.

It is rank 0's; where torchrun's agent has one, rank 0 says there where its own is. It listens at one address, the one
by which the other ranks come: of a job on one host nobody reaches it from outside. Its keys begin with the job's own
word, so that a rank of another job that comes to its port by mistake reads and overwrites nothing. That is no password:
PyTorch's store lists its keys to whoever asks, and lets them be changed. Who must not do that must not reach the port
(docs/running.md).
"""

import errno
import ipaddress
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from wirebench.comm.connections import connections_to, end_silence_of, end_wait_of
from wirebench.utils import this_machine

_NAMES = {"torchrun": "TORCHELASTIC_RUN_ID", "srun": "SLURM_JOB_ID"}
"""The variable in which a launcher names the job to all ranks; torchrun's is random, unless --rdzv-id is given."""
WHERE = "store"
"""The key of the agents' store under which rank 0 says where its own is."""


class Place(NamedTuple):
    """Where a store is, and what its keys begin with."""

    host: str
    port: int
    word: str


def listen(host: str, port: int = 0) -> tuple[Place, socket.socket]:
    """A place of rank 0's with a new word, and the socket that listens there; port 0: any free one.

    The socket listens from now on, so that no other process can take the port. OSError where `host` is no address of
    this machine, or the port is taken.
    """
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    server = socket.create_server(address, family=family, backlog=socket.SOMAXCONN)
    return Place(host, int(server.getsockname()[1]), secrets.token_hex(16)), server


def listen_for(place: Place, one_host: bool) -> socket.socket:
    """The socket of a place that the launcher names to all ranks, rank 0's among them.

    one_host  all ranks are on this host. Else its name may lead to the loopback interface here, and elsewhere to an
              address that only the others see, or that is translated on its way: then it listens on all interfaces
    """
    try:
        server = listen(place.host, place.port)[1]
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
    else:
        if one_host or not ipaddress.ip_address(server.getsockname()[0]).is_loopback:
            return server
        server.close()
    return listen("0.0.0.0", place.port)[1]


def own_address(one_host: bool) -> str:
    """An address at which the other ranks, which may all be on this host, reach this process."""
    if one_host:
        return "127.0.0.1"
    interface = os.environ.get("HOROVOD_GLOO_IFACE") or os.environ.get("GLOO_SOCKET_IFNAME", "")
    own = this_machine.addresses().get(interface)
    return own or this_machine.address_of(os.environ.get("HOROVOD_HOSTNAME") or this_machine.hostname())


def word_of_job(launcher: str, environment: Mapping[str, str] = os.environ) -> str:
    """The job's name by its launcher, where no rank can tell the others a word before they meet."""
    return environment.get(_NAMES.get(launcher, ""), "")


def keep(place: Place, server: socket.socket, seconds: float) -> dist.Store:
    """Rank 0's store, which takes the socket over; `seconds`: how long its operations wait."""
    store = dist.TCPStore(
        place.host, place.port, is_master=True, timeout=timedelta(seconds=seconds), wait_for_workers=False,
        master_listen_fd=server.detach(),
    )  # fmt: skip
    return dist.PrefixStore(_prefix(place), store)


def join(place: Place, seconds: float) -> dist.Store:
    """A store that another process keeps."""
    timeout = timedelta(seconds=seconds)
    store = dist.TCPStore(place.host, place.port, is_master=False, timeout=timeout, wait_for_workers=False)
    # Its own timeout does not count while it waits for an answer: a key it waits for itself, without reading.
    for connection in connections_to(store.port):
        end_silence_of(connection, seconds)
        end_wait_of(connection, seconds)
    return dist.PrefixStore(_prefix(place), store)


def by_rank_0(agents: dist.Store, rank: int, address: str, one_host: bool, seconds: float) -> dist.Store:
    """Rank 0's own store at its `address`, of which the others hear through the agents', which ends with torchrun.

    Every rank calls it.
    """
    if rank == 0:
        server = listen_for(Place(address, 0, ""), one_host)
        place = Place(address, int(server.getsockname()[1]), secrets.token_hex(16))
        agents.set(WHERE, json.dumps(place))
        return keep(place, server, seconds)
    return join(Place(*json.loads(agents.get(WHERE))), seconds)


def _prefix(place: Place) -> str:
    return f"wirebench-{place.word}" if place.word else "wirebench"


def within(seconds: float, call: Callable[[], Any]) -> tuple[bool, Any]:
    """Whether a call of the store's ends without a RuntimeError within so many seconds, and what it returns.

    The store's own timeout does not count while it waits for an answer: where the host that keeps it is cut off, or its
    process is stopped, that takes as long as the job's timeout (store.join), which is too long here.
    """
    answers: list[Any] = []

    def ask() -> None:
        with suppress(RuntimeError):
            answers.append(call())

    thread = threading.Thread(target=ask, name="wirebench-book", daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(answers), answers[0] if answers else None
