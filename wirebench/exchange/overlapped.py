"""The driver of real processes: one communication thread exchanges buckets during the backward pass.

Algorithm 2 of MG-WFBP (Shi and Chu, arXiv 1811.11141): hooks put full buckets into a queue, in bucket order, and the
thread works it off. Every rank starts its exchanges in the same order, so nothing has to be negotiated.

Once the backward pass is done the training thread has nothing else to do. So it works off the rest of the queue itself,
at least the last bucket. Waking another thread and waiting for it takes longer, above all if all cores are busy.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from wirebench.collectives.execution.executor import RequestLog
from wirebench.errors import UserError
from wirebench.exchange.driver import run
from wirebench.exchange.lane import Lane
from wirebench.gradient.flat import Bucket
from wirebench.gradient.schedule import Duration
from wirebench.telemetry.timeline import Timeline
from wirebench.telemetry.timers import timer_for

Work = Callable[[], object]
Timed = tuple[int, Any, Any]
"""A bucket's index, and the marks between which it was worked on."""


class Threaded:
    """Averages the gradients of one lane, overlapping the backward pass.

    after_backward  start every exchange after the backward pass
    holding         do so in this step, whatever the schedule says, and keep how long each exchange takes
    """

    def __init__(self, lane: Lane, timeline: Timeline, after_backward: bool = False) -> None:
        self.lane, self.timeline, self.after_backward = lane, timeline, after_backward
        self.device = lane.flat.grad.device
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self.error: BaseException | None = None
        self.holding = False
        self._timer = timer_for(self.device)
        self._timed: list[Timed] = []
        self._armed = False
        self._missing: list[int] = []
        self._bucket_of: list[int] = []
        self._cut: list[Bucket] = []
        self._launched = 0
        self._last_event: torch.cuda.Event | None = None
        self._queue: deque[tuple[Work, Work]] = deque()
        self._turn = threading.Lock()
        """Held by who takes work from the queue, until it is done: all is done one after the other, in order."""
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """Wakes the thread; False ends it."""
        lane.attach(self._on_ready)
        self._thread = threading.Thread(target=self._work, name="exchange", daemon=True)
        self._thread.start()

    def begin(self, step: int, epoch: int) -> None:
        """Forget the gradients of the step before."""
        self.lane.begin(step, epoch)
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
        self._do_what_is_queued()
        if self.error is not None:
            raise self.error
        if self._last_event is not None:
            torch.cuda.current_stream(self.device).wait_event(self._last_event)

    def take_logs(self) -> list[list[RequestLog]]:
        """The requests that the lane's server has served; of one rank."""
        return [self.lane.server.take_log()]

    def stepping(self) -> AbstractContextManager[None]:
        """A context that does nothing: the optimizer's step needs no change."""
        return nullcontext()

    def met(self, step: int) -> int:
        """Every step has an exchange of all ranks."""
        return step

    def settle(self) -> None:
        """Every exchange ends with its step; of one that is given up what is queued is left."""
        self._do_what_is_queued()

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

    def evaluation_view(self) -> AbstractContextManager[None]:
        """The model is what it is."""
        return nullcontext()

    def close(self) -> None:
        """Detach from the model, end the thread.

        What is queued of a step that is given up is exchanged first. The thread may have got to the last bucket or not;
        where it had on one rank alone, that rank would wait for the others until its time is out.
        """
        self.lane.detach()
        earlier = self.error
        self._do_what_is_queued()
        self._calls.put(False)
        if self.error is None:
            self._thread.join()
        elif earlier is None and isinstance(self.error, KeyboardInterrupt):
            raise self.error

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
            event = None
            if self.stream is not None:
                event = torch.cuda.current_stream(self.device).record_event()
            bucket, timed = self.lane.buckets[self._launched], self._timed if self.holding else None
            self._submit(partial(self._exchange, bucket, event, timed), wake=wake and self._launched < last)
            self._launched += 1

    def _submit(self, work: Work, done: Work = lambda: None, wake: bool = True) -> None:
        """Queue `work`; `done` is called after it, whatever became of it. Without `wake` the thread is not told."""
        self._queue.append((work, done))
        if wake:
            self._calls.put(True)

    def _do_what_is_queued(self) -> None:
        with self._turn:
            while self._queue:
                self._work_once()

    def _work(self) -> None:
        while self._calls.get():
            with self._turn:
                self._work_once()

    def _work_once(self) -> None:
        """Do the first work in the queue, unless the other thread has emptied it."""
        if not self._queue:
            return
        work, done = self._queue.popleft()
        if self.error is None:
            try:
                work()
            except BaseException as error:  # handed to the training thread, which raises it
                self.error = error
        done()

    def _exchange(self, bucket: Bucket, ready: torch.cuda.Event | None, timed: list[Timed] | None) -> None:
        self._on_stream(f"bucket {bucket.index}", bucket, ready, lambda: run([self.lane.exchange(bucket)]), timed)

    def _on_stream(
        self, name: str, bucket: Bucket, ready: torch.cuda.Event | None, work: Work, timed: list[Timed] | None
    ) -> None:
        """Do `work` for a bucket on the exchange's own stream; draw it, and put its time into `timed`."""
        begin = time.perf_counter()
        if self.stream is None:
            self._do(bucket, work, timed)
        else:
            with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
                if ready is not None:
                    self.stream.wait_event(ready)
                self._do(bucket, work, timed)
                self._last_event = self.stream.record_event()
        elements = bucket.stop - bucket.start
        self.timeline.span("exchange", name, begin, time.perf_counter(), elements=elements)

    def _do(self, bucket: Bucket, work: Work, timed: list[Timed] | None) -> None:
        begin = self._timer.mark() if timed is not None else None
        work()
        if timed is not None:
            timed.append((bucket.index, begin, self._timer.mark()))
