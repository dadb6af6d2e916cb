"""The driver of elastic averaging (schedulers/easgd.py): weights travel while the step computes.

A step's message is the weights that the step begins with, so it is on its way from the step's first moment on, and the
pull is applied after the optimizer's own step.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from wirebench.collectives.wire import wire_of
from wirebench.exchange.advance import run
from wirebench.exchange.driver import Parts, Workers
from wirebench.exchange.finite import Finite
from wirebench.exchange.lane import Lane
from wirebench.exchange.own_weights import OwnWeights, WeightsDriver
from wirebench.exchange.pipeline import Starts
from wirebench.gradient.conformance import DENSE, name_of
from wirebench.gradient.requests import Sum
from wirebench.gradient.schedule import Duration
from wirebench.telemetry.timers import timer_for


class Pull(OwnWeights):
    """One rank's weights beside the common centre; saved and restored as a compressor's state is."""

    exchanges: ClassVar[str] = "weights"
    shared: ClassVar[str] = "centre"

    def __init__(self, lane: Lane, optimizer: Optimizer, beta: float) -> None:
        super().__init__(lane, optimizer)
        self.size = lane.server.communicator.size
        self.strength = beta / self.size
        self.centre = self.common
        self.message = torch.empty_like(self.centre)

    @torch.no_grad()
    def apply(self, before: Tensor) -> None:
        """After the optimizer's step: pull this rank's weights and the centre towards each other.

        before  this rank's weights before that step, overwritten; `message` holds their sum over ranks
        """
        pulls = self.flat.views_of(before.sub_(self.centre))
        torch._foreach_add_([*self.flat.parameters], pulls, alpha=-self.strength)
        self.centre.mul_(1 - self.strength * self.size).add_(self.message, alpha=self.strength)


class Elastic(WeightsDriver):
    """Gradients do not travel, the weights of all lanes of this process are summed in every step.

    holding  sum after the backward pass instead of beside the step, and keep how long it takes
    """

    starts: ClassVar[Starts] = "step"
    exchanges: ClassVar[str] = Pull.exchanges
    own_weights: ClassVar[str] = Pull.keys()[0]
    can_hold: ClassVar[bool] = True
    holders: Sequence[Pull]

    def __init__(self, lanes: Sequence[Lane], optimizers: Sequence[Optimizer], beta: float, overlaps: bool) -> None:
        holders = [Pull(lane, optimizer, beta) for lane, optimizer in zip(lanes, optimizers, strict=True)]
        super().__init__(lanes, holders, overlaps)
        self.holding = False
        self._timer = timer_for(self._device)
        self._finite = [Finite(self._device) for _ in lanes]
        self._before = [torch.zeros_like(pull.centre) for pull in holders]
        self._under_way: threading.Event | None = None
        self._seconds: list[Duration] = []

    @classmethod
    def accepts(cls, parts: Parts) -> str | None:
        """No gradient travels that a compressor could compress."""
        if (name := name_of(parts.compressor)) != DENSE:
            return f"sends weights, not gradients: it goes with compressor {DENSE}, not {name}"
        if wire_of(parts.collective) is not None:
            return "sends weights, not gradients, and a wire format would round them; set collective.wire to nothing"
        return super().accepts(parts)

    @classmethod
    def make(cls, workers: Workers, scheduler: Any) -> "Elastic":
        """The driver of these workers."""
        return cls(workers.lanes, workers.optimizers, scheduler.beta, overlaps=workers.engine.distributed)

    def begin(self, step: int, epoch: int) -> None:
        """Copy the weights that the step begins with, and start to sum them over ranks."""
        super().begin(step, epoch)
        for pull, before in zip(self.holders, self._before, strict=True):
            pull.flat.gather_weights(before)
            pull.message.copy_(before)
        if self.overlaps and not self.holding:
            self._under_way = self._start(self._exchange)

    def finish(self) -> None:
        """Wait for the sum."""
        super().finish()
        if self._under_way is not None:
            ended, self._under_way = self._under_way, None
            self._await(ended)
            return
        begin = self._timer.mark()
        self._exchange()
        if self.holding:
            end = self._timer.mark()
            self._timer.synchronize()
            self._seconds = [Duration(self._timer.seconds(begin, end))]

    def take_durations(self) -> list[Duration]:
        """Duration of the sum in the last step with `holding`; one entry, as there is one message."""
        return self._seconds

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """A context for the optimizer's step: the pull comes after it."""
        yield
        with torch.no_grad():
            for pull, before, finite in zip(self.holders, self._before, self._finite, strict=True):
                finite.watch(pull.lane.world.step, pull.message)
                pull.apply(before)

    def _exchange(self) -> None:
        steps: list[Any] = [pull.lane.server.serve(Sum(pull.message)) for pull in self.holders]
        for pull, total in zip(self.holders, run(steps), strict=True):
            if isinstance(total, Tensor) and total.data_ptr() != pull.message.data_ptr():
                pull.message.copy_(total)
