"""The key-value store in which the ranks of a job meet: where it listens, and what its keys are called.

Rank 0 keeps it. If torchrun's agent has a store, rank 0 publishes its own store's address there. It listens at one
address, the one that the other ranks connect to: for a job on one host it cannot be reached from outside. Its keys
begin with a word of the job, so that a rank of another job that connects by mistake reads and overwrites nothing. That
is no password: PyTorch's store lists its keys to every client, and lets clients change them. Only trusted hosts may
reach the port (docs/running.md).
"""

import errno
import ipaddress
import json
import os
import queue
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from wirebench.comm.connections import connections_to, end_silence_of, end_wait_of
from wirebench.errors import PeerLost, UserError
from wirebench.utils import this_machine

_NAMES = {"torchrun": "TORCHELASTIC_RUN_ID", "srun": "SLURM_JOB_ID", "flux": "FLUX_JOB_ID"}
"""The variable in which a launcher names the job to all ranks; torchrun's is random, unless --rdzv-id is given."""
WHERE = "store"
"""The key of the agents' store under which rank 0 publishes its own store's address."""
OFFER, POLL_SECONDS = "wirebench/reunion", 0.01
PROBE_SECONDS = 1.0
"""How long a second connection may take, which finds out why the first one failed."""


class StorePlace(NamedTuple):
    """The address of a store, and the word that its keys begin with."""

    host: str
    port: int
    word: str

    @property
    def address(self) -> str:
        """Host and port in one word; an IPv6 address is in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def listen(host: str, port: int = 0) -> tuple[StorePlace, socket.socket]:
    """A place of rank 0's with a new word, and the socket that listens there; port 0: any free one.

    The socket listens from now on, so that no other process can take the port. OSError where `host` is no address of
    this machine, or the port is taken.
    """
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    server = socket.create_server(address, family=family, backlog=socket.SOMAXCONN)
    return StorePlace(host, int(server.getsockname()[1]), secrets.token_hex(16)), server


def listen_for(place: StorePlace, one_host: bool) -> socket.socket:
    """The socket of a place that the launcher names to all ranks, rank 0's among them.

    one_host  all ranks are on this host. Else its name may lead to the loopback interface here, and elsewhere to an
              address that only the others see, or that is translated on its way: then it listens on all interfaces
    Raises UserError where the name does not resolve, or the port is taken or reserved.
    """
    everywhere = "0.0.0.0"
    try:
        try:
            everywhere = "::" if _is_ipv6(place) else everywhere
            server = listen(place.host, place.port)[1]
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
        else:
            if one_host or not ipaddress.ip_address(server.getsockname()[0]).is_loopback:
                return server
            server.close()
        return listen(everywhere, place.port)[1]
    except socket.gaierror as error:
        raise UserError(f"MASTER_ADDR: {place.host!r} does not resolve on rank 0's host: {error.strerror}") from error
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise UserError(f"MASTER_PORT: rank 0 cannot listen at {place.address}: {reason}") from error


def _is_ipv6(place: StorePlace) -> bool:
    return socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0][0] == socket.AF_INET6


def own_address(one_host: bool) -> str:
    """An address at which the other ranks, which may all be on this host, reach this process."""
    if one_host:
        return "127.0.0.1"
    interface = os.environ.get("HOROVOD_GLOO_IFACE") or os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    own = this_machine.addresses().get(interface)
    return own or this_machine.address_of(os.environ.get("HOROVOD_HOSTNAME") or this_machine.hostname())


def word_of_job(launcher: str, environment: Mapping[str, str] = os.environ) -> str:
    """The job's name by its launcher, for launchers whose ranks cannot agree on a word before they meet."""
    return environment.get(_NAMES.get(launcher, ""), "")


def keep(place: StorePlace, server: socket.socket, seconds: float) -> dist.Store:
    """Rank 0's store, which takes the socket over; `seconds`: how long its operations wait."""
    store = dist.TCPStore(
        place.host, place.port, is_master=True, timeout=timedelta(seconds=seconds), wait_for_workers=False,
        master_listen_fd=server.detach(),
    )  # fmt: skip
    return dist.PrefixStore(_prefix(place), store)


def join(place: StorePlace, seconds: float) -> dist.Store:
    """A store that another process keeps; PeerLost, with address and cause, where none answers within `seconds`."""
    store = _connected(place, seconds)
    # Its own timeout does not count while it waits for an answer: a key it waits for itself, without reading.
    for connection in connections_to(store.port):
        end_silence_of(connection, seconds)
        end_wait_of(connection, seconds)
    return dist.PrefixStore(_prefix(place), store)


