"""The exchange of one model's gradients, from the objects that `synchronise` is given to a lane and its driver."""

import copy
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.collectives.plan import Collective
from wirebench.comm.engine import Engine
from wirebench.comm.peers import gather_bytes
from wirebench.dropin.meter import Meter
from wirebench.dropin.replicas import trainable
from wirebench.errors import UserError
from wirebench.exchange.driver import Driver, Workers
from wirebench.exchange.holders import exchanged, restore
from wirebench.exchange.lane import Lane
from wirebench.exchange.overlapped import Overlapped
from wirebench.exchange.preflight import preflight
from wirebench.exchange.scheduler import Scheduler, first_cut, refuse_groups
from wirebench.gradient.conformance import name_of
from wirebench.gradient.contract import Method
from wirebench.gradient.flat import FlatGradient, fill
from wirebench.gradient.schedule import LayerCost
from wirebench.profiling.calibration import Calibration
from wirebench.profiling.exchange_timer import measure_exchange
from wirebench.profiling.layer_timer import LayerTimer
from wirebench.topology.tree import Topology
from wirebench.utils.tensor_tree import on_device


class ModelExchange:
    """Flat gradient, lane and driver of one model; they exist from `lay_out` on.

    engine, model, compressor, scheduler, collective, seed, optimizer, meter   see `synchronise`
    """

    lane: Lane
    driver: Driver
    flat: FlatGradient

    def __init__(
        self,
        engine: Engine,
        model: nn.Module,
        compressor: Method,
        scheduler: Scheduler,
        collective: Collective,
        seed: int,
        optimizer: Optimizer | None,
        meter: Meter,
    ) -> None:
        if engine.size > 1 and compressor.divides and engine.size % compressor.divides:
            raise UserError(f"compressor: groups of {compressor.divides} do not divide the {engine.size} ranks")
        self.engine, self.model, self.compressor, self.scheduler = engine, model, compressor, scheduler
        self.collective, self.seed, self.meter = collective, seed, meter
        self.optimizer = optimizer
        self.rates = HeldRates(optimizer) if optimizer is not None else None
        self.fresh = copy.deepcopy(compressor)
        """A compressor without memory, of which trials take copies."""
        self.calibration: Calibration | None = None
        self.is_laid_out = False
        self.unused: UnusedEverywhere | None = None
        self._last: int | None = None
        self.topology = Topology.of_hosts([peer.host for peer in engine.peers])
        collective.plan(self.topology, 0)  # a misfit with the cluster raises before training

    @property
    def kind(self) -> type[Driver]:
        """The class of the driver."""
        return self.scheduler.driver

    def lay_out(self, arrived: Sequence[str], step: int, epoch: int, state: Mapping[str, Any]) -> None:
        """At the end of the first backward pass: make the gradient flat, and hand what is there to the driver.

        arrived  names of the parameters in the order in which their gradients came
        state    what `state_dict` returned before a restart, or {}
        Every rank calls it. The order is rank 0's.
        """
        order = self._order(arrived, state)
        self.flat = FlatGradient(self.model, order)
        layers = [LayerCost(layer.name, layer.numel) for layer in self.flat.layers]
        groups, known = first_cut(self.scheduler, layers)
        refuse_groups(self.compressor, name_of(self.compressor), type(self.scheduler).__name__, groups)
        server = RequestExecutor(self.engine.communicators[0], self.collective, self.topology)
        compressing = functools.partial(self.meter.clock.phase, "compress", "compress")
        self.lane = Lane(self.engine.ranks[0], self.flat, self.compressor, server, self.seed, compressing)
        self.lane.clears = False
        self.lane.set_buckets(groups)
        preflight([self.lane], lambda: copy.deepcopy(self.fresh))
        optimizer = self.rates if self.kind.halves else self.optimizer
        workers = Workers(
            self.engine, [self.lane], [self.model], [optimizer], self.meter.clock, self.meter.timeline,
        )  # fmt: skip
        self.driver = self.kind.make(workers, self.scheduler)
        if not known:
            self.calibration = self._calibration(layers, groups)
        if state:
            self._restore(state)
        if self.calibration is not None:
            self.calibration.plan(step + 1)
        missing = [position for position, p in enumerate(self.flat.parameters) if p.grad is None]
        # Where a schedule leaves exchanges under way between steps, nothing else may be sent, and updates are its own.
        if not self.kind.updates:
            self.unused = UnusedEverywhere(self.engine, self.flat, missing)
        self.is_laid_out = True
        self.driver.begin(step, epoch)
        self.lane.adopt()

    def refuse_schedule(self, state: Mapping[str, Any]) -> None:
        """UserError for the state of a schedule that exchanges something else."""
        before, now = exchanged(state["compressor"]), self.kind.exchanges
        if before != now:
            raise UserError(
                f"sync.load_state_dict: the state is of a schedule that exchanges {before}, and this one exchanges "
                f"{now}; to begin from the model alone, do not load it"
            )

    def refuse_late(self, state: Mapping[str, Any]) -> None:
        """UserError where a forward pass is over that had to begin with the rank's own weights of the state."""
        if self._own_weights(state) is not None:
            raise UserError(
                "sync.load_state_dict: this scheduler's state has the rank's own weights, with which the first forward "
                "pass begins: call the model itself there, not its parts"
            )

    def _own_weights(self, state: Mapping[str, Any]) -> Tensor | None:
        """The rank's own weights in `state`, if it has any and is to be loaded later, with the gradient's layout."""
        return None if self.is_laid_out or not state else state["compressor"].get(self.kind.own_weights)

    def place(self, state: Mapping[str, Any]) -> None:
        """Before the first forward pass: give the model the rank's own weights, if the state has any."""
        mine = self._own_weights(state)
        if mine is None:
            return
        named = trainable(self.model)
        if sorted(state["order"]) == sorted(named):
            fill([named[name] for name in state["order"]], mine)

    def begin_step(self, step: int, epoch: int) -> None:
        """Before the first forward pass of a step, and after all that the one before has to do."""
        if not self.is_laid_out:
            return
        if self.calibration is not None:
            self._calibrate(self.calibration, step)
        self.driver.begin(step, epoch)

    def any_rank(self, mine: bool) -> bool:
        """Whether it is so on any rank; every rank calls it."""
        return bool(self.engine.sum_over_ranks([torch.tensor([int(mine)])]).item())

    @property
    def has_news(self) -> bool:
        """Whether parameters have gradients that were not averaged."""
        if self.is_laid_out:
            return self.lane.has_news
        return any(parameter.grad is not None for parameter in trainable(self.model).values())

    def broadcast_buffers(self) -> None:
        """Give every rank rank 0's buffers; every rank calls it."""
        self.engine.communicators[0].broadcast(list(self.model.buffers())).wait()

    def hold_back(self) -> None:
        """Let every exchange start after the backward pass from now on."""
        assert isinstance(self.driver, Overlapped), "only exchanges of gradients can start later"
        self.driver.after_backward = True

    def hold_rates(self) -> None:
        """The step that ends now is to be updated with the learning rates that hold now."""
        if self.rates is not None:
            self.rates.hold()

    def about(self) -> dict[str, Any]:
        """The exchange's settings and its world, by name, for the report."""
        facts: dict[str, Any] = {
            "engine": self.engine.name,
            "backend": self.engine.backend,
            "world_size": self.engine.size,
            "parameters": sum(p.numel() for p in trainable(self.model).values()),
            "compressor": name_of(self.compressor),
            "scheduler": type(self.scheduler).__module__.removeprefix("wirebench.schedulers."),
        }
        if self.is_laid_out:
            facts |= {"messages": len(self.lane.buckets), "compressor_state": self.lane.state_share}
        return facts

    def state_dict(self) -> dict[str, Any]:
        """The order of the gradient, the cut that a scheduler has learned, the compressor's state."""
        if not self.is_laid_out:
            raise UserError("sync.state_dict: no step is done yet")
        self.driver.settle()
        return {
            "order": [layer.name for layer in self.flat.layers],
            "cut": self.calibration.state_dict() if self.calibration else {},
            "compressor": self.driver.holders[0].state_dict(),
        }

    def close(self) -> None:
        """Detach from the model, leave the group."""
        if self.calibration is not None:
            self.calibration.timer.detach()
        if self.is_laid_out:
            self.driver.settle()
            self.driver.close()
            for parameter, view in zip(self.flat.parameters, self.flat.views, strict=True):
                if parameter.grad is view:
                    parameter.grad = view.clone()
        self.engine.detach()

    def _order(self, arrived: Sequence[str], state: Mapping[str, Any]) -> list[str]:
        names = list(trainable(self.model))
        mine = list(state["order"]) if state else [*arrived, *(n for n in names[::-1] if n not in set(arrived))]
        if sorted(mine) != sorted(names):
            raise UserError("sync.load_state_dict: the state is of another model")
        order: list[str] = json.loads(gather_bytes(self.engine.communicators[0], json.dumps(mine).encode())[0])
        return order

    def _restore(self, state: Mapping[str, Any]) -> None:
        restore(self.driver.holders[0], [on_device(state["compressor"], self.flat.grad.device)])
        if self.calibration is not None:
            self.calibration.load_state_dict(state["cut"])

    def _calibration(self, layers: Sequence[LayerCost], groups: Sequence[range]) -> Calibration:
        """For a scheduler that has still to learn its cut."""
        assert isinstance(self.driver, Overlapped), "no other driver has a cut to learn"
        names = [layer.name for layer in layers]
        return Calibration(
            engine=self.engine,
            scheduler=self.scheduler,
            driver=self.driver,
            timer=LayerTimer(self.model, names, self.engine.device),
            layers=layers,
            groups=groups,
            set_buckets=self.lane.set_buckets,
            costs=functools.partial(measure_exchange, self.engine, self.lane, lambda: copy.deepcopy(self.fresh)),
            warmup_steps=self.meter.warmup_steps,
            accumulation=1,
            learns=True,
            # As it was before the folder was wirebench's: states that were saved then are still this one's.
            identity={
                "scheduler": type(self.scheduler).__module__.removeprefix("wirebench."),
                "world": self.engine.size,
            },
            save=lambda *_: None,
        )

    def _calibrate(self, calibration: Calibration, step: int) -> None:
        """End the step before, as calibration goes, and begin this one."""
        if self._last is not None and calibration.end_step(self._last):
            self.meter.pause()
            self.driver.settle()
            calibration.conclude(Path())
        calibration.begin_step(step)
        self._last = step


