"""The driver of virtual workers: all lanes of the world in one process, bucket by bucket, round by round."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from wirebench.collectives.execution.executor import RequestLog
from wirebench.exchange.driver import run
from wirebench.exchange.lane import Lane


class Lockstep:
    """Averages the gradients of all `lanes` after their backward passes: no threads, no overlap, deterministic."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = lanes
        for lane in lanes:
            lane.attach(lambda _: None)

    def begin(self, step: int, epoch: int) -> None:
        """Forget the gradients of the step before."""
        for lane in self.lanes:
            lane.begin(step, epoch)

    def enable_sync(self) -> None:
        """Do nothing: no exchange starts before all workers have finished."""

    def finish(self) -> None:
        """Exchange every bucket among all lanes."""
        for lane in self.lanes:
            lane.fill_unused()
        for buckets in zip(*(lane.buckets for lane in self.lanes), strict=True):
            run([lane.exchange(bucket) for lane, bucket in zip(self.lanes, buckets, strict=True)])

    def take_logs(self) -> list[list[RequestLog]]:
        """Every lane's requests."""
        return [lane.server.take_log() for lane in self.lanes]

    def stepping(self) -> AbstractContextManager[None]:
        """A context that does nothing: the optimizer's step needs no change."""
        return nullcontext()

    def met(self, step: int) -> int:
        """Every step has an exchange of all ranks."""
        return step

    def settle(self) -> None:
        """Every exchange ends with its step."""

    def evaluation_view(self) -> AbstractContextManager[None]:
        """The model is what it is."""
        return nullcontext()

    def close(self) -> None:
        """Detach from the models."""
        for lane in self.lanes:
            lane.detach()
