"""The exchanges behind FSDP2's all-reduce hooks: each rank's shards, averaged over the replicas of its model."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wirebench.collectives.plan import Collective
from wirebench.comm.engine import Engine
from wirebench.costmodel.piecewise import Points
from wirebench.dropin.exchange_job import ExchangeJob
from wirebench.dropin.fsdp_units import Unit
from wirebench.dropin.meter import Meter
from wirebench.dropin.overflow import overflow_of
from wirebench.dropin.shard_cut import ShardCut
from wirebench.errors import UserError
from wirebench.exchange.holders import restore
from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient import conformance
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Method
from wirebench.profiling.exchange_timer import time_buckets
from wirebench.utils.tensor_tree import on_device

PHASES_OF_FSDP = ("data", "forward", "backward", "update")


class ShardJob(ExchangeJob):
    """One process's part of the exchanges between replicas.

    Units are exchanged in their order, which all ranks share: one that comes early waits for those before it, and units
    that the schedule merges for the last of them. A unit that no sample of this rank's has passed is exchanged as zeros
    when the backward pass is over.
    """

    def __init__(
        self,
        engine: Engine,
        units: Sequence[Unit],
        compressor: Method,
        collective: Collective,
        scheduler: Scheduler,
        scaler: torch.amp.GradScaler | None,
        seed: int,
        warmup_steps: int,
    ) -> None:
        guard = overflow_of(engine, compressor, scaler, _groups_of(units))
        super().__init__(engine, compressor, collective, seed, units[0].device, guard)
        self.units = units
        self._model = tuple(layer for unit in units for layer in unit.layers)
        self.cut = ShardCut(engine, units, scheduler)
        # Steps in which a cut is learned do not count.
        self._meter = Meter(engine, sum(layer.numel for layer in self._model), max(warmup_steps, self.cut.steps))
        self._fresh = copy.deepcopy(compressor) if self.cut.steps else None
        """A compressor without memory, of which trials take copies."""
        self._arrived: set[int] = set()
        self._gradients: dict[int, Tensor] = {}
        """By group, the gradients of its units that have come in."""
        self._queued = 0
        self._pass = -1
        """Autograd's number of the backward pass in which they have come."""
        self._dtype: torch.dtype | None = None
        """In which FSDP reduces all units: what all messages and residuals are laid out for."""
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
        """A unit's shard, summed over the shards' ranks. It becomes zeros, to which `finish` adds the average.

        A unit that comes again in a pass is added to what came, if no exchange begins before the pass ends.
        """
        unit = self.units[place]
        unit.refuse_changes(shard)
        conformance.refuse_dtype(self.compressor, shard.dtype)
        self._refuse_dtypes(unit, shard.dtype)
        now, again = torch._C._current_graph_task_id(), place in self._arrived
        if again and not (self.cut.waits and now == self._pass):
            raise UserError(
                f"compress_replicas: the gradient of {unit.label} came twice in a backward pass. Where a module runs "
                "twice before it, take scheduler=schedulers.build('single'); checkpointing needs "
                "use_reentrant=False; after a backward pass that failed, close() it and call compress_replicas again"
            )
        if not self._arrived:
            self._begin_step()
            self._pass = now
        self._hooks = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        gradient = self._place_of(place, shard)
        if again:
            gradient.add_(shard[unit.span] / unit.divisor)
        else:
            torch.div(shard[unit.span], unit.divisor, out=gradient)
        shard.zero_()
        self._arrived.add(place)
        self.cut.arrived(place)
        if not self.cut.holding:
            self._queue_next(epoch)

    def finish(self, epoch: int) -> None:
        """The backward pass is over: wait for the averages, and add them to the gradients of the parameters."""
        if self._hooks is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._hooks)
        like = next(iter(self._gradients.values()))
        for place, unit in enumerate(self.units):
            if place not in self._arrived:
                unit.refuse_order()  # a module that was frozen is to have no gradient, not what residuals have of it
            self._place_of(place, like)
            self._arrived.add(place)
        self._queue_next(epoch)
        if self._overflow is not None:
            self._launch(self._overflow)
        assert self._meter is not None
        try:
            with self._meter.clock.phase("exchange_exposed"):
                self.check()
            for run, future in zip(self.cut.groups, self._futures, strict=True):
                average = future.value()
                for place in run:
                    self.units[place].add(average[self.cut.slice(run, place)])
            if self.cut.steps == 1:
                self._meter.pause()  # what is measured now belongs to no step
            self.cut.end_step(lambda: self._costs(like, epoch))
        finally:
            self._forget()
        self.steps += 1

    def report(self) -> dict[str, Any]:
        """See Replicas."""
        if not self.steps:
            raise UserError("compress_replicas: no step is done yet")
        about = {"shards": self.units[0].shards, "parameters": self.numel, "messages": len(self.cut.groups)}
        return self.numbers(about, PHASES_OF_FSDP)

    def _refuse_dtypes(self, unit: Unit, dtype: torch.dtype) -> None:
        """UserError where units are reduced in several dtypes: which one a message has would depend on their order."""
        if self._dtype not in (None, dtype):
            mine, others = (str(each).removeprefix("torch.") for each in (dtype, self._dtype))
            raise UserError(
                f"compress_replicas: FSDP reduces {unit.label} in {mine} and other modules in {others}; give all of "
                "them one MixedPrecisionPolicy(reduce_dtype=...)"
            )
        self._dtype = dtype

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
        self.cut.forget()
        self._arrived, self._gradients, self._queued = set(), {}, 0

    def _place_of(self, place: int, like: Tensor) -> Tensor:
        """Where a unit's gradient goes: a part of its group's, which is made of zeros like `like`."""
        number, run = next((number, run) for number, run in enumerate(self.cut.groups) if place in run)
        if number not in self._gradients:
            self._gradients[number] = like.new_zeros(self.cut.numel(run))
        return self._gradients[number][self.cut.slice(run, place)]

    def _queue_next(self, epoch: int) -> None:
        """Queue the groups that are next in order and have arrived."""
        while self._queued < len(self.cut.groups) and self._arrived.issuperset(self.cut.groups[self._queued]):
            number, self._queued = self._queued, self._queued + 1
            gradient = self._gradients[number]
            run, reads = self.cut.groups[number], self.compressor.reads_weights
            bucket = self.cut.bucket(number, run, gradient, self._model, reads)
            self._queue(gradient, self._exchange(bucket, self.steps, epoch))
            if self._overflow is None:
                self._launch(None)

    def _costs(self, like: Tensor, epoch: int) -> Points:
        """Seconds of an exchange by its elements, with noise as large as this step's gradients `like`."""
        fresh = self._fresh
        assert fresh is not None
        buckets = self.cut.buckets(self._model, like, self.compressor.reads_weights)
        world = ExchangeContext(self.engine.ranks[0], self.engine.size, self.steps, epoch, self.seed)
        scale = like.float().square().mean().sqrt().nan_to_num(1.0, 1.0)  # an overflow has none
        points = time_buckets(self.engine, buckets, scale, world, self.server.serve, lambda: copy.deepcopy(fresh))
        self.server.take_log()
        return points

    def layout(self) -> dict[str, int]:
        """Elements of each layer by name, in order: what a state belongs to."""
        return {layer.name: layer.numel for layer in self._model}

    def load(self, states: Sequence[Mapping[str, Any]], joins: bool) -> None:
        """Begin with what was saved of jobs with this layout."""
        kept = [on_device(state["compressor"], self._device) for state in states]
        restore(self.compressor, kept, joins, self.engine.size / states[0]["replicas"])
        self.steps = states[0]["steps"]
        self.cut.load_state_dict(states[0].get("cut", {}))


def _groups_of(units: Sequence[Unit]) -> list[dist.ProcessGroup]:
    """The groups of ranks that share a replica."""
    sharded: list[Any] = [each for unit in units for each in unit.parameters]
    groups = [group for each in sharded for group in each.device_mesh.get_all_groups()]
    return list({tuple(dist.get_process_group_ranks(group)): group for group in groups}.values())
