"""`synchronise`: the suite's exchange of gradients in a training loop of the user's own.

  sync = wirebench.synchronise(model, compressors.build("gs_sgd"), schedulers.build("mg_wfbp"), collective="ring")
  ...
  loss.backward()                       gradients are averaged when it returns, as under DistributedDataParallel
  sync.step(optimizer)                  or: sync.wait(); optimizer.step()

The first step shows the order in which gradients come: their flat vector has it (gradient/flat.py). The lane, its
driver and all later stages are the same as in train.py.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from wirebench.collectives.plan import Collective
from wirebench.comm.attach import Group, attach
from wirebench.dropin import optimizer_watch, usage
from wirebench.dropin.at_exit import close_at_exit
from wirebench.dropin.backward_end import BackwardEnd, Marks, marks
from wirebench.dropin.meter import Meter
from wirebench.dropin.model_exchange import ModelExchange
from wirebench.dropin.overflow import Overflow, overflow_of
from wirebench.dropin.replicas import make_alike, parts_of, trainable
from wirebench.dropin.shard_view import ShardView, ShardWatch, place_of, refuse_clip, refuse_other_shard, view_of
from wirebench.dropin.step_watch import StepWatch
from wirebench.dropin.usage import (
    ModelWatch,
    mark_state,
    method_and_collective,
    refuse_composition,
    refuse_missing,
    refuse_names,
    refuse_no_module,
    refuse_state,
    refuse_used,
    refuse_wrapped,
    use,
)
from wirebench.errors import UserError
from wirebench.exchange.driver import Driver, Parts
from wirebench.exchange.scheduler import Scheduler, refuse_without_driver
from wirebench.gradient import conformance
from wirebench.gradient.contract import Compressor, Method
from wirebench.gradient.flat import refuse_sparse
from wirebench.utils.hooks import WeakHook

NAME = "sync"
LOST = "synchronise: the object it returned is gone, so gradients are not averaged; keep it as long as the model trains"


def synchronise(
    model: nn.Module,
    compressor: Compressor,
    scheduler: Scheduler,
    collective: str | Collective = "",
    *,
    optimizer: Optimizer | None = None,
    scaler: torch.amp.GradScaler | None = None,
    seed: int = 0,
    warmup_steps: int = 10,
    timeout_seconds: float = 60.0,
    process_group: Group = None,
) -> "Sync":
    """Average the gradients of `model` over the ranks of the running job; every rank calls it.

    model       on its device, not wrapped, or under FSDP2; parameters and buffers are overwritten with rank 0's
    compressor  compressors.build(...), or any object with a Compressor's members
    scheduler   schedulers.build(...)
    collective  a name, collectives.build(...), or "" for the one of the compressor's paper, else the engine's own
    optimizer   needed by `dear`, `easgd` and `outer` alone, which update the model themselves
    scaler      the GradScaler that the loop scales its loss with
    seed        of the draws that all ranks share
    warmup_steps     first steps, which `report` leaves out
    timeout_seconds  after this long without an answer another rank counts as lost
    process_group    its ranks alone call this, and averages are over them; None: all ranks. Not with Horovod.
                     For a model under FSDP2 the ranks that have the same shard: mesh["replicate"].get_group()
    Raises UserError outside a job, for a model that cannot be flattened, and for parts that do not go together.
    """
    refuse_no_module(model)
    refuse_wrapped(model)
    refuse_names(compressor=compressor, scheduler=scheduler)
    refuse_without_driver(scheduler, type(scheduler).__name__)
    if optimizer is not None:
        usage.refuse_optimizer(optimizer, "synchronise: optimizer=")
    driver = scheduler.driver
    method, collective = method_and_collective(compressor, collective, scaler, driver.collective)
    refuse_used(method)
    given = {"optimizer": optimizer is not None, "scaler": scaler is not None}
    refuse_composition(scheduler, Parts(method, collective, own_loop=True, **given))
    view = view_of(model, process_group)
    if view is not None:
        _refuse_shards(driver, scaler)
        refuse_clip("synchronise", method, view.real)
        usage.refuse_held(model)
        _end_replicas(model)
        model, optimizer = view.model, None if optimizer is None else view.optimizer(optimizer)
    parameters = trainable(model)
    first = next(iter(parameters.values()))
    if optimizer is not None:
        refuse_missing(optimizer, parameters, all_of_them=driver.updates)
    engine = attach(first.device, timeout_seconds, process_group)
    parts = parts_of(scaler, seed, warmup_steps, compressor=compressor, scheduler=scheduler, collective=collective)
    parts |= {} if view is None else place_of(view.real)
    make_alike(engine, "synchronise", model, parts, lambda: conformance.refuse_dtype(method, first.dtype))
    meter = Meter(engine, sum(p.numel() for p in parameters.values()), warmup_steps)
    exchange = ModelExchange(engine, model, method, scheduler, collective, seed, optimizer, meter)
    return Sync(exchange, scaler) if view is None else ShardedSync(exchange, view)


class Sync:
    """The exchange of one model's gradients; `synchronise` makes one.

    epoch  set it where the loop has epochs: a compressor's warm-up goes by them
    """

    def __init__(self, exchange: ModelExchange, scaler: torch.amp.GradScaler | None) -> None:
        self._exchange, self._meter, self._scaler = exchange, exchange.meter, scaler
        self.epoch, self.steps = 0, 0
        self._begun = self._averaged = self._accumulating = self._unfinished = self._closed = False
        self._stepped: list[Optimizer] | None = None
        """Optimizers that have stepped with the averages that are there; None where there are none."""
        self._waits: bool | None = None
        """Whether averages are made in `step` or `wait` only, since a rank's first pass had no gradient for some."""
        self._marks: Marks = ()
        self._end = BackwardEnd(self._backward_ends)
        self._order: list[str] = []
        self._pending: Mapping[str, Any] = {}
        self._overflow: Overflow | None = None
        self._model = ModelWatch(exchange.model)
        self._parameters = trainable(exchange.model)
        parameters = set(map(id, self._parameters.values()))
        self._leave = use(exchange.compressor, self)
        self._unwatch = optimizer_watch.watch(exchange.compressor, scaler, lambda: parameters)
        self._first_hooks = [  # the lane's own come with the first step's end
            p.register_post_accumulate_grad_hook(WeakHook(self._gradient_comes, name, lost=LOST)).remove
            for name, p in self._parameters.items()
        ]
        self._watch = StepWatch(
            exchange.model, self._meter.clock, self._forward, self._pause, self._update_begins,
            not exchange.kind.halves,
        )  # fmt: skip
        close_at_exit(self)

    @property
    def compressor(self) -> Method:
        """The compressor, with its residual."""
        return self._exchange.compressor

    def step(self, optimizer: Optimizer, scaler: torch.amp.GradScaler | None = None) -> None:
        """Average the gradients and update: `wait`, then the optimizer's step, by the scaler where one is used.

        The loop itself goes on to call `scaler.update()`, `optimizer.zero_grad()` and its learning-rate schedule.
        """
        if (scaler is None) != (self._scaler is None):
            raise UserError("sync.step: pass the scaler to synchronise(..., scaler=) and to step, or to neither")
        usage.refuse_optimizer(optimizer)
        if not self._watch.holds(optimizer):
            raise UserError("sync.step: this optimizer holds no parameter of the model that is synchronised")
        if self._exchange.kind.updates and optimizer is not self._exchange.optimizer:
            raise UserError(
                "sync.step: this scheduler updates the model itself, by synchronise's optimizer=; pass that"
            )
        if self._stepped is None or any(each is optimizer for each in self._stepped):
            self._average()
        self._stepped = [*(self._stepped or ()), optimizer]
        self._exchange.hold_rates()
        with self._exchange.driver.stepping():
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)

    def wait(self) -> None:
        """Return when every `.grad` is the average over ranks; then let the optimizer step."""
        if self._exchange.kind.updates:
            raise UserError("sync.wait: this scheduler updates the model itself; use sync.step(optimizer)")
        self._average()
        self._stepped = []

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context for forward and backward passes that only accumulate gradients: all of a step's but the last."""
        before, self._accumulating = self._accumulating, True
        try:
            yield
        finally:
            self._accumulating = before

    def broadcast_buffers(self) -> None:
        """Give every rank rank 0's buffers, as DistributedDataParallel does in each step; every rank calls it.

        Between steps: statistics of normalisation are each rank's own until then.
        """
        self._exchange.broadcast_buffers()

    def evaluation_view(self) -> AbstractContextManager[None]:
        """A context for evaluation and saving: the model is up to date, and holds easgd's centre or outer's anchor."""
        self._pause()
        if not self._exchange.is_laid_out:  # before the first step the model is what it is
            return nullcontext()
        self._exchange.driver.settle()
        return self._exchange.driver.evaluation_view()

    def report(self) -> dict[str, Any]:
        """This rank's numbers, as in a record, of the steps so far: seconds by phase, bytes, ratios, requests."""
        return self._exchange.about() | self._meter.report()

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to resume after a restart: the gradient's order and buckets, the compressor's state.

        Each rank saves its own: residuals differ. Save the model within `evaluation_view`, and the optimizer as usual.
        It waits for exchanges under way, so every rank calls it after the same step.
        """
        if self._begun and self._gradients_came():
            raise UserError("sync.state_dict: a step's gradients are not averaged yet; call it after sync.step")
        self._pause()
        return {**mark_state(NAME, self.compressor), "steps": self.steps, "epoch": self.epoch,
                **self._exchange.state_dict()}  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from what `state_dict` returned; before the first step, in which the model's part of it is loaded."""
        if self._exchange.is_laid_out or self._begun:
            raise UserError("sync.load_state_dict: comes before the first step")
        refuse_state(state, NAME, self.compressor)
        self._exchange.refuse_schedule(state)
        self.steps, self.epoch = state["steps"], state["epoch"]
        self._pending = state

    def close(self) -> None:
        """Detach from the model and leave the suite's own process group; the model does not change.

        It happens by itself when the process ends without an error.
        """
        if self._closed:
            return
        self._closed = True
        self._pause()
        self._watch.close()
        self._unwatch()
        self._leave()
        self._detach_first()
        self._model.close()
        self._exchange.close()

    def _forward(self) -> None:
        """The model is called. Between an average and its update that begins no step: a gradient may do so later."""
        if not self._averaged:
            self._forward_begins()

    def _forward_begins(self) -> None:
        if not self._begun or self._thrown_away():
            self._begin()
        if self._exchange.is_laid_out and not self._accumulating:
            self._exchange.driver.enable_sync()

    def _gradient_comes(self, name: str, parameter: nn.Parameter) -> None:
        """A parameter's gradient is complete for this backward pass of the first step."""
        refuse_sparse({name: parameter})
        self._backward_runs()
        if name not in self._order:
            self._order.append(name)

    def _backward_runs(self) -> None:
        """A gradient has come, and is not looked at yet."""
        self._end.seen()
        if not self._begun:  # a loop that calls the model's parts, not the model, or a model that is compiled
            self._exchange.refuse_late(self._pending)
            self._forward_begins()

    def _backward_ends(self) -> None:
        """Average here what a loop may look at, and clip, as soon as `backward` has returned."""
        if self._closed or not self._begun or self._accumulating or self._exchange.kind.own_weights:
            return
        # Passes within a pass, as of checkpointing, end before the last gradient has come.
        whole = self._is_whole()
        if whole:
            self._agree_when(whole)
        if self._waits or not whole:
            self._marks = marks(self._parameters.values())
        else:
            self._finish()
            self._averaged = True

    def _is_whole(self) -> bool:
        """Whether each parameter has a gradient of this step."""
        laid_out = self._exchange.is_laid_out
        return self._exchange.lane.is_complete if laid_out else len(self._order) == len(self._parameters)

    def _agree_when(self, whole: bool) -> None:
        """Once, in every rank's first step: a rank that averages at the end of a backward pass would wait for one that
        does in `step`.
        """
        if self._waits is None:
            self._waits = self._exchange.kind.halves or self._exchange.any_rank(not whole)

    def _thrown_away(self) -> bool:
        """Whether gradients of this step have come and gone, by `zero_grad`: what is exchanged of them ends first."""
        if self._exchange.kind.updates or not self._gradients_came():
            return False
        gone = all(parameter.grad is None for parameter in self._parameters.values())
        if gone and self._exchange.is_laid_out:
            self._exchange.driver.settle()
        elif gone:
            self._order.clear()
        return gone

    def _gradients_came(self) -> bool:
        return self._exchange.lane.has_gradients if self._exchange.is_laid_out else bool(self._order)

    def _detach_first(self) -> None:
        for detach in self._first_hooks:
            detach()
        self._first_hooks = []

    def _update_begins(self) -> None:
        """An optimizer is about to update the model."""
        if self._averaged or (self._begun and self._gradients_came()):
            raise UserError(usage.EARLY)

    def _begin(self) -> None:
        """A step begins: the one before has ended."""
        self._end_step()
        self._model.check()
        self._exchange.place(self._pending)
        self._exchange.begin_step(self.steps, self.epoch)
        self._begun, self._averaged, self._marks, self._stepped = True, False, (), None
        self._meter.run()

    def _end_step(self) -> None:
        if self._unfinished:
            self._unfinished = False
            self._watch.close_phase()
            self._meter.end_step(self.steps - 1, self._exchange.driver.take_logs())

    def _pause(self) -> None:
        self._end_step()
        self._watch.drop_phase()
        self._meter.pause()

    def _average(self) -> None:
        """The loop needs a step's averages, if it has not got them when its backward pass ended."""
        if self._closed:
            raise UserError("sync: it is closed; call synchronise again to go on")
        if self._averaged:
            self._averaged = False
            return
        if not self._begun and self._exchange.has_news:
            self._forward_begins()  # gradients that no backward pass has brought
        if not self._begun:
            raise UserError(
                "sync: there is no gradient since the last sync.step or sync.wait; loss.backward() comes before it, "
                "and after sync.wait() optimizer.step()"
            )
        if self._marks and self._marks != marks(self._parameters.values()):
            raise UserError(usage.CHANGED)
        self._finish()

    def _finish(self) -> None:
        """After the last backward pass of a step: gradients are averaged."""
        self._watch.close_phase()
        exchange = self._exchange
        self._model.check_frozen()
        if not exchange.kind.own_weights:
            self._agree_when(self._is_whole())
        with self._meter.clock.phase("exchange_exposed"):
            if not exchange.is_laid_out:
                self._lay_out()
            exchange.driver.enable_sync()  # a loop may have had all passes of the step in no_sync()
            unused = exchange.lane.fill_unused()
            self._exchange_all()
            if exchange.unused is not None:
                exchange.unused.drop(unused)
        self._watch.open_phase("data")
        self._begun, self._unfinished = False, True
        self.steps += 1

    def _exchange_all(self) -> None:
        """Exchange what is left; nothing, on all ranks, where one of them has overflowed."""
        gradient = [self._exchange.flat.grad]
        if self._overflow is None:
            self._exchange.driver.finish()
        elif not self._overflow.anywhere(gradient):
            self._overflow.unscale(gradient)
            self._exchange.driver.finish()
            self._overflow.rescale(gradient)

    def _lay_out(self) -> None:
        """At the end of the first step: the order of the gradients is known."""
        exchange = self._exchange
        exchange.lay_out(self._order, self.steps, self.epoch, self._pending)
        self._detach_first()
        exchange.lane.on_arrival = self._backward_runs
        self._overflow = overflow_of(exchange.engine, exchange.compressor, self._scaler)
        if self._overflow is not None:
            exchange.hold_back()


