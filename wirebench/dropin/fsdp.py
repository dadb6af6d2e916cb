"""Any compressor between replicas of a model under FSDP2: hybrid sharding whose slow links carry compressed gradients.

  mesh = init_device_mesh("cuda", (pods, gpus), mesh_dim_names=("replicate", "shard"))
  for block in model.blocks:
      fully_shard(block, mesh=mesh["shard"])
  fully_shard(model, mesh=mesh["shard"])
  replicas = wirebench.compress_replicas(model, compressors.build("powersgd"), mesh["replicate"])

FSDP sums over the shards' ranks, in full precision. Each rank then exchanges its shard of the sum with the ranks that
have the same shard of another replica, in a thread, during the rest of the backward pass.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from wirebench.collectives.plan import Collective
from wirebench.comm.attach import attach
from wirebench.dropin import optimizer_watch
from wirebench.dropin.at_exit import close_at_exit
from wirebench.dropin.backward_end import BackwardEnd
from wirebench.dropin.comm_hook import after_backward
from wirebench.dropin.exchange_job import refuse_whole_model
from wirebench.dropin.fsdp_units import Unit, backward_runs, frozen_units, refuse_unfrozen, units_of
from wirebench.dropin.replicas import make_alike, parts_of, refuse_meta
from wirebench.dropin.shard_job import ShardJob
from wirebench.dropin.shard_view import place_of, refuse_clip, refuse_other_shard, refuse_shard_group
from wirebench.dropin.usage import (
    mark_state,
    method_and_collective,
    refuse_names,
    refuse_no_module,
    refuse_state,
    refuse_used,
    use,
)
from wirebench.errors import UserError
from wirebench.exchange.overlapped import Overlapped
from wirebench.exchange.scheduler import OneByOne, Scheduler, first_cut, refuse_without_driver
from wirebench.gradient import conformance
from wirebench.gradient.contract import Compressor, Method
from wirebench.gradient.schedule import LayerCost

NAME = "compress_replicas"


def compress_replicas(
    model: nn.Module,
    compressor: Compressor,
    mesh: DeviceMesh,
    collective: str | Collective = "",
    *,
    scheduler: Scheduler | None = None,
    scaler: torch.amp.GradScaler | None = None,
    seed: int = 0,
    warmup_steps: int = 10,
    timeout_seconds: float = 60.0,
) -> "Replicas":
    """Average the gradients of a model under FSDP2 over its replicas, compressed; every rank calls it, before training.

    model       its modules are sharded by fully_shard(module, mesh=mesh["shard"]), over a dimension without replicas;
                each replica's parameters and buffers are overwritten with those of the first
    compressor  compressors.build(...), or any object with a Compressor's members; one that returns averages
    mesh        the dimension of the replicas: mesh["replicate"]
    collective  a name, collectives.build(...), or "" for the one of the compressor's paper, else the engine's own
    scheduler   schedulers.build(...): which modules share an exchange; None: each has its own
    scaler      the GradScaler that the loop scales its loss with
    seed        of the draws that all ranks share
    warmup_steps     first steps, which `report` leaves out
    timeout_seconds  after this long without an answer another rank counts as lost
    Gradients are averages when `backward` returns. Raises UserError for a model that is sharded in another way, and for
    parts that do not go together. PeerLost, at the end of a backward pass, names a rank of another replica.
    """
    refuse_no_module(model)
    scheduler = OneByOne() if scheduler is None else scheduler
    refuse_names(compressor=compressor, scheduler=scheduler)
    _refuse_scheduler(scheduler)
    method, collective = method_and_collective(compressor, collective, scaler)
    refuse_used(method)
    units, frozen = units_of(model), frozen_units(model)
    refuse_meta(dict(model.named_parameters()))
    _refuse_replicated(units)
    for unit in (*units, *frozen):
        unit.refuse_hooks()
    _refuse_method(method, scheduler, units)
    refuse_clip(NAME, method, model)
    group = _refuse_mesh(mesh).get_group()
    refuse_shard_group(model, group, f'{NAME}: pass the dimension of the replicas, mesh["replicate"]')
    engine = attach(units[0].device, timeout_seconds, group)
    if method.divides and engine.size > 1 and engine.size % method.divides:
        raise UserError(f"compressor: groups of {method.divides} do not divide the {engine.size} replicas")
    parts = parts_of(scaler, seed, warmup_steps, compressor=compressor, scheduler=scheduler, collective=collective)
    layers = {f"shard of {unit.label}": [list(layer[1:]) for layer in unit.layers] for unit in units}
    make_alike(engine, NAME, model, {**parts, **place_of(model), **layers})
    job = ShardJob(engine, units, method, collective, scheduler, scaler, seed, warmup_steps)
    return Replicas(job, frozen, place_of(model), scaler)


class Replicas:
    """The exchange between a model's replicas; `compress_replicas` makes one.

    epoch  set it if the loop has epochs: a compressor's warm-up counts them
    """

    def __init__(
        self, job: ShardJob, frozen: Sequence[Unit], place: Mapping[str, Any], scaler: torch.amp.GradScaler | None
    ) -> None:
        self._job, self.epoch, self._closed, self._place = job, 0, False, place
        self._end = BackwardEnd(self._pass_ends)
        self._units = (*job.units, *frozen)
        for number, unit in enumerate(job.units):
            unit.hook(partial(self._arrives, number))
        for unit in frozen:
            unit.hook(partial(refuse_unfrozen, unit.label))
        held = lambda: {id(parameter) for unit in job.units for parameter in unit.parameters}  # noqa: E731
        self._leave = use(job.compressor, self)
        self._unwatch = optimizer_watch.watch(job.compressor, scaler, held)
        close_at_exit(self)

    @property
    def compressor(self) -> Method:
        """The compressor, with this rank's residual: as long as its shards."""
        return self._job.compressor

    @property
    def steps(self) -> int:
        """Backward passes whose gradients were averaged."""
        return self._job.steps

    def report(self) -> dict[str, Any]:
        """This rank's numbers, as in a record, of the steps so far: bytes between replicas, ratios, requests, seconds.

        Of the phases FSDP alone knows all but `compress` and `exchange_exposed`: these are None.
        """
        return self._job.report()

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to resume after a restart; each rank saves its own, since residuals differ."""
        return {
            **mark_state(NAME, self.compressor),
            "epoch": self.epoch,
            "steps": self.steps,
            "replicas": self._job.engine.size,
            "layers": self._job.layout(),
            **self._place,
            "cut": self._job.cut.state_dict(),
            "compressor": self.compressor.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from what `state_dict` returned on the rank with this shard of this replica; before the first step."""
        self._refuse_states("load_state_dict", [state])
        now = self._job.engine.size
        if state["replicas"] != now:
            raise UserError(
                f"{NAME}.load_state_dict: the state is of {state['replicas']} replicas, and here are {now}; hand the "
                "residuals on by take_over(states)"
            )
        self._job.load([state], joins=False)

    def take_over(self, states: Sequence[Mapping[str, Any]], joins: bool = False) -> None:
        """Resume in a job with another number of replicas, so that no residual is lost; before the first step.

        states  of this shard, of the replicas that this one takes over: each replica's states go to one replica
        joins   this replica is new and takes over none: it gets from the first state what all replicas share
        """
        self._refuse_states("take_over", states)
        self._job.load(states, joins)

    def _refuse_states(self, where: str, states: Sequence[Mapping[str, Any]]) -> None:
        if self.steps:
            raise UserError(f"{NAME}.{where}: comes before the first step")
        if not states:
            raise UserError(f"{NAME}.{where}: needs a state; a replica that takes over none passes joins=True, too")
        for state in states:
            refuse_state(state, NAME, self.compressor)
            if state.get("layers") != self._job.layout():
                raise UserError(f"{NAME}.{where}: the state is of another model, or of another number of shards")
            refuse_other_shard(f"{NAME}.{where}", state, self._place)
        self.epoch = states[0]["epoch"]

    def close(self) -> None:
        """End the thread and leave the suite's own process group; a later backward pass of the model is refused."""
        if self._closed:
            return
        self._closed = True
        self._unwatch()
        self._leave()
        for unit in self._units:
            unit.unhook()
        self._job.close()

    def _arrives(self, place: int, shard: Tensor) -> None:
        """FSDP has reduced a module's gradient over the ranks of this replica."""
        if self._job.failed is not None and not self._job.runs:
            raise self._job.failed  # within a pass this rank's partners in FSDP's collectives would miss it
        if torch._C._current_graph_task_id() < 0:
            raise UserError(
                f"{NAME}: FSDP reduces outside of backward(); set_manual_backward_finalization(False) first"
            )
        # Asked of the whole pass: of a module that this rank has left out, others of its pod may have gradients.
        if not any(unit.gets_gradients for unit in self._job.units):  # torch.autograd.grad: zeros of FSDP's
            return
        self._end.seen()
        self._job.arrive(place, shard, self.epoch)

    def _pass_ends(self) -> None:
        after_backward(self._finish)

    @torch.no_grad()
    def _finish(self) -> None:
        if not self._closed and self._job.runs and not backward_runs(self._job.units):
            self._job.finish(self.epoch)


