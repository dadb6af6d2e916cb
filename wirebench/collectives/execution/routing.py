"""A tensor for each rank: one round in which every rank sends to every other; no plan takes part in it."""

from collections.abc import Generator, Sequence
from typing import Any

from torch import Tensor

from wirebench.comm.base import Handle
from wirebench.comm.metered import Metered


def run_route(parts: Sequence[Tensor], communicator: Metered) -> Generator[Handle, Any, list[Tensor]]:
    """`parts[r]` goes to rank r; returns what came from every rank, in rank order. Lengths travel in front."""
    rank, size = communicator.rank, communicator.size
    assert len(parts) == size, f"{len(parts)} parts for {size} ranks"
    # Each rank begins with its neighbour, so that no rank is everybody's first.
    sends = [((rank + turn) % size, parts[(rank + turn) % size].contiguous()) for turn in range(1, size)]
    sources = [(rank - turn) % size for turn in range(1, size)]
    receives = [(source, None) for source in sources]
    received = yield communicator.exchange(sends, receives, parts[rank].dtype, True, parts[rank].device)
    answer = dict(zip(sources, received, strict=True))
    return [parts[rank] if source == rank else answer[source] for source in range(size)]
