"""Bring every rank's bytes to rank 0, or rank 0's to every rank: for checkpoints, as only rank 0 uses the disk."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from wirebench.comm.engine import Engine


def collect(engine: Engine, mine: Sequence[bytes]) -> Iterator[bytes]:
    """On rank 0's process: all ranks' bytes in rank order, one at a time in memory. Elsewhere: nothing.

    mine  the bytes of each rank of this process
    Every process must run the iterator to its end.
    """
    if not engine.distributed:
        yield from mine
        return
    (communicator,) = engine.communicators
    if communicator.rank == 0:
        yield mine[0]
    for rank in range(1, communicator.size):
        sends = [(0, _tensor(mine[0]))] if communicator.rank == rank else []
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


def _tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()
