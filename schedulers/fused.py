"""Tensor fusion by size: neighbours share a message until it is full, as DistributedDataParallel and Horovod do."""

from collections.abc import Sequence

from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient.schedule import Cost, LayerCost

BYTES_PER_ELEMENT = 4


class Fused(Scheduler):
    """Messages of at least `bucket_cap_mb` MiB of fp32 gradient (the last may be smaller).

    A message is closed by the layer that fills it, so a layer larger than the cap travels with those waiting before it,
    as in Li et al., "PyTorch Distributed", VLDB 2020. `first_bucket_mb` is the cap of the first message: a small one
    starts the network early.
    """

    def __init__(self, bucket_cap_mb: float = 25.0, first_bucket_mb: float = 1.0) -> None:
        if bucket_cap_mb <= 0 or first_bucket_mb <= 0:
            raise ValueError(f"caps are more than 0 MiB, got {bucket_cap_mb} and {first_bucket_mb}")
        self.caps = [int(mb * 2**20) for mb in (first_bucket_mb, bucket_cap_mb)]

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """Groups closed as soon as their bytes reach the cap."""
        return cut_at(self.caps, layers)


def cut_at(caps: Sequence[int], layers: Sequence[LayerCost]) -> list[range]:
    """The groups of layers that are closed as soon as their fp32 bytes reach their cap.

    caps  bytes of each group in turn, at least one; the last cap holds for all further groups
    """
    groups: list[range] = []
    start = size = 0
    for i, layer in enumerate(layers):
        size += layer.numel * BYTES_PER_ELEMENT
        if size >= caps[min(len(groups), len(caps) - 1)]:
            groups.append(range(start, i + 1))
            start, size = i + 1, 0
    if start < len(layers):
        groups.append(range(start, len(layers)))
    return groups
