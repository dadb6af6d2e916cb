"""The engine's own gradient synchroniser: the baseline that every schedule of ours is compared with.

`native` is an alias of the name, which earlier configs and records have; `native` is also the engine's own all-reduce,
a collective.
"""

from collections.abc import Sequence

from wirebench.exchange.builtin import EnginesOwn
from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient.schedule import Cost, LayerCost
from wirebench.schedulers.fused import Fused, cut_at

DEFAULT_CAP_MB = 25.0


class Builtin(Scheduler):
    """DistributedDataParallel on torch, hvd.DistributedOptimizer on Horovod.

    bucket_cap_mb  the engine's own fusion threshold in MiB (DDP's bucket_cap_mb, HOROVOD_FUSION_THRESHOLD); 0: its
                   default
    bucket_caps_mb one cap in MiB for each bucket in turn, in the order in which gradients come: DDP's
                   bucket_cap_mb_list, of the torch engine and from torch 2.15 on; empty: bucket_cap_mb counts
    """

    driver = EnginesOwn

    def __init__(self, bucket_cap_mb: float = 0.0, bucket_caps_mb: Sequence[float] = ()) -> None:
        if bucket_cap_mb < 0:
            raise ValueError(f"bucket_cap_mb is at least 0, got {bucket_cap_mb}")
        if any(cap <= 0 for cap in bucket_caps_mb):
            raise ValueError(f"bucket_caps_mb are more than 0 MiB, got {list(bucket_caps_mb)}")
        if bucket_cap_mb and bucket_caps_mb:
            raise ValueError("bucket_caps_mb replaces bucket_cap_mb; give one of them")
        self.bucket_cap_mb, self.bucket_caps_mb = bucket_cap_mb, bucket_caps_mb

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """The groups that DistributedDataParallel makes. The engine merges by itself: only predictions use these."""
        if self.bucket_caps_mb:
            return cut_at([int(cap * 2**20) for cap in self.bucket_caps_mb], layers)
        # A given cap holds for the first bucket too; by default that one is smaller, as in Fused.
        fused = Fused(self.bucket_cap_mb, self.bucket_cap_mb) if self.bucket_cap_mb else Fused(DEFAULT_CAP_MB)
        return fused.partition(layers, cost)
