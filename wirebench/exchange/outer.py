"""The driver of local steps with an outer optimizer (schedulers/outer.py): differences of weights travel, now and then.

A fragment's difference is sent when it is due and applied `delay` steps later, so its exchange has that long beside the
training. Fragments are buckets: a compressor gets the difference where it else gets a gradient.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from wirebench.collectives.execution.executor import RequestLog
from wirebench.errors import Diverged, UserError
from wirebench.exchange.driver import Steps, advance, run
from wirebench.exchange.lane import Lane
from wirebench.exchange.own_weights import together
from wirebench.gradient import conformance
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.flat import Bucket
from wirebench.gradient.optimizer_state import OptimizerState
from wirebench.gradient.schedule import OuterRule
from wirebench.telemetry.clock import Clock

NEVER = -1
_OWN, _SHARED = "own.outer.", "shared.outer."


class Anchored:
    """One rank's weights beside the anchor that all ranks share; saved and restored as a compressor's state is.

    anchor    the weights that the outer optimizer updates; velocity: its momentum; all flat, in backward order
    message   a fragment's difference, and later the ranks' mean of it
    due       by fragment, the step after which its mean is applied; NEVER: nothing is under way
    """

    exchanges: ClassVar[str] = "weights' differences"
    weights: ClassVar[str] = f"{_OWN}weights"

    def __init__(self, lane: Lane, optimizer: Optimizer, rule: OuterRule) -> None:
        self.lane, self.rule = lane, rule
        self.optimizer = OptimizerState(optimizer, lane.flat)
        self.param = lane.flat.param
        self.anchor = self.param.clone()
        self.velocity = torch.zeros_like(self.param)
        self.message = torch.zeros_like(self.param)
        self.due = torch.full((len(lane.buckets),), NEVER, dtype=torch.int64)
        self.own: Tensor | None = None
        """The rank's weights while the model holds the anchor."""

    @property
    def takes_over(self) -> bool:
        """See Method: it is for the compressor to say."""
        return self.lane.compressor.takes_over

    def state_dict(self) -> dict[str, Any]:
        """The compressor's state, the rank's own weights and optimizer, and what all ranks share."""
        weights = self.param if self.own is None else self.own
        mine = {"weights": weights, "optimizer": self.optimizer.state_dict()}
        shared = {
            "anchor": self.anchor, "velocity": self.velocity, "message": self.message,
            "due": self.due, "cuts": self._cuts(),
        }  # fmt: skip
        return {
            **self.lane.compressor.state_dict(),
            **{f"{_OWN}{name}": value for name, value in mine.items()},
            **{f"{_SHARED}{name}": value for name, value in shared.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; the model's weights are the rank's own then."""
        self.lane.compressor.load_state_dict(_compressors(state))
        due, cuts = self._load(state)
        if torch.equal(cuts, self._cuts()):
            self.due = due
        else:
            self._land(due, cuts)

    def take_over(self, states: Sequence[Mapping[str, Any]], joins: bool = False, weight: float = 1.0) -> None:
        """Begin in another world, as far from the anchor as the ranks that are taken over were (own_weights.py).

        The inner optimizer's state is the first one's. What is under way is applied now: the other world counts its
        steps otherwise.
        """
        due, cuts = self._load(states[0])
        own = [] if joins else [state[self.weights] for state in states]
        self.param.copy_(together(own, self.anchor, weight))
        self._land(due, cuts)
        self.lane.compressor.take_over([_compressors(state) for state in states], joins, weight)

    def restart(self) -> None:
        """Begin from the model's weights, as they are now, with nothing remembered of any exchange."""
        self.anchor.copy_(self.param)
        self.velocity.zero_()
        self.due.fill_(NEVER)

    def _load(self, state: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Weights and what belongs to them; `due` and the cuts of the fragments that it is of."""
        self.param.copy_(state[self.weights])
        self.optimizer.load_state_dict(state[f"{_OWN}optimizer"])
        for name, mine in (("anchor", self.anchor), ("velocity", self.velocity), ("message", self.message)):
            mine.copy_(state[f"{_SHARED}{name}"])
        due, cuts = state[f"{_SHARED}due"].cpu().clone(), state.get(f"{_SHARED}cuts")
        if cuts is None and due.shape != self.due.shape:  # of before cuts were saved
            raise UserError("train.resume: does not say how fragments are cut; go on with its own scheduler.fragments")
        return due, self._cuts() if cuts is None else cuts.cpu()

    def _land(self, due: Tensor, cuts: Tensor) -> None:
        """Apply the means that are under way, of fragments with these cuts, although their delay is not over."""
        for at, (start, stop) in zip(due.tolist(), cuts.tolist(), strict=True):
            if at != NEVER:
                self.apply(slice(start, stop))
        self.due.fill_(NEVER)

    def _cuts(self) -> Tensor:
        """Where each fragment begins and ends, shape (fragments, 2)."""
        return torch.tensor([(bucket.start, bucket.stop) for bucket in self.lane.buckets])

    def magnitude(self) -> float | None:
        """How far the rank's own weights are from the anchor, and what its compressor remembers of such differences.

        As sums of magnitudes. The rank's optimizer's state is lost with it, too, but is in other units.
        """
        weights, held = self.param if self.own is None else self.own, self.lane.compressor.magnitude()
        return None if held is None else held + float((weights - self.anchor).abs().sum(dtype=torch.float64))

    def put(self, bucket: Bucket) -> Bucket:
        """The fragment's difference, in place of its gradient."""
        piece = slice(bucket.start, bucket.stop)
        torch.sub(self.anchor[piece], self.param[piece], out=self.message[piece])
        return replace(bucket, grad=self.message[piece], param=self.anchor[piece])

    def apply(self, piece: slice) -> None:
        """Let the outer optimizer step with this piece of the mean difference, and bring the weights to the anchor."""
        rule = self.rule
        mean, anchor, velocity = self.message[piece], self.anchor[piece], self.velocity[piece]
        if rule.momentum:
            velocity.mul_(rule.momentum).add_(mean)
            mean = mean.add(velocity, alpha=rule.momentum) if rule.nesterov else velocity
        anchor.sub_(mean, alpha=rule.rate)
        self.param[piece].lerp_(anchor, 1 - rule.keep)


def _compressors(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if not name.startswith((_OWN, _SHARED))}


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
        """Nothing waits for gradients."""

    def finish(self) -> None:
        """Each rank's gradient is its own."""
        for lane in self.lanes:
            lane.fill_unused()

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """Around the optimizer's step: after it fragments are applied, and sent, that are due.

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
        """The last step after which a fragment was sent that is applied by now: each rank has begun that one."""
        return self._met

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
            holder.own = holder.param.clone()
            holder.param.copy_(holder.anchor)
        try:
            yield
        finally:
            for holder in self.holders:
                assert holder.own is not None
                holder.param.copy_(holder.own)
                holder.own = None

    def close(self) -> None:
        """Detach from the models, end the thread."""
        for lane in self.lanes:
            lane.detach()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _send(self, number: int) -> None:
        # Methods that change with the step (a factor in turn, a leader in turn) count exchanges, not local steps.
        worlds = [replace(lane.world, step=self._step // self.rule.every) for lane in self.lanes]
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
        for holder in self.holders:
            bucket = holder.lane.buckets[number]
            if not bool(holder.message[bucket.start : bucket.stop].isfinite().all()):
                raise Diverged(f"step {self._step}: a worker's weights are no longer finite")
            holder.apply(slice(bucket.start, bucket.stop))
            holder.due[number] = NEVER
        self._met = max(self._met, self._step - self.rule.delay)

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
    """Average the fragment over ranks, in place; `world` is that of the step in which it was sent."""
    with torch.no_grad():
        exchange = conformance.exchange(lane.compressor, fragment, world)
        average: Tensor = yield from advance(exchange, lane.server.serve, lane.compressing)
        if average.data_ptr() != fragment.grad.data_ptr():
            fragment.grad.copy_(average)
    return fragment.grad
