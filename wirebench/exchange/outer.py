"""The driver of local steps with an outer optimizer (schedulers/outer.py): differences of weights travel, now and then.

A fragment's difference is sent when it is due and applied `delay` steps later, so its exchange has that long beside the
training. Fragments are buckets: a compressor gets the difference where it else gets a gradient.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from wirebench.config.plugins import options_of
from wirebench.errors import Diverged, UserError
from wirebench.exchange.advance import Steps, advance, run
from wirebench.exchange.anchored import NEVER, Anchored, OuterRule
from wirebench.exchange.driver import Parts, Workers
from wirebench.exchange.lane import Lane
from wirebench.exchange.own_weights import WeightsDriver
from wirebench.exchange.pipeline import Passes, Starts, Step, in_turn
from wirebench.gradient import conformance
from wirebench.gradient.conformance import name_of, unwrapped
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.flat import Bucket
from wirebench.gradient.schedule import Duration
from wirebench.telemetry.clock import Clock


class OuterSteps(WeightsDriver):
    """Fragments of the weights' differences are exchanged when they are due."""

    starts: ClassVar[Starts] = "backward"
    exchanges: ClassVar[str] = Anchored.exchanges
    own_weights: ClassVar[str] = Anchored.keys()[0]
    holders: Sequence[Anchored]

    def __init__(
        self, lanes: Sequence[Lane], optimizers: Sequence[Optimizer], rule: OuterRule, clock: Clock, overlaps: bool
    ) -> None:
        holders = [Anchored(lane, optimizer, rule) for lane, optimizer in zip(lanes, optimizers, strict=True)]
        super().__init__(lanes, holders, overlaps)
        self.rule, self._clock = rule, clock
        self._under_way: dict[int, threading.Event] = {}
        self._step, self._met = 0, -1
        self._sent: dict[int, int] = {}
        """For each fragment under way, the step after which it was sent."""

    @classmethod
    def accepts(cls, parts: Parts) -> str | None:
        """The outer optimizer has the momentum; a compressor with one of its own would apply a second."""
        if parts.compressor.owns_momentum:
            name, options = name_of(parts.compressor), options_of(unwrapped(parts.compressor))
            hint = "; set its momentum to 0" if "momentum" in options else ""
            return f"has an outer optimizer, and {name!r} applies a momentum to what it is given{hint}"
        return super().accepts(parts)

    @classmethod
    def make(cls, workers: Workers, scheduler: Any) -> "OuterSteps":
        """The driver of these workers."""
        overlaps = workers.engine.distributed
        return cls(workers.lanes, workers.optimizers, scheduler, workers.clock, overlaps)

    @classmethod
    def simulate(
        cls, scheduler: OuterRule, passes: Passes, groups: Sequence[range], durations: Sequence[Duration]
    ) -> Step:
        """The mean of a period's steps in which each fragment is exchanged once.

        An exchange adds what the `delay` steps beside which it runs do not hide. It is drawn whole, after its step's
        backward pass.
        """
        hidden = scheduler.delay * passes.seconds
        exposed = sum(max(0.0, duration.seconds - hidden) for duration in durations) / scheduler.every
        drawn = in_turn(passes, groups, durations, cls.starts)
        return drawn._replace(seconds=passes.seconds + exposed, exposed=exposed)

    @classmethod
    def rhythm(cls, scheduler: OuterRule) -> tuple[int, int]:
        """The rule's."""
        return scheduler.every, scheduler.delay

    @classmethod
    def notes(cls, scheduler: OuterRule, steps: int) -> list[str]:
        """That the local steps at a run's end are in no mean that was applied, and so in no evaluation."""
        lasts = [_last_applied(scheduler, fragment, steps) for fragment in range(scheduler.fragments)]
        if None in lasts:
            delay = f" and scheduler.delay={scheduler.delay}" if scheduler.delay else ""
            few = f"{steps} steps are too few for scheduler.every={scheduler.every}{delay}"
            part = "a part of the model" if any(last is not None for last in lasts) else "the model"
            return [f"note: {few}: no mean of {part} is applied, and it is evaluated as it began"]
        left = max(steps - 1 - last for last in lasts if last is not None)
        what = f"the last {left} of {steps} steps are in no mean that is applied (scheduler.every={scheduler.every})"
        return [f"note: {what}, and in no evaluation"] if left else []

    def begin(self, step: int, epoch: int) -> None:
        """Forget the gradients of the step before."""
        self._step = step
        super().begin(step, epoch)

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
        return self._met if self.overlaps else step

    def settle(self) -> None:
        """Wait for what is under way; it is applied when it is due."""
        for number in list(self._under_way):
            self._wait(number)

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
        if self.overlaps and self.rule.delay:
            self._under_way[number] = self._start(partial(self._exchange, fragments, worlds))
        else:
            with self._clock.phase("exchange_exposed", within="update"):
                self._exchange(fragments, worlds)
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
            self._await(self._under_way.pop(number))

    def _exchange(self, fragments: Sequence[Bucket], worlds: Sequence[ExchangeContext]) -> None:
        run([_average(*each) for each in zip(self.lanes, fragments, worlds, strict=True)])


def _average(lane: Lane, fragment: Bucket, world: ExchangeContext) -> Steps:
    """Average the fragment over ranks, in place; `world` belongs to the step in which it was sent."""
    with torch.no_grad():
        exchange = conformance.exchange(lane.compressor, fragment, world)
        average: Tensor = yield from advance(exchange, lane.server.serve, lane.compressing)
        if average.data_ptr() != fragment.grad.data_ptr():
            fragment.grad.copy_(average)
    return fragment.grad


def _last_applied(rule: OuterRule, fragment: int, steps: int) -> int | None:
    """The last step after which the fragment is sent and still applied within `steps` steps; None without one."""
    sent = range(steps - 1 - rule.delay, max(steps - 1 - rule.delay - rule.every, -1), -1)
    return next((step for step in sent if rule.starts(fragment, step)), None)