class ShardedSync(Sync):
    """The exchange of a model's shards between its replicas, when a step's backward passes are over.

    Averages are made in `step` or `wait`, not in `backward`, so gradients accumulate as FSDP has it.
    """

    def __init__(self, exchange: ModelExchange, view: ShardView) -> None:
        super().__init__(exchange, None)
        self._view, self._place = view, place_of(view.real)
        view.attach()
        self._model.close()
        self._model = ShardWatch(view.real)
        self._done: list[Optimizer] | None = None
        """Optimizers that have stepped with the averages that are there; None where there are none."""
        self._detach_real = [
            optimizer_watch.watch(exchange.compressor, None, view.parameters),
            # Before FSDP's own hook, which gathers the weights.
            view.real.register_forward_pre_hook(WeakHook(self._real_forward), prepend=True).remove,
        ]

    def step(self, optimizer: Optimizer, scaler: torch.amp.GradScaler | None = None) -> None:
        """Average the gradients and update: `wait`, then the optimizer's step; with local steps the step alone."""
        if scaler is not None:
            raise UserError(NO_SCALER)
        usage.refuse_optimizer(optimizer)
        if not self._view.holds(optimizer):
            raise UserError("sync.step: this optimizer holds no parameter of the model that is synchronised")
        if self._exchange.kind.updates:
            self._view.take()
            super().step(self._view.optimizer(optimizer))
            return
        if self._view.news or self._done is None or any(each is optimizer for each in self._done):
            self.wait()
        self._done = [*(self._done or ()), optimizer]
        optimizer.step()

    def wait(self) -> None:
        """Return when every `.grad` is the average over replicas; then let the optimizer step."""
        if self._view.news:
            self._view.refuse_changed()
            self._view.take()
        super().wait()
        self._view.give()
        self._done = []

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to resume after a restart; see Sync.state_dict."""
        return {**super().state_dict(), **self._place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from what `state_dict` returned on a rank with this shard; before the first step."""
        if isinstance(state, Mapping):
            refuse_other_shard(f"{NAME}.load_state_dict", state, self._place)
        super().load_state_dict(state)

    def close(self) -> None:
        """Detach from the model and leave the suite's own process group; the model does not change."""
        self._view.close()
        for detach in self._detach_real:
            detach()
        super().close()

    def _real_forward(self, model: nn.Module, _: Any) -> None:
        if model.training and torch.is_grad_enabled():
            self._forward()
        else:
            self._pause()


NO_SCALER = "synchronise: a model of shards takes no GradScaler; use bf16, or compress_replicas(..., scaler=)"


def _end_replicas(model: nn.Module) -> None:
    from wirebench.dropin.fsdp_units import end_closed  # with all of FSDP2, which a whole model does not need

    end_closed(model)


def _refuse_shards(driver: type[Driver], scaler: torch.amp.GradScaler | None) -> None:
    """UserError for what needs a model whose layers are whole."""
    if scaler is not None:
        raise UserError(NO_SCALER)
    if driver.halves:
        raise UserError(
            "synchronise: this scheduler updates layers within the forward pass, in which FSDP gathers them; take "
            "another one, or compress_replicas, which overlaps the backward pass"
        )
