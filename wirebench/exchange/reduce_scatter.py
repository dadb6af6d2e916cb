"""The driver of split schedules: sums are added up during the backward pass and handed out under the next forward pass.

DeAR (Zhang et al., arXiv 2302.12445). A parameter's update waits for its gradient, so it happens right before the
layer's next forward pass, bucket by bucket; whoever else wants to look at the model calls `settle` first.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from wirebench.collectives.execution.executor import REDUCE_SCATTER_DONE, RequestLog
from wirebench.errors import Diverged, UserError
from wirebench.exchange.driver import Steps
from wirebench.exchange.lane import Lane
from wirebench.exchange.overlapped import Threaded, Timed
from wirebench.gradient.flat import Bucket
from wirebench.gradient.schedule import Duration
from wirebench.telemetry.clock import Clock
from wirebench.telemetry.timeline import Timeline

WAIT = "wait"
"""What a span of the timeline begins with in which a forward pass stands still for a bucket."""


class ReduceScatterDriver(Threaded):
    """Averages the gradients of one lane, and updates its model with `optimizer` where they are needed next."""

    def __init__(self, lane: Lane, timeline: Timeline, model: nn.Module, optimizer: Optimizer, clock: Clock) -> None:
        super().__init__(lane, timeline)
        lane.server.halves = True
        self.optimizer, self.clock = optimizer, clock
        self._scattered: dict[int, Steps] = {}
        self._gathered: dict[int, threading.Event] = {}
        self._events: dict[int, torch.cuda.Event] = {}
        self._copy_timed: list[Timed] = []
        self._logs: list[RequestLog] = []
        self._called: set[int] = set()
        self._late: set[int] = set()
        self._step = 0
        place = {name: number for number, name in enumerate(layer.name for layer in lane.flat.layers)}
        self._detach += _hooks(model, place, self._before, self._after_forward)

    def begin(self, step: int, epoch: int) -> None:
        """Forget the gradients of the step before, but for those that are still handed out."""
        super().begin(step, epoch)
        self._called, self._late = set(), set()

    def finish(self) -> None:
        """Wait until all is added up, and begin to hand it out, the first layers' buckets first."""
        super().finish()
        self._step = self.lane.world.step
        for parameter in self.lane.flat.parameters:
            parameter.grad = None
        for bucket in reversed(self.lane.buckets):
            copied = self._gathered[bucket.index] = threading.Event()
            timed = self._copy_timed if self.holding else None
            self._queue.put((partial(self._copy, bucket, timed), copied.set))
        if self.holding or self.lane.world.measuring:
            for copied in self._gathered.values():
                copied.wait()
            self._raise_error()

    def settle(self) -> None:
        """Wait for all that is handed out, and update what still waits for it."""
        for index in list(self._gathered):
            self._apply(index)
        self._collect()

    def take_logs(self) -> list[list[RequestLog]]:
        """The requests of the step before: those of this one are not done yet."""
        logs, self._logs = self._logs, []
        return [logs]

    def take_durations(self) -> list[Duration]:
        """Of every bucket's two halves in the last step that was held back; waits for the device."""
        self._marks.synchronize()
        halves = zip(self._seconds(self._timed), self._seconds(self._copy_timed), strict=True)
        return [Duration(*both) for both in halves]

    def _exchange(self, bucket: Bucket, ready: torch.cuda.Event | None, timed: list[Timed] | None) -> None:
        steps = self.lane.exchange(bucket)
        self._scattered[bucket.index] = steps
        self._on_stream(f"bucket {bucket.index}", bucket, ready, lambda: _to_half(steps), timed)

    def _copy(self, bucket: Bucket, timed: list[Timed] | None) -> None:
        steps = self._scattered.pop(bucket.index)
        self._on_stream(f"bucket {bucket.index} handed out", bucket, None, lambda: _to_end(steps), timed)
        if self.stream is not None:
            self._events[bucket.index] = self.stream.record_event()

    def _on_ready(self, layer: int) -> None:
        if layer in self._late:
            name = self.lane.flat.layers[layer].name
            raise UserError(
                f"scheduler.name: a split schedule updates a layer when its module's forward begins, but {name!r} is "
                "used without that; fused merges alike"
            )
        super()._on_ready(layer)

    def _before(self, layers: list[int]) -> None:
        """The forward pass of a module is about to begin: its parameters' updates must be done."""
        self._called.update(layers)
        if self._gathered:
            for index in dict.fromkeys(self._bucket_of[layer] for layer in layers):
                if index in self._gathered:
                    self._apply(index)

    def _after_forward(self) -> None:
        """A parameter whose own module has not begun was not used, or used before its update was sure to be done."""
        self._late = set(range(len(self._bucket_of))) - self._called
        self.settle()

    def _apply(self, index: int) -> None:
        """Wait for a bucket, and update its parameters."""
        begin = time.perf_counter()
        self._gathered[index].wait()
        self._raise_error()
        waited = time.perf_counter() - begin
        self.timeline.span("held up", f"{WAIT} for bucket {index}", begin, begin + waited)
        if index in self._events:
            torch.cuda.current_stream(self.device).wait_event(self._events.pop(index))
        del self._gathered[index]
        self._check(index)
        layers = [layer for layer, of in enumerate(self._bucket_of) if of == index]
        for layer in layers:
            self.lane.flat.parameters[layer].grad = self.lane.flat.views[layer]
        self.optimizer.step()
        for layer in layers:
            self.lane.flat.parameters[layer].grad = None
        updated = time.perf_counter() - begin - waited
        for phase, seconds in (("exchange_exposed", waited), ("update", updated), ("forward", -waited - updated)):
            self.clock.add(phase, seconds)

    def _check(self, index: int) -> None:
        """Raise Diverged, on all ranks at the same place, where the average is not finite."""
        bucket = self.lane.buckets[index]
        if bool(bucket.grad.sum().isfinite()):
            return
        for layer in bucket.layers:
            if not bool(self.lane.flat.grad[layer.start : layer.stop].isfinite().all()):
                raise Diverged(f"step {self._step}: the gradient of layer {layer.name} is not finite")

    def _collect(self) -> None:
        """Nothing is under way: take over what the server has noted."""
        if not self._gathered:
            self._logs += self.lane.server.take_log()

    def _raise_error(self) -> None:
        if self.error is not None:
            raise self.error


def _to_half(steps: Steps) -> None:
    """Advance an exchange until a sum of it is added up, or to its end."""
    answer: Any = None
    while True:
        try:
            handle = steps.send(answer)
        except StopIteration:
            return
        if handle is REDUCE_SCATTER_DONE:
            return
        answer = handle.wait()


def _to_end(steps: Steps) -> None:
    """Advance an exchange from where it was left to its end."""
    answer: Any = None
    try:
        while True:
            answer = steps.send(answer).wait()
    except StopIteration:
        return


def _hooks(
    model: nn.Module, place: dict[str, int], before: Callable[[list[int]], None], after: Callable[[], None]
) -> list[Callable[[], None]]:
    """Call `before` with a module's own parameters when its forward begins, `after` when the model's ends."""
    hooks = [model.register_forward_hook(lambda _module, _inputs, _output: after() if model.training else None)]
    for prefix, module in model.named_modules():
        own = [place[name] for name, _ in module.named_parameters(prefix, recurse=False) if name in place]
        if own:
            hooks.append(module.register_forward_pre_hook(lambda _module, _inputs, own=own: before(own)))
    return [hook.remove for hook in hooks]
