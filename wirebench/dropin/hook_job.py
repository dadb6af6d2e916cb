"""The exchanges behind DDP's communication hook: its buckets, of which the first steps' are exchanged dense."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from wirebench.collectives.plan import Collective
from wirebench.comm.attach import Group, attach
from wirebench.dropin.ddp_buckets import DdpBuckets, weights
from wirebench.dropin.exchange_job import ExchangeJob, refuse_whole_model
from wirebench.dropin.meter import Meter
from wirebench.dropin.overflow import overflow_of
from wirebench.dropin.replicas import agree
from wirebench.errors import UserError
from wirebench.exchange.advance import Steps
from wirebench.gradient import conformance
from wirebench.gradient.contract import Method
from wirebench.gradient.requests import Sum

PHASES_OF_DDP = ("data", "forward", "backward", "exchange_exposed", "update")


class HookJob(ExchangeJob):
    """One process's part, from the first bucket on; every rank makes it there.

    facts   what all ranks must have alike, by name
    device  of the gradients
    group   the process group of the model; None: all ranks
    state   what `state_dict` returned before a restart, or {}
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
        self._before: int = state.get("steps", 0)
        self._warmup_steps, self._state = warmup_steps, state
        engine = attach(device, timeout_seconds, group)
        agree(engine, "comm_hook", {**facts, **{f"state.{key}": state.get(key) for key in ("steps", "epoch")}})
        super().__init__(engine, compressor, collective, seed, device, overflow_of(engine, compressor, scaler))
        self._buckets = DdpBuckets()

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
        steps = self._mean(given.buffer()) if dense else self._compressed(given, epoch)
        future = self._queue(given.buffer(), steps)
        guard = None if dense else self._overflow
        if guard is None or given.is_last():
            self._launch(guard)
        if given.is_last():
            self._end_backward()
        return future

    def report(self) -> dict[str, Any]:
        """See CommHook."""
        if self._meter is None:
            raise UserError("comm_hook.report: no step is compressed yet; the first ones are dense")
        return self.numbers({"messages": len(self._buckets.groups)}, PHASES_OF_DDP)

    def state_dict(self) -> dict[str, Any]:
        """The compressor's state, its steps, and the sizes of the layers that it belongs to."""
        if self._state and not self._buckets.settled:  # the state to resume from is not loaded yet
            return {name: self._state[name] for name in ("sizes", "compressor")} | {"steps": self._before}
        steps = self._before + self.steps - self._buckets.dense_steps
        return {"sizes": self._buckets.sizes(), "compressor": self.compressor.state_dict(), "steps": steps}

    def _begin_step(self) -> None:
        """The first bucket of a step is there, so DDP has waited for all exchanges of the one before."""
        self._forget()
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
        refuse_whole_model("comm_hook", self.compressor, len(self._buckets.groups), "raise DDP's bucket_cap_mb")
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

    def _compressed(self, given: dist.GradBucket, epoch: int) -> Steps:
        param = weights(given.parameters()) if self.compressor.reads_weights else given.buffer().new_empty(0)
        # The compressor's first step is 0: of the dense ones before it knows nothing.
        step = self._before + self.steps - self._buckets.dense_steps
        return self._exchange(self._buckets.bucket(given, param), step, epoch)
