"""The other processes of a job: who they are, whether they live, and what they agree on.

Each process introduces itself once. When a call fails, the survivors can then say which rank is gone instead of
repeating the network's error.
"""

import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from wirebench.comm.base import Communicator
from wirebench.errors import UserError

GRACE_SECONDS = 3.0


@dataclass(frozen=True)
class Peer:
    """A rank's process: host name and process number."""

    rank: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {self.host})"


def gather_bytes(communicator: Communicator, content: bytes) -> list[bytes]:
    """Every rank's bytes, in rank order."""
    mine = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return [part.numpy().tobytes() for part in communicator.all_gather(mine).wait()]


def introduce(communicator: Communicator) -> list[Peer]:
    """All processes of the job, in rank order."""
    mine = json.dumps([os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname(), os.getpid()]).encode()
    return [Peer(rank, *json.loads(text)) for rank, text in enumerate(gather_bytes(communicator, mine))]


def agree_on(communicator: Communicator, what: str, mine: dict[str, Any]) -> None:
    """Raise UserError on every rank, naming rank and key, unless all ranks bring the same flat dictionary."""
    texts = gather_bytes(communicator, json.dumps(mine, sort_keys=True).encode())
    first = json.loads(texts[0])
    for rank, text in enumerate(texts):
        other = json.loads(text)
        for key in sorted(first.keys() | other.keys()):
            if first.get(key) != other.get(key):
                raise UserError(
                    f"{what}: {key} is {first.get(key)!r} on rank 0 but {other.get(key)!r} on rank {rank}; "
                    "all ranks need the same"
                )


def missing(peers: list[Peer], me: int, store: dist.Store | None) -> list[Peer]:
    """The peers that are gone, as far as this process can tell.

    On this host the process table tells. From other hosts a living rank, which meets the same failure, signs in at the
    store within GRACE_SECONDS.
    """
    here = next(p for p in peers if p.rank == me).host
    gone = [p for p in peers if p.host == here and not _alive(p.pid)]
    elsewhere = [p for p in peers if p.host != here]
    if gone or not elsewhere or store is None:
        return gone
    return _not_signed_in(elsewhere, me, store)


def _not_signed_in(peers: list[Peer], me: int, store: dist.Store) -> list[Peer]:
    deadline = time.monotonic() + GRACE_SECONDS
    try:
        store.set(f"survivor/{me}", "1")
        while True:
            silent = [p for p in peers if not store.check([f"survivor/{p.rank}"])]
            if not silent or time.monotonic() > deadline:
                return silent
            time.sleep(0.05)
    except RuntimeError:
        # The store lives in rank 0's process: without it, rank 0 is the one that is gone.
        return [p for p in peers if p.rank == 0]


def _alive(pid: int) -> bool:
    """Whether a process of this host runs; a zombie, which its launcher has not buried yet, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
