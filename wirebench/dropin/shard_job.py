"""The exchanges behind FSDP2's all-reduce hooks: each rank's shards, averaged over the replicas of its model."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wirebench.collectives.plan import Collective
from wirebench.comm.engine import Engine
from wirebench.dropin.exchange_job import ExchangeJob
from wirebench.dropin.fsdp_units import Unit
from wirebench.dropin.meter import Meter
from wirebench.dropin.overflow import Overflow, remembers
from wirebench.errors import UserError
from wirebench.exchange.holders import restore
from wirebench.gradient import conformance
from wirebench.gradient.contract import Method
from wirebench.gradient.flat import Bucket
from wirebench.utils.tensor_tree import on_device

PHASES_OF_FSDP = ("data", "forward", "backward", "update")


class ShardJob(ExchangeJob):
    """One process's part of the exchanges between replicas.

    Units are exchanged in their order, which all ranks share: one that comes early waits for those before it. A unit
    that no sample of this rank's has passed is exchanged as zeros when the backward pass is over.
    """

    def __init__(
        self,
        engine: Engine,
        units: Sequence[Unit],
        compressor: Method,
        collective: Collective,
        scaler: torch.amp.GradScaler | None,
        seed: int,
        warmup_steps: int,
    ) -> None:
        guards = scaler is not None and scaler.is_enabled() and remembers(compressor)
        guard = ShardedOverflow(engine, scaler, units) if guards and scaler is not None else None
        super().__init__(engine, compressor, collective, seed, units[0].device, guard)
        self.units = units
        self._model = tuple(layer for unit in units for layer in unit.layers)
        self._meter = Meter(engine, sum(layer.numel for layer in self._model), warmup_steps)
        self._arrived: dict[int, Tensor] = {}
        self._queued = 0
        self._timed = False
        self._hooks: torch.cuda.Stream | None = None
        """The stream on which FSDP calls hooks, and later reads the gradients."""

    @property
    def numel(self) -> int:
        """Elements of this rank's shards."""
        return sum(layer.numel for layer in self._model)

    @property
    def runs(self) -> bool:
        """Whether a unit's gradient has come in this step."""
        return bool(self._arrived)

    def arrive(self, place: int, shard: Tensor, epoch: int) -> None:
        """A unit's shard, summed over the shards' ranks. It becomes zeros, to which `finish` adds the average."""
        unit = self.units[place]
        unit.refuse_changes(shard)
        conformance.refuse_dtype(self.compressor, shard.dtype)
        if place in self._arrived:
            raise UserError(
                f"compress_replicas: the gradient of {unit.label} came twice in a backward pass. Where a module runs "
                "twice in a forward pass, call fully_shard for its caller alone; checkpointing needs "
                "use_reentrant=False"
            )
        if not self._arrived:
            self._begin_step()
        self._hooks = torch.cuda.current_stream(self._device) if self._stream is not None else None
        mine = shard[unit.span].div(unit.divisor)
        shard.zero_()
        self._arrived[place] = mine
        self._queue_next(epoch)

    def finish(self, epoch: int) -> None:
        """The backward pass is over: wait for the averages, and add them to the gradients of the parameters."""
        if self._hooks is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._hooks)
        like = next(iter(self._arrived.values()))
        for place, unit in enumerate(self.units):
            if place not in self._arrived:
                self._arrived[place] = like.new_zeros(unit.span.stop)
        self._queue_next(epoch)
        if self._overflow is not None:
            self._launch(self._overflow)
        assert self._meter is not None
        try:
            with self._meter.clock.phase("exchange_exposed"):
                self.check()
            for unit, future in zip(self.units, self._futures, strict=True):
                unit.add(future.value())
        finally:
            self._forget()
        self.steps += 1

    def report(self) -> dict[str, Any]:
        """See Replicas."""
        if not self.steps:
            raise UserError("compress_replicas: no step is done yet")
        about = {"shards": self.units[0].shards, "parameters": self.numel, "messages": len(self.units)}
        return self.numbers(about, PHASES_OF_FSDP)

    def _begin_step(self) -> None:
        """The first unit of a step is there: the step before has ended, with all that the loop does between them."""
        assert self._meter is not None
        served = self.server.take_log()
        if self._timed:
            self._meter.end_step(self.steps - 1, [served])
        self._meter.run()
        self._timed = True

    def _forget(self) -> None:
        super()._forget()
        self._arrived, self._queued = {}, 0

    def _queue_next(self, epoch: int) -> None:
        """Queue the modules that are next in order and have arrived."""
        while self._queued in self._arrived:
            place, self._queued = self._queued, self._queued + 1
            unit, gradient = self.units[place], self._arrived[place]
            param = unit.weights() if self.compressor.reads_weights else gradient.new_empty(0)
            bucket = Bucket(place, gradient, param, unit.layers, self._model)
            self._queue(gradient, self._exchange(bucket, self.steps, epoch))
            if self._overflow is None:
                self._launch(None)

    def layout(self) -> dict[str, int]:
        """Elements of each layer by name, in order: what a state belongs to."""
        return {layer.name: layer.numel for layer in self._model}

    def load(self, states: Sequence[Mapping[str, Any]], joins: bool) -> None:
        """Begin with what was saved of jobs with this layout."""
        kept = [on_device(state["compressor"], self._device) for state in states]
        restore(self.compressor, kept, joins, self.engine.size / states[0]["replicas"])
        self.steps = states[0]["steps"]


class ShardedOverflow(Overflow):
    """All ranks of all replicas agree: each has a part of the gradient, and a step is skipped by all or by none."""

    def __init__(self, engine: Engine, scaler: torch.amp.GradScaler, units: Sequence[Unit]) -> None:
        super().__init__(engine, scaler)
        mesh: Any = units[0].parameters[0]
        self._mesh = mesh.device_mesh

    def total(self, mine: Tensor) -> Tensor:
        """The sum over replicas, then over the ranks that share a replica: the backward pass has done with them."""
        total = self.engine.sum_over_ranks([mine])
        for group in self._mesh.get_all_groups():
            dist.all_reduce(total, group=group)
        return total
