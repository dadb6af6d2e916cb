"""The exchanges behind a communication hook: a thread that works DDP's buckets off in their order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.collectives.plan import Collective
from wirebench.comm.attach import Group, attach
from wirebench.dropin.ddp_buckets import DdpBuckets, weights
from wirebench.dropin.meter import Meter
from wirebench.dropin.overflow import Overflow, overflow_of
from wirebench.dropin.replicas import agree
from wirebench.errors import UserError
from wirebench.exchange.advance import Steps, advance, run
from wirebench.gradient import conformance
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Method
from wirebench.gradient.requests import Sum
from wirebench.topology.tree import Topology
from wirebench.utils.background import Background

PHASES_OF_DDP = ("data", "forward", "backward", "exchange_exposed", "update")


class _Waiting(NamedTuple):
    """A bucket whose exchange has not begun: DDP's buffer, the exchange, and the future that DDP waits for."""

    buffer: Tensor
    steps: Steps
    future: Future[Tensor]


class HookJob:
    """One process's part, from the first bucket on; every rank makes it there.

    facts   what all ranks must have alike, by name
    device  of the gradients
    group   the process group of the model; None: all ranks
    state   what `state_dict` returned before a restart, or {}
    failed  the first error of an exchange. From then on no gradient is averaged; `check` raises it
    With a `scaler`, and a compressor that remembers, no exchange begins before the step's last bucket is there: that
    none of them has overflowed anywhere is agreed on first (overflow.py).
    """

    def __init__(
        self,
        compressor: Method,
        collective: Collective,
        scaler: torch.amp.GradScaler | None,
        seed: int,
        warmup_steps: int,
        timeout_seconds: float,
        facts: Mapping[str, Any],
        device: torch.device,
        group: Group,
        state: Mapping[str, Any],
    ) -> None:
        self.compressor, self.seed, self.steps = compressor, seed, 0
        self.failed: Exception | None = None
        self._before: int = state.get("steps", 0)
        self._warmup_steps, self._state, self._device = warmup_steps, state, device
        self.engine = attach(device, timeout_seconds, group)
        agree(self.engine, "comm_hook", {**facts, **{f"state.{key}": state.get(key) for key in ("steps", "epoch")}})
        topology = Topology.of_hosts([peer.host for peer in self.engine.peers])
        self.server = RequestExecutor(self.engine.communicators[0], collective, topology)
        self._buckets = DdpBuckets()
        self._meter: Meter | None = None
        self._overflow = overflow_of(self.engine, compressor, scaler)
        self._waiting: list[_Waiting] = []
        self._futures: list[Future[Tensor]] = []
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._background = Background("exchange")

    @property
    def parameters(self) -> set[int]:
        """The `id` of each parameter whose gradient is averaged here."""
        return self._buckets.parameters

    def start(self, given: dist.GradBucket, epoch: int) -> Future[Tensor]:
        """Queue the exchange of a bucket."""
        if given.index() == 0:
            self._begin_step()
        dense = not self._buckets.settled
        if dense:
            conformance.refuse_dtype(self.compressor, given.buffer().dtype)
            self._buckets.note(given)
        future: Future[Tensor] = Future(devices=[self._device] if self._stream is not None else None)
        event = torch.cuda.current_stream(self._device).record_event() if self._stream is not None else None
        steps = self._mean(given.buffer()) if dense else self._exchange(given, epoch)
        self._waiting.append(_Waiting(given.buffer(), steps, future))
        self._futures.append(future)
        guard = None if dense else self._overflow
        if guard is None or given.is_last():
            averages = _averages if guard is None else partial(_guarded, guard)
            self._background.submit(partial(self._complete, self._waiting, averages, event))
            self._waiting = []
        if given.is_last():
            self._end_backward()
        return future

    def check(self) -> None:
        """Wait for the exchanges of the step that ends, and raise the error of one that has failed."""
        for future in self._futures:
            future.wait()
        if self.failed is not None:
            raise self.failed

    def report(self) -> dict[str, Any]:
        """See CommHook."""
        if self._meter is None:
            raise UserError("comm_hook.report: no step is compressed yet; the first ones are dense")
        told = self._meter.report()
        phases = {name: None if name in PHASES_OF_DDP else value for name, value in told["phases"].items()}
        about = {"engine": self.engine.name, "backend": self.engine.backend, "world_size": self.engine.size}
        about |= {"compressor": conformance.name_of(self.compressor), "messages": len(self._buckets.groups)}
        return {**about, **told, "phases": phases}

    def state_dict(self) -> dict[str, Any]:
        """The compressor's state, its steps, and the sizes of the layers that it belongs to."""
        if self._state and not self._buckets.settled:  # the state to resume from is not loaded yet
            return {name: self._state[name] for name in ("sizes", "compressor")} | {"steps": self._before}
        steps = self._before + self.steps - self._buckets.dense_steps
        return {"sizes": self._buckets.sizes(), "compressor": self.compressor.state_dict(), "steps": steps}

    def close(self) -> None:
        """End the thread, leave the group."""
        self._background.wait()
        for closer in self.engine.closers:
            closer()

    def _begin_step(self) -> None:
        """The first bucket of a step is there, so DDP has waited for all exchanges of the one before."""
        self._waiting, self._futures = [], []  # of a backward pass that has failed
        if self._meter is None:
            return
        served = self.server.take_log()
        if self.steps > self._buckets.dense_steps:  # else these are requests of the dense steps
            self._meter.end_step(self.steps - 1, [served])
        self._meter.run()

    def _end_backward(self) -> None:
        self.steps += 1
        if not self._buckets.settled or self._meter is not None:
            return
        if self.compressor.whole_model and len(self._buckets.groups) > 1:
            name, reason = conformance.name_of(self.compressor), self.compressor.whole_model
            raise UserError(f"comm_hook: {name!r} needs the model in one bucket: {reason}; raise DDP's bucket_cap_mb")
        self._meter = Meter(self.engine, sum(self._buckets.sizes()), self._warmup_steps)
        if not self._state:
            return
        if self._state["sizes"] != self._buckets.sizes():
            raise UserError("comm_hook.load_state_dict: DDP has cut other buckets than before; the state does not fit")
        kept = self._state["compressor"]
        self.compressor.load_state_dict({name: tensor.to(self._device) for name, tensor in kept.items()})

    def _mean(self, buffer: Tensor) -> Steps:
        total = yield from self.server.serve(Sum(buffer))
        assert isinstance(total, Tensor)
        # A learning rate that is meant for updates is none for gradients.
        return total.zero_() if self.compressor.makes_update else total.div_(self.engine.size)

    def _exchange(self, given: dist.GradBucket, epoch: int) -> Steps:
        assert self._meter is not None
        param = weights(given.parameters()) if self.compressor.reads_weights else given.buffer().new_empty(0)
        bucket = self._buckets.bucket(given, param)
        # The compressor's first step is 0: of the dense ones before it knows nothing.
        step = self._before + self.steps - self._buckets.dense_steps
        world = ExchangeContext(self.engine.ranks[0], self.engine.size, step, epoch, self.seed)
        exchange = conformance.exchange(self.compressor, bucket, world)
        return advance(exchange, self.server.serve, partial(self._meter.clock.phase, "compress", "compress"))

    def _complete(
        self,
        waiting: Sequence[_Waiting],
        averages: Callable[[Sequence[_Waiting]], Sequence[Tensor]],
        ready: torch.cuda.Event | None,
    ) -> None:
        """Exchange, and hand averages to DDP; runs in the exchange's thread.

        After an error DDP gets the gradients without averaging. DDP casts a future's value to a tensor, and so would
        hide the error; `check` raises it when DDP has done its part of the backward pass.
        """
        try:
            if self.failed is None:
                with self._on_stream(ready):
                    for each, average in zip(waiting, averages(waiting), strict=True):
                        each.future.set_result(average)
        except Exception as error:
            self.failed = error
        for each in waiting:
            if not each.future.done():
                each.future.set_result(each.buffer)

    @contextmanager
    def _on_stream(self, ready: torch.cuda.Event | None) -> Iterator[None]:
        """On the exchange's own stream, after `ready`; on a CPU there is none."""
        if self._stream is None or ready is None:
            yield
            return
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            yield


def _averages(waiting: Sequence[_Waiting]) -> list[Tensor]:
    return [run([each.steps])[0] for each in waiting]


def _guarded(overflow: Overflow, waiting: Sequence[_Waiting]) -> list[Tensor]:
    """The averages of a step whose loss is scaled; infinity on all ranks where one of them has overflowed."""
    buffers = [each.buffer for each in waiting]
    if overflow.anywhere(buffers):
        return buffers
    overflow.unscale(buffers)
    for buffer, average in zip(buffers, _averages(waiting), strict=True):
        if average.data_ptr() != buffer.data_ptr():  # a compressor may return a tensor of its own, and keep it
            buffer.copy_(average)
    overflow.rescale(buffers)
    return buffers
