"""Bring every rank's bytes to rank 0, or rank 0's to every rank: for checkpoints, as only rank 0 uses the disk."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from wirebench.comm.engine import Engine


def collect(engine: Engine, mine: bytes) -> Iterator[bytes]:
    """On rank 0's process: the bytes of the ranks of other processes, in rank order. Elsewhere: nothing.

    mine  this process's rank's; rank 0's stay where they are
    Every process must run the iterator to its end.
    """
    if not engine.distributed:
        return
    (communicator,) = engine.communicators
    for rank in range(1, communicator.size):
        sends = [(0, _tensor(mine))] if communicator.rank == rank else []
        receives = [(rank, None)] if communicator.rank == 0 else []
        received = communicator.exchange(sends, receives, torch.uint8, True).wait()
        yield from (_bytes(tensor) for tensor in received)


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
