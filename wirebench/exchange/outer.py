"""The driver of local steps with an outer optimizer (schedulers/outer.py): differences of weights travel, now and then.

A fragment's difference is sent when it is due and applied `delay` steps later, so its exchange has that long beside the
training. Fragments are buckets: a compressor gets the difference where it else gets a gradient.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor
from torch.optim import Optimizer

from wirebench.collectives.execution.executor import RequestLog
from wirebench.errors import Diverged, UserError
from wirebench.exchange.anchored import NEVER, Anchored
from wirebench.exchange.driver import Steps, advance, run
from wirebench.exchange.lane import Lane
from wirebench.gradient import conformance
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.flat import Bucket
from wirebench.gradient.schedule import OuterRule
from wirebench.telemetry.clock import Clock


class OuterSteps:
    """The driver: gradients stay where they are, fragments of the weights' differences are exchanged when they are due.

    overlaps  an exchange runs in a thread beside the steps until it is applied: one lane, as in a process of a real job
    """

    def __init__(
        self, lanes: Sequence[Lane], optimizers: Sequence[Optimizer], rule: OuterRule, clock: Clock, overlaps: bool
    ) -> None:
        self.lanes, self.rule, self._clock = lanes, rule, clock
        self.holders = [Anchored(lane, optimizer, rule) for lane, optimizer in zip(lanes, optimizers, strict=True)]
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="exchange") if overlaps else None
        self._under_way: dict[int, Future[None]] = {}
        self._step, self._met = 0, -1
        self._sent: dict[int, int] = {}
        """For each fragment under way, the step after which it was sent."""
        for lane in lanes:
            lane.attach(lambda _: None)
        self._device = lanes[0].flat.grad.device
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" and overlaps else None

    def begin(self, step: int, epoch: int) -> None:
        """Forget the gradients of the step before."""
        self._step = step
        for lane in self.lanes:
            lane.begin(step, epoch)

    def enable_sync(self) -> None:
        """Do nothing: no exchange depends on gradients."""

    def finish(self) -> None:
        """Each rank's gradient is its own."""
        for lane in self.lanes:
            lane.fill_unused()

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """A context for the optimizer's step: after it due fragments are applied and sent.

        What the outer optimizer computes is part of the update; only what is waited for is exposed.
        """
        yield
        with torch.no_grad():
            for number in range(len(self.lanes[0].buckets)):
                if self.holders[0].due[number] == self._step:
                    self._apply(number)
                if self.rule.starts(number, self._step):
                    self._send(number)

    def met(self, step: int) -> int:
        """The last step after which a fragment was sent that is applied by now: each rank has begun that one.

        Workers of one process go step by step.
        """
        return step if self._pool is None else self._met

    def settle(self) -> None:
        """Wait for what is under way; it is applied when it is due."""
        for number in list(self._under_way):
            self._wait(number)

    def take_logs(self) -> list[list[RequestLog]]:
        """Every lane's requests."""
        return [lane.server.take_log() for lane in self.lanes]

    @contextmanager
    def evaluation_view(self) -> Iterator[None]:
        """Meanwhile the models hold the anchor: it is what is evaluated and saved."""
        for holder in self.holders:
            holder.own = holder.flat.gather_weights()
            holder.flat.set_weights(holder.anchor)
        try:
            yield
        finally:
            for holder in self.holders:
                assert holder.own is not None
                holder.flat.set_weights(holder.own)
                holder.own = None

    def close(self) -> None:
        """Detach from the models, end the thread."""
        for lane in self.lanes:
            lane.detach()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _send(self, number: int) -> None:
        if (due := int(self.holders[0].due[number])) != NEVER:
            raise UserError(
                f"scheduler: its rule sends fragment {number} after step {self._step}, while the exchange before is "
                f"under way until it is applied after step {due}: fragments have to be more than `delay` steps apart"
            )
        # Methods that change with the step (a factor in turn, a leader in turn) count a fragment's exchanges.
        worlds = [replace(holder.lane.world, step=holder.next_exchange(number)) for holder in self.holders]
        self._sent[number] = self._step
        fragments = [holder.put(holder.lane.buckets[number]) for holder in self.holders]
        for holder in self.holders:
            holder.due[number] = self._step + self.rule.delay
        if self._pool is None or not self.rule.delay:
            with self._clock.phase("exchange_exposed", within="update"):
                self._exchange(fragments, worlds, None)
        else:
            ready = torch.cuda.current_stream(self._device).record_event() if self._stream is not None else None
            self._under_way[number] = self._pool.submit(self._exchange, fragments, worlds, ready)
        if not self.rule.delay:
            self._apply(number)

    def _apply(self, number: int) -> None:
        if number in self._under_way:
            with self._clock.phase("exchange_exposed", within="update"):
                self._wait(number)
        bucket = self.lanes[0].buckets[number]
        piece = slice(bucket.start, bucket.stop)
        # All workers have the same mean, so one is looked at: on a GPU the host waits for the answer.
        if not bool(self.holders[0].message[piece].isfinite().all()):
            raise Diverged(f"step {self._step}: a worker's weights are no longer finite")
        for holder in self.holders:
            holder.apply(bucket.start, bucket.stop)
            holder.due[number] = NEVER
        # An exchange of an earlier run proves nothing about ranks that have waited for no other since.
        self._met = max(self._met, self._sent.pop(number, -1))

    def _wait(self, number: int) -> None:
        """Return when the fragment's mean is there; raises what its exchange raised."""
        if number in self._under_way:
            self._under_way.pop(number).result()
            if self._stream is not None:
                torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def _exchange(
        self, fragments: Sequence[Bucket], worlds: Sequence[ExchangeContext], ready: torch.cuda.Event | None
    ) -> None:
        steps = [_average(*each) for each in zip(self.lanes, fragments, worlds, strict=True)]
        if self._stream is None or ready is None:
            run(steps)
            return
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            run(steps)


def _average(lane: Lane, fragment: Bucket, world: ExchangeContext) -> Steps:
    """Average the fragment over ranks, in place; `world` belongs to the step in which it was sent."""
    with torch.no_grad():
        exchange = conformance.exchange(lane.compressor, fragment, world)
        average: Tensor = yield from advance(exchange, lane.server.serve, lane.compressing)
        if average.data_ptr() != fragment.grad.data_ptr():
            fragment.grad.copy_(average)
    return fragment.grad
