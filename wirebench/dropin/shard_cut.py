"""Which modules of a sharded model share an exchange: the cut of a schedule, learned in the first steps if need be."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from wirebench.comm.engine import Engine
from wirebench.comm.peers import gather
from wirebench.costmodel.piecewise import Piecewise, Points, spans
from wirebench.dropin.fsdp_units import Unit
from wirebench.exchange.scheduler import Scheduler, first_cut
from wirebench.gradient.flat import Bucket
from wirebench.gradient.schedule import LayerCost
from wirebench.profiling.calibration import PROFILING_STEPS, SETTLING_STEPS
from wirebench.telemetry.timers import timer_for


class ShardCut:
    """The runs of units that are exchanged as one.

    groups   places of units, in their order
    steps    first steps of this process in which the cut is still to be learned; 0 where it is known
    A schedule that needs times gets them of the steps after SETTLING_STEPS: when FSDP has reduced each unit, without an
    exchange beside it. Ranks that have the same shard cut alike; ranks of other shards may cut in another way.
    """

    def __init__(self, engine: Engine, units: Sequence[Unit], scheduler: Scheduler) -> None:
        self._engine, self._units, self._scheduler = engine, units, scheduler
        self._layers = [LayerCost(unit.label, unit.span.stop) for unit in units]
        self.groups, known = first_cut(scheduler, self._layers)
        self.steps = 0 if known else SETTLING_STEPS + PROFILING_STEPS
        self._learned = False
        self._timer = timer_for(units[0].device)
        self._marks: dict[int, Any] = {}
        self._ready: list[list[float]] = []

    @property
    def waits(self) -> bool:
        """Whether the exchanges of all steps wait for the end of the backward pass."""
        return self._scheduler.driver.starts == "backward"

    @property
    def holding(self) -> bool:
        """Whether exchanges of this step wait for the end of the backward pass."""
        return self.waits or self.steps > 0

    def arrived(self, place: int) -> None:
        """FSDP has reduced a unit."""
        if self.steps:
            self._marks[place] = self._timer.mark()

    def end_step(self, costs: Callable[[], Points]) -> None:
        """A step is over, on all ranks; after the last that is timed there is a new cut.

        costs  measures seconds of an exchange by its elements, on all ranks together
        """
        if not self.steps:
            return
        self.steps -= 1
        if self.steps < PROFILING_STEPS:
            self._ready.append(self._times())
        self._marks = {}
        if not self.steps:
            self._learn(costs())

    def forget(self) -> None:
        """Of a backward pass that has failed no time is left."""
        self._marks = {}

    def buckets(self, model: tuple[Any, ...], like: torch.Tensor, reads_weights: bool) -> list[Bucket]:
        """Buckets of several sizes, of the units' own layers, whose gradients have no values yet: to be timed."""
        return [
            self.bucket(0, run, like.new_empty(self.numel(run)), model, reads_weights)
            for run in spans(tuple(layer.numel for layer in self._layers))
        ]

    def bucket(
        self, index: int, run: range, gradient: torch.Tensor, model: tuple[Any, ...], reads_weights: bool
    ) -> Bucket:
        """A run's bucket, with its weights if they are read."""
        weights = gradient.new_empty(0)
        if reads_weights:
            weights = torch.zeros_like(gradient, dtype=self._units[run.start].parameters[0].dtype)
            for place in run:
                weights[self.slice(run, place)] = self._units[place].weights()
        layers = tuple(layer for place in run for layer in self._units[place].layers)
        return Bucket(index, gradient, weights, layers, model)

    def numel(self, run: range) -> int:
        """Elements of a run's gradient: without the padding behind its last layer."""
        return self.slice(run, run[-1]).stop

    def slice(self, run: range, place: int) -> slice:
        """The part of a run's gradient that is a unit's."""
        unit = self._units[place]
        start = unit.start - self._units[run.start].start
        return slice(start, start + unit.span.stop)

    def state_dict(self) -> dict[str, Any]:
        """The learned cut and what it belongs to; {} if none was learned."""
        return {**self._identity(), "bounds": [[run.start, run.stop] for run in self.groups]} if self._learned else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the cut of the run that is resumed, if this schedule learned it among as many replicas."""
        if self.steps and state and {**self._identity(), "bounds": state["bounds"]} == dict(state):
            self.groups = [range(start, stop) for start, stop in state["bounds"]]
            self.steps, self._learned = 0, True

    def _identity(self) -> dict[str, Any]:
        return {"scheduler": type(self._scheduler).__module__, "world": self._engine.size}

    def _times(self) -> list[float]:
        """Seconds from the first unit's reduction to each one's; a unit that had none is there with the one before."""
        self._timer.synchronize()
        first = next(iter(self._marks))
        since = [
            self._timer.seconds(self._marks[first], self._marks[place]) if place in self._marks else 0.0
            for place in range(len(self._units))
        ]
        return np.maximum.accumulate(np.maximum(since, 0.0)).tolist()

    def _learn(self, points: Points) -> None:
        """A new cut, of times that all ranks have alike."""
        told = gather(self._engine.communicators[0], np.median(self._ready, axis=0).tolist())
        ready = np.maximum.accumulate(np.median(told, axis=0)).tolist()
        each = [now - before for before, now in zip((0.0, *ready), ready, strict=False)]
        layers = [layer._replace(backward_seconds=s) for layer, s in zip(self._layers, each, strict=True)]
        self.groups, self._learned = self._scheduler.partition(layers, Piecewise(points)), True
