"""Routes (all-to-all): one round in which every rank sends a tensor to every other; it follows no plan."""

from collections.abc import Generator, Sequence
from typing import Any

from torch import Tensor

from wirebench.comm.base import Handle
from wirebench.comm.metered import Metered


def run_route(
    parts: Sequence[Tensor], communicator: Metered, lengths: Sequence[int] | None = None
) -> Generator[Handle, Any, list[Tensor]]:
    """Send `parts[r]` to rank r; returns what came from every rank, in rank order.

    Yields the one handle of the round. Without `lengths`, of what comes from every rank, they travel in front.
    """
    rank, size = communicator.rank, communicator.size
    assert len(parts) == size, f"{len(parts)} parts for {size} ranks"
    assert lengths is None or len(lengths) == size, f"{len(lengths or ())} lengths for {size} ranks"
    # Each rank begins with its right neighbour: if all began with rank 0, that one's link would be the bottleneck.
    sends = [((rank + turn) % size, parts[(rank + turn) % size].contiguous()) for turn in range(1, size)]
    sources = [(rank - turn) % size for turn in range(1, size)]
    receives = [(source, None if lengths is None else lengths[source]) for source in sources]
    own = parts[rank]
    received = yield communicator.exchange(sends, receives, own.dtype, lengths is None, own.device)
    answer = dict(zip(sources, received, strict=True))
    return [own if source == rank else answer[source] for source in range(size)]
