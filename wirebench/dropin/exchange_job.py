"""Exchanges behind a hook of PyTorch's: a thread that works a backward pass's buckets off in their order."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.futures import Future

from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.collectives.plan import Collective
from wirebench.comm.engine import Engine
from wirebench.dropin.meter import Meter
from wirebench.dropin.overflow import Overflow
from wirebench.errors import UserError
from wirebench.exchange.advance import Steps, advance, run
from wirebench.gradient import conformance
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Method
from wirebench.gradient.flat import Bucket
from wirebench.topology.tree import Topology
from wirebench.utils.background import Background, SideStream


class Waiting(NamedTuple):
    """A bucket whose exchange has not begun: its gradient, the exchange, and the future of its average."""

    buffer: Tensor
    steps: Steps
    future: Future[Tensor]


class ExchangeJob:
    """One process's exchanges of one model.

    overflow  with a scaler, and a compressor that remembers: no exchange begins before the step's last bucket is there,
              since all ranks agree first that none of them has overflowed
    steps     steps of this process that have ended
    failed    the first error of an exchange. From then on no gradient is averaged; `check` raises it
    """

    def __init__(
        self,
        engine: Engine,
        compressor: Method,
        collective: Collective,
        seed: int,
        device: torch.device,
        overflow: Overflow | None,
    ) -> None:
        self.engine, self.compressor, self.seed, self.steps = engine, compressor, seed, 0
        self.failed: Exception | None = None
        topology = Topology.of_hosts([peer.host for peer in engine.peers])
        self.server = RequestExecutor(engine.communicators[0], collective, topology)
        for each in (compressor, self.server):
            each.prepare(device)
        self._device, self._overflow = device, overflow
        self._meter: Meter | None = None
        self._waiting: list[Waiting] = []
        self._futures: list[Future[Tensor]] = []
        self._side = SideStream(device)
        self._background = Background("exchange")

    def check(self) -> None:
        """Wait for the exchanges of the step that ends, and raise the error of one that has failed."""
        for future in self._futures:
            future.wait()
        if self.failed is not None:
            raise self.failed

    def numbers(self, about: dict[str, Any], unseen: Sequence[str]) -> dict[str, Any]:
        """The report: `about`, what the meter knows, and None for the phases that cannot be seen."""
        assert self._meter is not None
        told = self._meter.report()
        phases = {name: None if name in unseen else value for name, value in told["phases"].items()}
        engine = {"engine": self.engine.name, "backend": self.engine.backend, "world_size": self.engine.size}
        return {**engine, "compressor": conformance.name_of(self.compressor), **about, **told, "phases": phases}

    def close(self) -> None:
        """End the thread, leave the group."""
        self._background.wait()
        self.engine.detach()

    def _forget(self) -> None:
        """Of a backward pass that has failed nothing is left."""
        self._waiting, self._futures = [], []

    def _queue(self, buffer: Tensor, steps: Steps) -> Future[Tensor]:
        """The exchange is to begin with the next `_launch`."""
        future: Future[Tensor] = Future(devices=[self._device] if self._device.type == "cuda" else None)
        self._waiting.append(Waiting(buffer, steps, future))
        self._futures.append(future)
        return future

    def _launch(self, guard: Overflow | None) -> None:
        """Let the thread begin all that is queued, as soon as the current stream is done with the gradients."""
        averages = _averages if guard is None else partial(_guarded, guard)
        self._background.submit(partial(self._complete, self._waiting, averages, self._side.mark()))
        self._waiting = []

    def _exchange(self, bucket: Bucket, step: int, epoch: int) -> Steps:
        assert self._meter is not None
        world = ExchangeContext(self.engine.ranks[0], self.engine.size, step, epoch, self.seed)
        exchange = conformance.exchange(self.compressor, bucket, world)
        return advance(exchange, self.server.serve, partial(self._meter.clock.phase, "compress", "compress"))

    def _complete(
        self,
        waiting: Sequence[Waiting],
        averages: Callable[[Sequence[Waiting]], Sequence[Tensor]],
        ready: torch.cuda.Event | None,
    ) -> None:
        """Exchange, and complete the futures; runs in the exchange's thread.

        After an error futures get the gradients without averaging: their waiter might hide an error, and `check` raises
        it when PyTorch has done its part of the backward pass.
        """
        try:
            if self.failed is None:
                with self._side.behind(ready):
                    for each, average in zip(waiting, averages(waiting), strict=True):
                        each.future.set_result(average)
        except Exception as error:
            self.failed = error
        for each in waiting:
            if not each.future.done():
                each.future.set_result(each.buffer)


def refuse_whole_model(maker: str, compressor: Method, buckets: int, remedy: str) -> None:
    """UserError for a compressor that works on the whole model only, where there are several buckets."""
    if compressor.whole_model and buckets > 1:
        name, reason = conformance.name_of(compressor), compressor.whole_model
        raise UserError(f"{maker}: {name!r} needs the model in one bucket: {reason}; {remedy}")


def _averages(waiting: Sequence[Waiting]) -> list[Tensor]:
    return [run([each.steps])[0] for each in waiting]


def _guarded(overflow: Overflow, waiting: Sequence[Waiting]) -> list[Tensor]:
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
