"""The driver of split schedules: reduce-scatter in the backward pass, all-gather under the next forward pass.

DeAR (Zhang et al., arXiv 2302.12445). A sum over ranks is a reduce-scatter, after which each rank holds its share of
the sum, and an all-gather of the shares. (With a tree: a reduce to its root, and a broadcast.) A parameter's update
waits for the all-gather, so it happens right before the layer's next forward pass, bucket by bucket. All other code
calls `settle` before it reads the model.

One bucket, from step t to t + 1:

  backward t      full -> the thread runs its exchange until the reduce-scatter of its first sum is done
  finish t        all buckets' reduce-scatters are done -> their all-gathers are queued, the first layers' first
  forward t + 1   a layer's module begins -> wait for its bucket's all-gather, update its parameters
  its end         what no module asked for is updated; the step's gradient is complete and is looked at
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from wirebench.collectives.execution.executor import REDUCE_SCATTER_DONE, RequestLog
from wirebench.errors import UserError
from wirebench.exchange.advance import Steps
from wirebench.exchange.driver import Driver, Parts, Workers
from wirebench.exchange.lane import Lane
from wirebench.exchange.lockstep import Lockstep
from wirebench.exchange.overlapped import Overlapped, Timed
from wirebench.exchange.pipeline import Passes, Step, TimedSpan
from wirebench.gradient.flat import Bucket
from wirebench.gradient.schedule import Duration
from wirebench.telemetry.clock import Clock
from wirebench.telemetry.timeline import ALL_GATHER, Timeline
from wirebench.utils.hooks import NeededHook

WAIT = "wait"
"""Prefix of timeline spans in which a forward pass waits for a bucket."""


class Updates(Protocol):
    """An optimizer, or what stands for one."""

    def step(self) -> Any:
        """Update the parameters that have a gradient."""
        ...


class ReduceScatterDriver(Overlapped):
    """Averages the gradients of one lane, and updates its model with `optimizer` where they are needed next.

    A step's average is there within the next forward pass, or in `settle`.
    """

    halves: ClassVar[bool] = True
    updates: ClassVar[bool] = True
    collective: ClassVar[str] = "ring"

    def __init__(self, lane: Lane, timeline: Timeline, model: nn.Module, optimizer: Updates, clock: Clock) -> None:
        super().__init__(lane, timeline)
        lane.server.halves = True
        self.optimizer, self.clock = optimizer, clock
        self.averaged: Callable[[int], None] = lambda step: None
        self._scattered: dict[int, Steps] = {}
        """Exchanges that stand between their reduce-scatter and their all-gather, by bucket."""
        self._gathered: dict[int, threading.Event] = {}
        """Events of buckets whose parameters wait for their update: set when the thread has finished the all-gather."""
        self._events: dict[int, torch.cuda.Event] = {}
        self._gather_timed: list[Timed] = []
        self._logs: list[RequestLog] = []
        self._called: set[int] = set()
        self._watched = False
        """Whether a step has shown that each layer with a gradient is called as a module."""
        self._step = 0
        self._unseen = False
        place = {name: number for number, name in enumerate(layer.name for layer in lane.flat.layers)}
        self._detach = _hooks(model, place, self._before, self._after_forward)

    @classmethod
    def accepts(cls, parts: Parts) -> str | None:
        """It needs a collective with halves, and updates before the norm of the whole gradient is known."""
        if not parts.has_plan:
            return f"runs the halves of a plan apart, and the engine's own has none; {cls.collective} is its default"
        if parts.clip:
            return "updates layers before the whole gradient's norm is known; set optimizer.clip=0"
        return super().accepts(parts)

    @classmethod
    def make(cls, workers: Workers, scheduler: Any) -> Driver:
        """The driver of these workers; virtual ones overlap nothing."""
        if not workers.engine.distributed:
            return Lockstep(workers.lanes)
        return cls(workers.lanes[0], workers.timeline, workers.models[0], workers.optimizers[0], workers.clock)

    @classmethod
    def simulate(cls, scheduler: Any, passes: Passes, groups: Sequence[range], durations: Sequence[Duration]) -> Step:
        """A step of which the reduce-scatters go in the backward pass, the all-gathers under the next forward pass.

        Two steps are simulated, and the second is returned: its forward pass waits for the all-gathers of the first.
        All later steps are like it: a forward pass waits for every all-gather, so the network is idle when it ends.
        """
        needed = [(number, passes.forward[layer]) for number, group in enumerate(groups) for layer in group][::-1]
        gathered, free, begin = [0.0] * len(groups), 0.0, 0.0  # free: when the network has sent all so far
        spans: list[TimedSpan] = []
        for _ in range(2):
            spans, now = [], begin
            # The forward pass: a layer waits for the all-gather of its bucket.
            for number, seconds in needed:
                if gathered[number] > now:
                    now = gathered[number]
                now += seconds
            # The backward pass begins now; a bucket's reduce-scatter starts when its gradients and the wire are there.
            for number, (group, duration) in enumerate(zip(groups, durations, strict=True)):
                ready = now + passes.ready[group.stop - 1]
                start = max(free, ready)
                free = start + duration.seconds
                spans.append(TimedSpan(number, "reduce", ready - begin, start - begin, free - begin))
            # The driver waits for all reduce-scatters. Then all-gathers go in the order in which the forward pass needs
            # them: the first layers' bucket, which is the last in backward order, first.
            end = max(now + passes.backward, free)
            for number in reversed(range(len(groups))):
                start = max(free, end)
                free = gathered[number] = start + durations[number].copy_seconds
                spans.append(TimedSpan(number, "copy", end - begin, start - begin, free - begin))
            period, backward, begin = end + passes.other - begin, now - begin, end + passes.other
        return Step(period, max(0.0, period - passes.seconds), backward, tuple(spans))

    def finish(self) -> None:
        """Wait for all reduce-scatters, and queue the all-gathers, the first layers' buckets first."""
        super().finish()
        # Not when a step begins: a loop that calls the model's parts begins one in its backward pass.
        self._watched, self._called = self._watched or bool(self._called), set()
        self._step, self._unseen = self.lane.world.step, True
        # The train loop's own optimizer step must find nothing to do: every update waits for its all-gather.
        for parameter in self.lane.flat.parameters:
            parameter.grad = None
        # Buckets are in backward order, and the forward pass begins with the layers of the last.
        for bucket in reversed(self.lane.buckets):
            gathered = self._gathered[bucket.index] = threading.Event()
            timed = self._gather_timed if self.holding else None
            self._background.submit(partial(self._all_gather, bucket, timed), gathered.set)
        # A step that is timed or measured needs the whole average now, not under the next step's forward pass.
        if self.holding or self.lane.world.measuring:
            for gathered in self._gathered.values():
                gathered.wait()
            self._raise_error()

    def met(self, step: int) -> int:
        """The step before, while all-gathers are to come: a rank may be done with its part of a reduce, a leaf of a
        tree, before others have begun theirs.
        """
        return step - 1 if self._gathered else step

    def settle(self) -> None:
        """Wait for all all-gathers, and update what still waits for its own."""
        for index in list(self._gathered):
            self._apply(index)
        self._logs += self.lane.server.take_log()
        if self._unseen:
            self._unseen = False
            self.averaged(self._step)

    def take_logs(self) -> list[list[RequestLog]]:
        """The requests of the step before: this step's are not done yet."""
        logs, self._logs = self._logs, []
        return [logs]

    def take_durations(self) -> list[Duration]:
        """Each bucket's reduce-scatter and all-gather time in the last step with `holding`; waits for the device."""
        self._timer.synchronize()
        pairs = zip(self._seconds(self._timed), self._seconds(self._gather_timed), strict=True)
        return [Duration(*both) for both in pairs]

    def _exchange(self, bucket: Bucket, ready: torch.cuda.Event | None, timed: list[Timed] | None) -> None:
        """Run the exchange until its reduce-scatter is done; in the thread, during the backward pass."""
        steps = self.lane.exchange(bucket)
        self._scattered[bucket.index] = steps
        self._on_stream(f"bucket {bucket.index}", bucket, ready, lambda: _to_reduce_scatter(steps), timed)

    def _all_gather(self, bucket: Bucket, timed: list[Timed] | None) -> None:
        """Run the rest of the exchange, with any further requests; in the thread, during the next forward pass."""
        steps = self._scattered.pop(bucket.index)
        self._on_stream(f"bucket {bucket.index} {ALL_GATHER}", bucket, None, lambda: _to_end(steps), timed)
        if self.side.stream is not None:
            self._events[bucket.index] = self.side.stream.record_event()

    def close(self) -> None:
        """Detach from the model, end the thread."""
        for detach in self._detach:
            detach()
        super().close()

    def _on_ready(self, layers: Sequence[int]) -> None:
        # Before the hooks were there none has begun, and no update was to be made.
        late = [each for each in layers if (each not in self._called if self._called else self._waits(each))]
        if late:
            name = self.lane.flat.layers[min(late)].name
            raise UserError(
                f"scheduler.name: a split schedule updates a layer when its module's forward begins, but {name!r} is "
                "used without that; use scheduler.name=fused, which groups identically"
            )
        super()._on_ready(layers)

    def _waits(self, layer: int) -> bool:
        """Whether a layer's update is still to come."""
        return self._bucket_of[layer] in self._gathered

    def _before(self, layers: list[int], *_: object) -> None:
        """The forward pass of a module is about to begin: its parameters' updates must be done."""
        if torch.is_grad_enabled():
            self._called.update(layers)
        if not self._watched:  # else a layer that is not called is updated while the backward pass still needs it
            self.settle()
        elif self._gathered:
            for index in dict.fromkeys(self._bucket_of[layer] for layer in layers):
                if index in self._gathered:
                    self._apply(index)

    def _after_forward(self, model: nn.Module, *_: object) -> None:
        """Update the parameters whose own module has not begun.

        Such a parameter was not used, or used before its update was sure to be done. In the latter case the backward
        pass brings a gradient (see _on_ready).
        """
        self.settle()

    def _apply(self, index: int) -> None:
        """Wait for a bucket's all-gather, and update its parameters.

        On a GPU the host waits until the all-gather is on its stream, and the device by an event between the streams.
        Nothing here asks the device for a value: that would end the overlap which is measured. Both phases lie within a
        forward pass and are no part of it.
        """
        label = f"{WAIT} for bucket {index}"
        with self.clock.phase("exchange_exposed", "held up", label=label, within="forward"):
            self._gathered[index].wait()
            self._raise_error()
            if index in self._events:
                torch.cuda.current_stream(self.device).wait_event(self._events.pop(index))
        del self._gathered[index]
        layers = [layer for layer, of in enumerate(self._bucket_of) if of == index]
        with self.clock.phase("update", within="forward"):
            # The optimizer skips what has no gradient, so this is a step of this bucket's parameters alone.
            for layer in layers:
                self.lane.flat.parameters[layer].grad = self.lane.flat.view(layer)
            self.optimizer.step()
            for layer in layers:
                self.lane.flat.parameters[layer].grad = None


def _to_reduce_scatter(steps: Steps) -> None:
    """Advance an exchange until the reduce-scatter of a sum is done, or to its end."""
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
    """Advance an exchange from where it was left to its end; there is nothing to do for one that has ended."""
    answer: Any = None
    try:
        while True:
            # A second sum is not left at its half: its all-gather has nothing left to hide under.
            answer = steps.send(answer).wait()
    except StopIteration:
        return


def _hooks(
    model: nn.Module, place: dict[str, int], before: Callable[..., None], after: Callable[..., None]
) -> list[Callable[[], None]]:
    """Call `before` with a module's own parameters when its forward begins, `after` when the model's ends."""
    # An evaluation comes after `settle` and has no backward pass: nothing waits, and nothing can be late.
    hooks = [model.register_forward_hook(NeededHook(after))]
    for prefix, module in model.named_modules():
        own = [place[name] for name, _ in module.named_parameters(prefix, recurse=False) if name in place]
        if own:
            hooks.append(module.register_forward_pre_hook(NeededHook(before, own)))
    return [hook.remove for hook in hooks]
