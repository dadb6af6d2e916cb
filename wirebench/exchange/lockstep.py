"""The driver of virtual workers: all lanes of the world in one process, bucket by bucket, round by round."""

from collections.abc import Sequence

from wirebench.exchange.advance import run
from wirebench.exchange.driver import Driver
from wirebench.exchange.lane import Lane


class Lockstep(Driver):
    """Averages the gradients of all `lanes` after their backward passes: no threads, no overlap, deterministic."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        super().__init__(lanes)
        for lane in lanes:
            lane.attach(lambda _: None)

    def finish(self) -> None:
        """Exchange every bucket among all lanes."""
        for lane in self.lanes:
            lane.fill_unused()
        for buckets in zip(*(lane.buckets for lane in self.lanes), strict=True):
            run([lane.exchange(bucket) for lane, bucket in zip(self.lanes, buckets, strict=True)])
