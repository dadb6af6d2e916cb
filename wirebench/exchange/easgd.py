"""The driver of elastic averaging (schedulers/easgd.py): weights travel while the step computes.

A step's message is the weights that the step begins with, so it is on its way from the step's first moment on, and the
pull is applied after the optimizer's own step.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from wirebench.collectives.execution.executor import RequestLog
from wirebench.exchange.driver import run
from wirebench.exchange.finite import Finite
from wirebench.exchange.lane import Lane
from wirebench.exchange.own_weights import together
from wirebench.gradient.optimizer_state import OptimizerState
from wirebench.gradient.requests import Sum
from wirebench.gradient.schedule import Duration
from wirebench.telemetry.timers import timer_for

WEIGHTS, OPTIMIZER, CENTRE = "own.weights", "own.optimizer", "shared.centre"


class Pull:
    """One rank's weights beside the common centre; saved and restored as a compressor's state is.

    optimizer   the rank's; its state is the rank's own too
    takes_over  see Method
    """

    takes_over: ClassVar[bool] = True
    exchanges: ClassVar[str] = "weights"
    weights: ClassVar[str] = WEIGHTS
    keys: ClassVar[Set[str]] = frozenset({WEIGHTS, CENTRE})

    def __init__(self, lane: Lane, optimizer: Optimizer, beta: float) -> None:
        self.lane, self.size = lane, lane.server.communicator.size
        self.optimizer = OptimizerState(optimizer, lane.flat)
        self.strength = beta / self.size
        self.flat = lane.flat
        self.centre = self.flat.gather_weights()
        self.message = torch.empty_like(self.centre)
        self.own: Tensor | None = None
        """The rank's weights while the model holds the centre."""

    def state_dict(self) -> dict[str, Any]:
        """The rank's own weights and optimizer, and the centre, which is the same on all ranks."""
        weights = self.flat.gather_weights() if self.own is None else self.own
        return {WEIGHTS: weights, CENTRE: self.centre, OPTIMIZER: self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; the model's weights are the rank's own then."""
        self.flat.set_weights(state[WEIGHTS].to(self.centre))
        self.centre.copy_(state[CENTRE])
        self.optimizer.load_state_dict(state[OPTIMIZER])

    def take_over(self, states: Sequence[Mapping[str, Any]], joins: bool = False, weight: float = 1.0) -> None:
        """Begin in another world, as far from the centre as the ranks that are taken over were (own_weights.py).

        The optimizer's state is the first one's.
        """
        self.load_state_dict(states[0])
        own = [] if joins else [state[WEIGHTS] for state in states]
        self.flat.set_weights(together(own, self.centre, weight))

    def restart(self) -> None:
        """Begin from the model's current weights."""
        self.flat.gather_weights(self.centre)

    def magnitude(self) -> float:
        """How far the rank's own weights are from the centre, as a sum of magnitudes: what is lost with the rank.

        Its optimizer's state is lost, too, but is in other units.
        """
        weights = self.flat.gather_weights() if self.own is None else self.own
        return float((weights - self.centre).abs().sum(dtype=torch.float64))

    @torch.no_grad()
    def apply(self, before: Tensor) -> None:
        """After the optimizer's step: pull this rank's weights and the centre towards each other.

        before  this rank's weights before that step, overwritten; `message` holds their sum over ranks
        """
        pulls = self.flat.views_of(before.sub_(self.centre))
        torch._foreach_add_([*self.flat.parameters], pulls, alpha=-self.strength)
        self.centre.mul_(1 - self.strength * self.size).add_(self.message, alpha=self.strength)


class Elastic:
    """The driver: gradients do not travel, the weights of all lanes of this process are summed in every step.

    overlaps  the sum runs in a thread beside the step: one lane, as in a process of a real job
    holding   sum after the backward pass instead, in this step, and keep how long it takes
    """

    def __init__(self, lanes: Sequence[Lane], optimizers: Sequence[Optimizer], beta: float, overlaps: bool) -> None:
        self.lanes = lanes
        self.holders = [Pull(lane, optimizer, beta) for lane, optimizer in zip(lanes, optimizers, strict=True)]
        self.holding = False
        self._device = lanes[0].flat.grad.device
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._timer = timer_for(self._device)
        self._finite = [Finite(self._device) for _ in lanes]
        self._before = [torch.zeros_like(pull.centre) for pull in self.holders]
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="exchange") if overlaps else None
        self._under_way: Future[None] | None = None
        self._seconds: list[Duration] = []
        for lane in lanes:
            lane.attach(lambda _: None)

    def begin(self, step: int, epoch: int) -> None:
        """Copy the weights that the step begins with, and start to sum them over ranks."""
        for lane, pull, before in zip(self.lanes, self.holders, self._before, strict=True):
            lane.begin(step, epoch)
            lane.flat.gather_weights(before)
            pull.message.copy_(before)
        if self._pool is not None and not self.holding:
            ready = torch.cuda.current_stream(self._device).record_event() if self._stream is not None else None
            self._under_way = self._pool.submit(self._exchange, ready)

    def enable_sync(self) -> None:
        """Do nothing: no exchange depends on gradients."""

    def finish(self) -> None:
        """Wait for the sum."""
        for lane in self.lanes:
            lane.fill_unused()
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None
            if self._stream is not None:
                torch.cuda.current_stream(self._device).wait_stream(self._stream)
            return
        begin = self._timer.mark()
        self._exchange(None)
        if self.holding:
            end = self._timer.mark()
            self._timer.synchronize()
            self._seconds = [Duration(self._timer.seconds(begin, end))]

    def take_durations(self) -> list[Duration]:
        """Duration of the sum in the last step with `holding`; one entry, as there is one message."""
        return self._seconds

    def take_logs(self) -> list[list[RequestLog]]:
        """Every lane's request."""
        return [lane.server.take_log() for lane in self.lanes]

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """A context for the optimizer's step: the pull comes after it."""
        yield
        with torch.no_grad():
            for pull, before, finite in zip(self.holders, self._before, self._finite, strict=True):
                finite.watch(pull.lane.world.step, pull.message)
                pull.apply(before)

    def met(self, step: int) -> int:
        """Every step has a sum of all ranks."""
        return step

    def settle(self) -> None:
        """Every exchange ends with its step."""

    @contextmanager
    def evaluation_view(self) -> Iterator[None]:
        """Meanwhile the models hold the centre: it is what is evaluated and saved."""
        for pull in self.holders:
            pull.own = pull.flat.gather_weights()
            pull.flat.set_weights(pull.centre)
        try:
            yield
        finally:
            for pull in self.holders:
                assert pull.own is not None
                pull.flat.set_weights(pull.own)
                pull.own = None

    def close(self) -> None:
        """Detach from the models, end the thread."""
        for lane in self.lanes:
            lane.detach()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _exchange(self, ready: torch.cuda.Event | None) -> None:
        steps: list[Any] = [p.lane.server.serve(Sum(p.message)) for p in self.holders]
        if self._stream is None or ready is None:
            totals = run(steps)
        else:
            with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                self._stream.wait_event(ready)
                totals = run(steps)
        for pull, total in zip(self.holders, totals, strict=True):
            if isinstance(total, Tensor) and total.data_ptr() != pull.message.data_ptr():
                pull.message.copy_(total)
