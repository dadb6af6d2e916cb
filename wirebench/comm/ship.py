"""Bring what every rank has to rank 0, or rank 0's to every rank: for checkpoints, as only rank 0 uses the disk."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wirebench.comm.engine import Engine
from wirebench.utils.tensor_tree import flatten, unflatten


def collect(engine: Engine, mine: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """On rank 0's process: the trees of tensors of the ranks of other processes, in rank order. Elsewhere: nothing.

    mine  this process's rank's; rank 0's stays where it is
    Every process must run the iterator to its end.
    """
    if not engine.distributed:
        return
    (communicator,) = engine.communicators
    head, content = flatten(mine) if communicator.rank else (b"", torch.empty(0, dtype=torch.uint8))
    messages = (_tensor(head), content)
    for rank in range(1, communicator.size):
        receives = [(rank, None)] if communicator.rank == 0 else []
        received: list[Tensor] = []
        for message in messages:
            sends = [(0, message)] if communicator.rank == rank else []
            received += communicator.exchange(sends, receives, torch.uint8, True).wait()
        if received:
            yield unflatten(_bytes(received[0]), received[1].cpu())


def distribute(engine: Engine, content: Sequence[bytes]) -> list[bytes]:
    """For each rank of this process, the bytes that rank 0 has for it.

    content  one entry per rank of the world, in rank order; only rank 0's process needs it
    """
    if not engine.distributed:
        return list(content)
    (communicator,) = engine.communicators
    mine = content[0] if communicator.rank == 0 else b""
    for rank in range(1, communicator.size):
        sends = [(rank, _tensor(content[rank]))] if communicator.rank == 0 else []
        receives = [(0, None)] if communicator.rank == rank else []
        for tensor in communicator.exchange(sends, receives, torch.uint8, True).wait():
            mine = _bytes(tensor)
    return [mine]


def bring(engine: Engine, source: int, read: Callable[[], bytes]) -> bytes | None:
    """On rank 0, what `read` gives on rank `source`; None elsewhere. Every process calls it."""
    (communicator,) = engine.communicators
    me = communicator.rank
    if source == 0:
        return read() if me == 0 else None
    sends = [(0, _tensor(read()))] if me == source else []
    receives = [(source, None)] if me == 0 else []
    received = communicator.exchange(sends, receives, torch.uint8, True).wait()
    return _bytes(received[0]) if me == 0 else None


def _tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()
