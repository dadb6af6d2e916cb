"""Routes (all-to-all): one round in which every rank sends a tensor to every other; it follows no plan."""

from collections.abc import Generator, Sequence
from typing import Any

from torch import Tensor

from wirebench.comm.base import Handle
from wirebench.comm.metered import Metered


def run_route(parts: Sequence[Tensor], communicator: Metered) -> Generator[Handle, Any, list[Tensor]]:
    """Send `parts[r]` to rank r; returns what came from every rank, in rank order.

    Yields the one handle of the round. Lengths travel in front, since only a part's sender knows how long it is.
    """
    rank, size = communicator.rank, communicator.size
    assert len(parts) == size, f"{len(parts)} parts for {size} ranks"
    # Each rank begins with its right neighbour: if all began with rank 0, that one's link would be the bottleneck.
    sends = [((rank + turn) % size, parts[(rank + turn) % size].contiguous()) for turn in range(1, size)]
    sources = [(rank - turn) % size for turn in range(1, size)]
    receives = [(source, None) for source in sources]
    received = yield communicator.exchange(sends, receives, parts[rank].dtype, True, parts[rank].device)
    answer = dict(zip(sources, received, strict=True))
    return [parts[rank] if source == rank else answer[source] for source in range(size)]