def _refuse_replicated(units: Sequence[Unit]) -> None:
    unit = next((unit for unit in units if unit.replicated), None)
    if unit is not None:
        raise UserError(
            f"{NAME}: {unit.label} has the dimension of replicas in its mesh, so FSDP sums over them itself; shard "
            'over the other one alone: fully_shard(module, mesh=mesh["shard"])'
        )


def _refuse_scheduler(scheduler: Scheduler) -> None:
    """UserError for a schedule that does more than to merge gradients."""
    name = type(scheduler).__module__.rpartition(".")[2]
    refuse_without_driver(scheduler, name)
    driver = scheduler.driver
    if not issubclass(driver, Overlapped) or driver.halves:
        raise UserError(
            f"{NAME}: {name!r} does not only merge gradients, and FSDP updates the model otherwise; take wfbp, fused, "
            "mg_wfbp, optimal or single, or wirebench.synchronise for local steps"
        )


def _refuse_method(compressor: Method, scheduler: Scheduler, units: Sequence[Unit]) -> None:
    if compressor.makes_update:
        raise UserError(
            f"{NAME}: {conformance.name_of(compressor)!r} returns updates, and FSDP's hook is for averages; take "
            'wirebench.synchronise(..., process_group=mesh["replicate"].get_group())'
        )
    groups, _ = first_cut(scheduler, [LayerCost(unit.label, unit.numel) for unit in units])
    refuse_whole_model(NAME, compressor, len(groups), "pass scheduler=schedulers.build('single')")


def _refuse_mesh(mesh: DeviceMesh) -> DeviceMesh:
    if not isinstance(mesh, DeviceMesh):
        raise UserError(f'{NAME}: mesh must be a DeviceMesh, as mesh["replicate"] is; not a {type(mesh).__name__}')
    if mesh.ndim != 1:
        names = ", ".join(mesh.mesh_dim_names or ()) or f"{mesh.ndim} dimensions"
        raise UserError(f'{NAME}: pass the dimension of the replicas, mesh["replicate"]; this mesh has {names}')
    return mesh