class HeldRates:
    """The optimizer of a split schedule: `optimizer`, with the settings that its groups had at `hold`.

    The loop steps its schedule of rates, momenta or decays after a step; the updates of that step come within the next
    forward pass.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._held: list[dict[str, Any]] = []

    def hold(self) -> None:
        """The updates that follow are of the step that ends now."""
        self._held = self._settings()

    def step(self) -> None:
        """Update the parameters that have a gradient."""
        now = self._settings()
        self._set(self._held)
        self.optimizer.step()
        self._set(now)

    def _settings(self) -> list[dict[str, Any]]:
        return [{key: each for key, each in group.items() if key != "params"} for group in self.optimizer.param_groups]

    def _set(self, settings: list[dict[str, Any]]) -> None:
        # A group that was added since has its own settings.
        for group, held in zip(self.optimizer.param_groups, settings, strict=False):
            group.update(held)


class UnusedEverywhere:
    """Sets `.grad` to None where no rank has used a parameter, so that no optimizer decays it or moves it on.

    It costs a small sum over ranks in each step, and so only a model pays for it that had an unused parameter in its
    first step, on any rank. Another model's unused parameters have a gradient of zeros.
    """

    def __init__(self, engine: Engine, flat: FlatGradient, unused: Sequence[int]) -> None:
        self.engine, self.flat = engine, flat
        self.active = bool(engine.sum_over_ranks([torch.tensor([len(unused)])]).item())

    def drop(self, unused: Sequence[int]) -> None:
        """After an exchange, with the layers that this rank has not used; every rank calls it."""
        if not self.active:
            return
        used = torch.ones(len(self.flat.layers), dtype=torch.int32)
        used[list(unused)] = 0
        total = self.engine.sum_over_ranks([used])
        for position in (total == 0).nonzero().flatten().tolist():
            # A residual of earlier steps may have been sent for it: then it has a gradient.
            if not bool(self.flat.views[position].any()):
                self.flat.parameters[position].grad = None