def _connected(place: StorePlace, seconds: float) -> dist.TCPStore:
    """Connect in a thread: if a server accepts and never answers, PyTorch waits for ever, deaf to signals."""
    answers: queue.SimpleQueue[dist.TCPStore | Exception] = queue.SimpleQueue()

    def connect() -> None:
        timeout = timedelta(seconds=seconds)
        try:
            answers.put(dist.TCPStore(place.host, place.port, timeout=timeout, wait_for_workers=False))
        except Exception as error:
            answers.put(error)

    waiting = threading.Thread(target=connect, name="wirebench-join", daemon=True)
    waiting.start()
    try:
        answer = answers.get(timeout=seconds + PROBE_SECONDS)
    except BaseException as error:
        for connection in connections_to(place.port):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if not isinstance(error, queue.Empty):
            raise
        # Its time is over, so it ends now; C++ that runs on would abort at the interpreter's end.
        waiting.join(PROBE_SECONDS)
    else:
        if isinstance(answer, dist.TCPStore):
            return answer
    raise PeerLost(f"no store of rank 0 answers at {place.address} within {seconds:g} s: {_cause(place)}")


def _cause(place: StorePlace) -> str:
    """The most likely reason why this process cannot reach the store, found by one more connection."""
    try:
        socket.create_connection((place.host, place.port), timeout=PROBE_SECONDS).close()
    except socket.gaierror as error:
        return f"the name does not resolve on {this_machine.hostname()} ({error.strerror})"
    except ConnectionRefusedError:
        return "nothing listens there; rank 0 has ended, has not begun, or is on another host"
    except OSError as error:
        return f"no connection ({error.strerror or error}); a firewall drops it, or the address is wrong"
    return "what listens there is no store of PyTorch's, or it hangs; choose a free port for all ranks"


def by_rank_0(agents: dist.Store, rank: int, address: str, one_host: bool, seconds: float) -> dist.Store:
    """Rank 0's own store at its `address`, published in the agents' store, which ends with torchrun.

    Every rank calls it.
    """
    if rank == 0:
        server = listen_for(StorePlace(address, 0, ""), one_host)
        place = StorePlace(address, int(server.getsockname()[1]), secrets.token_hex(16))
        agents.set(WHERE, json.dumps(place))
        return keep(place, server, seconds)
    return join(StorePlace(*json.loads(agents.get(WHERE))), seconds)


def _prefix(place: StorePlace) -> str:
    return f"wirebench-{place.word}" if place.word else "wirebench"


def within(seconds: float, call: Callable[[], Any]) -> tuple[bool, Any]:
    """Whether a call of the store ends within `seconds` without a RuntimeError, and its result (None if not).

    The store's own timeout does not count while it waits for an answer. If the store's host is cut off, or its process
    is stopped, the wait lasts as long as the job's timeout (store.join), which is too long here.
    """
    answers: list[Any] = []

    def ask() -> None:
        with suppress(RuntimeError):
            answers.append(call())

    thread = threading.Thread(target=ask, name="wirebench-book", daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(answers), answers[0] if answers else None


def name_of_reunion(store: dist.Store, rank: int, size: int, seconds: float) -> str:
    """A name that the ranks of this start share and no earlier ones had; RuntimeError after `seconds` of waiting.

    The store of torchrun's agents outlives restarts of the ranks; the name marks the keys of this start. torchrun's
    restart count does not serve, since it differs between hosts. So rank 0 names the reunion, and each rank makes sure
    that rank 0 means it, and not a process that had its rank before.
    """
    deadline = time.monotonic() + seconds
    if rank == 0:
        return _invite(store, size, deadline)
    mine = uuid.uuid4().hex
    store.set(f"{OFFER}/guest/{rank}", mine)
    while True:
        # Rank 0 may not have offered anything yet; a wait of the store's own names the key in its error.
        store.wait([OFFER], timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
        offer = json.loads(store.get(OFFER))
        if offer["guests"].get(str(rank)) == mine:
            store.set(f"{offer['name']}/{rank}", "here")
            return str(offer["name"])
        _pause(deadline, "rank 0")


def _invite(store: dist.Store, size: int, deadline: float) -> str:
    name = f"{OFFER}/{uuid.uuid4().hex}"
    guests: dict[str, str] = {}
    while True:
        known = [rank for rank in range(1, size) if store.check([f"{OFFER}/guest/{rank}"])]
        now = {str(rank): store.get(f"{OFFER}/guest/{rank}").decode() for rank in known}
        if now != guests or not guests:
            guests = now
            store.set(OFFER, json.dumps({"name": name, "guests": guests}))
        missing = [rank for rank in range(1, size) if not store.check([f"{name}/{rank}"])]
        if not missing:
            return name
        _pause(deadline, f"rank {missing[0]}")


def _pause(deadline: float, whom: str) -> None:
    if time.monotonic() > deadline:
        raise RuntimeError(f"{whom} did not come")
    time.sleep(POLL_SECONDS)
