"""The exchanges behind a communication hook: a thread that works DDP's buckets off in their order."""

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.collectives.plan import Collective
from wirebench.comm.attach import attach
from wirebench.comm.peers import agree_on
from wirebench.dropin.ddp_buckets import DENSE_STEPS, DdpBuckets, weights
from wirebench.dropin.meter import Meter
from wirebench.errors import UserError
from wirebench.exchange.driver import Steps, advance, run
from wirebench.gradient import conformance
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Method
from wirebench.gradient.requests import Sum
from wirebench.topology.tree import Topology

PHASES_OF_DDP = ("data", "forward", "backward", "exchange_exposed", "update")


class HookJob:
    """One process's part, from the first bucket on; every rank makes it there.

    device  of the gradients
    state   what `state_dict` returned before a restart, or {}
    """

    def __init__(
        self,
        compressor: Method,
        collective: Collective,
        seed: int,
        warmup_steps: int,
        timeout_seconds: float,
        device: torch.device,
        state: Mapping[str, Any],
    ) -> None:
        self.compressor, self.seed, self.steps = compressor, seed, 0
        self._warmup_steps, self._state, self._device = warmup_steps, state, device
        self.engine = attach(device, timeout_seconds)
        communicator = self.engine.communicators[0]
        parts = {"compressor": conformance.name_of(compressor), "collective": type(collective).__module__}
        agree_on(communicator, "comm_hook: the ranks' jobs differ", parts)
        topology = Topology.of_hosts([peer.host for peer in self.engine.peers])
        self.server = RequestExecutor(communicator, collective, topology)
        self._buckets = DdpBuckets()
        self._meter: Meter | None = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="exchange", daemon=True)
        self._thread.start()

    @property
    def parameters(self) -> set[int]:
        """The `id` of each parameter whose gradient is averaged here."""
        return self._buckets.parameters

    def start(self, given: dist.GradBucket, epoch: int) -> Future[Tensor]:
        """Queue the exchange of a bucket."""
        if given.index() == 0 and self._meter is not None:
            if self.steps > DENSE_STEPS:
                self._meter.end_step(self.steps - 1, [self.server.take_log()])
            self._meter.run()
        dense = self.steps < DENSE_STEPS
        if dense:
            self._buckets.note(given, self.steps)
        future: Future[Tensor] = Future(devices=[self._device] if self._stream is not None else None)
        event = torch.cuda.current_stream(self._device).record_event() if self._stream is not None else None
        steps = self._mean(given.buffer()) if dense else self._exchange(given, epoch)
        self._queue.put(lambda: self._complete(future, steps, event))
        if given.is_last():
            self._end_backward()
        return future

    def report(self) -> dict[str, Any]:
        """See CommHook."""
        if self._meter is None:
            raise UserError(f"comm_hook.report: the first {DENSE_STEPS} steps are not done yet")
        told = self._meter.report()
        phases = {name: None if name in PHASES_OF_DDP else value for name, value in told["phases"].items()}
        about = {"engine": self.engine.name, "backend": self.engine.backend, "world_size": self.engine.size}
        about |= {"compressor": conformance.name_of(self.compressor), "messages": len(self._buckets.groups)}
        return {**about, **told, "phases": phases}

    def state_dict(self) -> dict[str, Any]:
        """The compressor's state, and the sizes of the layers that it belongs to."""
        return {"sizes": self._buckets.sizes(), "compressor": self.compressor.state_dict()}

    def close(self) -> None:
        """End the thread, leave the group."""
        self._queue.put(None)
        self._thread.join()
        for closer in self.engine.closers:
            closer()

    def _end_backward(self) -> None:
        self.steps += 1
        if self.steps != DENSE_STEPS:
            return
        if self.compressor.whole_model and len(self._buckets.groups) > 1:
            name, reason = conformance.name_of(self.compressor), self.compressor.whole_model
            raise UserError(f"comm_hook: {name!r} needs the model in one bucket: {reason}; raise DDP's bucket_cap_mb")
        self._meter = Meter(self.engine, sum(self._buckets.sizes()), self._warmup_steps)
        self.server.take_log()
        if not self._state:
            return
        if self._state["sizes"] != self._buckets.sizes():
            raise UserError("comm_hook.load_state_dict: DDP has cut other buckets than before; the state does not fit")
        kept = self._state["compressor"]
        self.compressor.load_state_dict({name: tensor.to(self._device) for name, tensor in kept.items()})

    def _mean(self, buffer: Tensor) -> Steps:
        total = yield from self.server.serve(Sum(buffer))
        assert isinstance(total, Tensor)
        return total.div_(self.engine.size)

    def _exchange(self, given: dist.GradBucket, epoch: int) -> Steps:
        assert self._meter is not None
        param = weights(given.parameters()) if self.compressor.reads_weights else given.buffer().new_empty(0)
        bucket = self._buckets.bucket(given, param)
        world = ExchangeContext(self.engine.ranks[0], self.engine.size, self.steps, epoch, self.seed)
        clock = self._meter.clock
        exchange = conformance.exchange(self.compressor, bucket, world)
        return advance(exchange, self.server.serve, lambda: clock.phase("compress", "compress"))

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            work()

    def _complete(self, future: Future[Tensor], steps: Steps, ready: torch.cuda.Event | None) -> None:
        """In the thread: exchange, and hand the average to DDP; an error ends the backward pass that waits for it."""
        try:
            if self._stream is None or ready is None:
                future.set_result(run([steps])[0])
                return
            with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                self._stream.wait_event(ready)
                future.set_result(run([steps])[0])
        except Exception as error:
            future.set_exception(error)  # type: ignore[arg-type]  # its annotation is wrong: it takes any exception
