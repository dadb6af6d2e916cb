"""The driver of real processes: one communication thread exchanges buckets during the backward pass.

Algorithm 2 of MG-WFBP (Shi and Chu, arXiv 1811.11141): hooks put full buckets into a queue, in bucket order, and the
thread works it off. Every rank starts its exchanges in the same order, so nothing has to be negotiated.

Once the backward pass is done the training thread has nothing else to do. So it works off the rest of the queue itself,
at least the last bucket. Waking another thread and waiting for it takes longer, above all if all cores are busy.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch

from wirebench.errors import UserError
from wirebench.exchange.advance import run
from wirebench.exchange.driver import Driver, Workers
from wirebench.exchange.lane import Lane
from wirebench.exchange.lockstep import Lockstep
from wirebench.exchange.pipeline import Starts
from wirebench.gradient.flat import Bucket
from wirebench.gradient.schedule import Duration
from wirebench.telemetry.timeline import Timeline
from wirebench.telemetry.timers import timer_for
from wirebench.utils.background import Background, Job, SideStream

Timed = tuple[int, Any, Any]
"""A bucket's index, and the marks between which it was worked on."""


class Overlapped(Driver):
    """Averages the gradients of one lane, overlapping the backward pass.

    after_backward  start every exchange after the backward pass
    holding         do so in this step, whatever the schedule says, and keep how long each exchange takes
    """

    can_hold: ClassVar[bool] = True

    def __init__(self, lane: Lane, timeline: Timeline) -> None:
        super().__init__([lane])
        self.lane, self.timeline, self.after_backward = lane, timeline, self.starts == "backward"
        self.device = lane.flat.grad.device
        self.side = SideStream(self.device)
        self.holding = False
        self._timer = timer_for(self.device)
        self._timed: list[Timed] = []
        self._armed = False
        self._missing: list[int] = []
        self._bucket_of: list[int] = []
        self._cut: list[Bucket] = []
        self._launched = 0
        self._last_event: torch.cuda.Event | None = None
        self._background = Background("exchange")
        lane.attach(self._on_ready)

    @classmethod
    def make(cls, workers: Workers, scheduler: Any) -> Driver:
        """The driver of these workers: virtual ones go in lockstep, whatever the schedule."""
        return cls(workers.lanes[0], workers.timeline) if workers.engine.distributed else Lockstep(workers.lanes)

    def begin(self, step: int, epoch: int) -> None:
        """Forget the gradients of the step before."""
        super().begin(step, epoch)
        self._armed, self._launched = False, 0
        if self._cut is not self.lane.buckets:
            self._cut = self.lane.buckets
            self._bucket_of = [bucket.index for bucket in self._cut for _ in bucket.layers]
        self._missing = [len(bucket.layers) for bucket in self._cut]

    def enable_sync(self) -> None:
        """Count a gradient that arrives as complete from now on."""
        self.lane.collect()
        self._armed = True

    def finish(self) -> None:
        """Launch what is left, wait for all buckets; raises what an exchange raised."""
        assert self._armed, "finish() without enable_sync()"
        self.lane.fill_unused()
        self._missing = [0] * len(self._missing)
        self._launch_full(wake=False)
        self._background.work_off()
        self._raise_error()
        if self._last_event is not None:
            torch.cuda.current_stream(self.device).wait_event(self._last_event)

    def settle(self) -> None:
        """Every exchange ends with its step; of one that is given up what is queued is left."""
        self._background.work_off()

    def take_durations(self) -> list[Duration]:
        """Durations of every bucket's exchange in the last step with `holding`; waits for the device."""
        self._timer.synchronize()
        return [Duration(seconds) for seconds in self._seconds(self._timed)]

    def _seconds(self, timed: list[Timed]) -> list[float]:
        """Seconds of each bucket, until the next one begins, since all of them waited in the queue; empties `timed`."""
        ends = [*(begin for _, begin, _ in timed[1:]), *(end for *_, end in timed[-1:])]
        seconds = {index: self._timer.seconds(begin, end) for (index, begin, _), end in zip(timed, ends, strict=True)}
        assert len(seconds) == len(timed), "a bucket is exchanged once a step"
        timed.clear()
        return [seconds[index] for index in sorted(seconds)]

    def close(self) -> None:
        """Detach from the model, end the thread.

        What is queued of a step that is given up is exchanged first. The thread may have got to the last bucket or not;
        where it had on one rank alone, that rank would wait for the others until its time is out.
        """
        super().close()
        earlier = self._background.error
        self._background.work_off()
        error = self._background.error
        if error is None:
            self._background.wait()
            return
        self._background.close()
        if earlier is None and isinstance(error, KeyboardInterrupt):
            raise error

    def _on_ready(self, layers: Sequence[int]) -> None:
        if not self._armed:
            return
        for layer in layers:
            bucket = self._bucket_of[layer]
            if self._missing[bucket] == 0:
                name = self.lane.flat.layers[layer].name
                raise UserError(
                    f"the gradient of {name!r} came again when its exchange had begun; put all of a step's forward and "
                    "backward passes but the last into sync.no_sync()"
                )
            self._missing[bucket] -= 1
            if self._missing[bucket] == 0:
                self.lane.hear(layer)
        if not self.after_backward and not self.holding:
            self._launch_full()

    def _launch_full(self, wake: bool = True) -> None:
        """Queue every full bucket that has only full ones before it; with the last one the backward pass is done."""
        last = len(self._missing) - 1
        while self._launched < len(self._missing) and self._missing[self._launched] == 0:
            bucket, timed = self.lane.buckets[self._launched], self._timed if self.holding else None
            exchange = partial(self._exchange, bucket, self.side.mark(), timed)
            self._background.submit(exchange, wake=wake and self._launched < last)
            self._launched += 1

    def _raise_error(self) -> None:
        if self._background.error is not None:
            raise self._background.error

    def _exchange(self, bucket: Bucket, ready: torch.cuda.Event | None, timed: list[Timed] | None) -> None:
        self._on_stream(f"bucket {bucket.index}", bucket, ready, lambda: run([self.lane.exchange(bucket)]), timed)

    def _on_stream(
        self, name: str, bucket: Bucket, ready: torch.cuda.Event | None, work: Job, timed: list[Timed] | None
    ) -> None:
        """Do `work` for a bucket on the exchange's own stream; draw it, and put its time into `timed`."""
        begin = time.perf_counter()
        with self.side.behind(ready):
            self._do(bucket, work, timed)
            if self.side.stream is not None:
                self._last_event = self.side.stream.record_event()
        elements = bucket.stop - bucket.start
        self.timeline.span("exchange", name, begin, time.perf_counter(), elements=elements)

    def _do(self, bucket: Bucket, work: Job, timed: list[Timed] | None) -> None:
        begin = self._timer.mark() if timed is not None else None
        work()
        if timed is not None:
            timed.append((bucket.index, begin, self._timer.mark()))


class AfterBackward(Overlapped):
    """The same with every exchange after the backward pass."""

    starts: ClassVar[Starts] = "backward"
