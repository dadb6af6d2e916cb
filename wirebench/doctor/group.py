"""Time an all-reduce of a training's own back end between all hosts, a rank on each, and messages of two neighbours."""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from wirebench.doctor.sums import RankTimes
from wirebench.utils import this_machine

PATIENCE = timedelta(seconds=30)
REPEATS = 3
"""All-reduces and messages that are timed, after one that is not; the fastest counts, which nothing disturbed."""


class Place(NamedTuple):
    """Where the ranks meet, rank 0's address and a free port there, and which rank this one is."""

    address: str
    port: int
    rank: int
    size: int


def measure(backend: str, place: Place, num_bytes: int, variables: Mapping[str, str]) -> RankTimes:
    """Join the other ranks, and time messages and an all-reduce of `num_bytes`, which fp32 numbers fill.

    variables  of NCCL and Gloo, which a launcher would pass on to a rank here
    Raises OSError where the ranks do not meet, or one of them is lost.
    """
    os.environ.update(variables)
    where = f"[{place.address}]" if ":" in place.address else place.address
    try:
        dist.init_process_group(
            backend, init_method=f"tcp://{where}:{place.port}", rank=place.rank, world_size=place.size,
            timeout=PATIENCE,
        )  # fmt: skip
        try:
            return _measure(torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu"), place, num_bytes)
        finally:
            dist.destroy_process_group()
    except (RuntimeError, ValueError) as error:
        raise OSError(f"{backend}: {str(error).strip().splitlines()[0]}") from error


def _measure(device: torch.device, place: Place, num_bytes: int) -> RankTimes:
    message = torch.ones(max(place.size, num_bytes // 4), device=device)
    dist.all_reduce(message)  # connects all pairs, and NCCL's ring
    part = message[: message.numel() // place.size].clone()  # as long as a ring's messages
    trips: list[float] = []
    lasts: list[float] = []
    for sender in range(place.size):
        for receiver in dict.fromkeys(((sender + 1) % place.size, (sender - 1) % place.size)):
            for content, found in ((part[:1].clone(), trips), (part, lasts)):
                took = [_message(sender, receiver, place.rank, content) for _ in range(REPEATS + 1)][1:]
                if place.rank == sender:
                    found.append(min(took))
    # A number's trip may have been disturbed more than the long message's. Half of that one is its bytes' at least.
    beyond = max(max(lasts) - statistics.median(trips), max(lasts) / 2)
    seconds, busy = _timed(lambda: dist.all_reduce(message), device)
    other = torch.ones_like(part)
    add, _ = _timed(lambda: other.add_(part), device)
    return RankTimes(statistics.median(trips) / 2, part.nbytes / beyond, add / part.nbytes, seconds, busy)


def _message(sender: int, receiver: int, rank: int, content: Tensor) -> float:
    """Seconds until the sender has an answer of one number from the receiver; 0 on any other rank."""
    if rank not in (sender, receiver):
        return 0.0
    answer = content[:1].clone()
    begin = time.perf_counter()
    if rank == sender:
        dist.send(content, receiver)
        dist.recv(answer, receiver)
    else:
        dist.recv(content, sender)
        dist.send(answer, sender)
    _await(content.device)
    return time.perf_counter() - begin


def _timed(call: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Seconds of a call, and in a second of it those in which this process had a core, or was ready and had none."""
    took, busy = [], []
    for repeat in range(REPEATS + 1):
        _await(device)
        begin, begin_busy = time.perf_counter(), _wanted()
        call()
        _await(device)
        if repeat:
            took.append(time.perf_counter() - begin)
            busy.append(_wanted() - begin_busy)
    return min(took), max(sum(busy), 0.0) / max(sum(took), 1e-9)


def _wanted() -> float:
    """Seconds of the processor that this process has had, or has waited for."""
    return time.process_time() + (this_machine.waited_for_a_core() or 0.0)


def _await(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
