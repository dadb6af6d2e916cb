"""Lanes and their driver, put together from objects: what train.py and `synchronise` have in common."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.collectives.plan import Collective
from wirebench.comm.engine import Engine
from wirebench.comm.metered import Metered
from wirebench.errors import UserError
from wirebench.exchange.easgd import Elastic
from wirebench.exchange.lane import Lane
from wirebench.exchange.lockstep import Lockstep
from wirebench.exchange.outer import OuterSteps
from wirebench.exchange.overlapped import Threaded
from wirebench.exchange.reduce_scatter import ReduceScatterDriver
from wirebench.gradient.contract import Method, Scheduler
from wirebench.gradient.flat import FlatGradient
from wirebench.gradient.schedule import LayerCost
from wirebench.telemetry.clock import Clock
from wirebench.telemetry.timeline import Timeline
from wirebench.topology.tree import Topology

IN_TWO_HALVES, ENGINES_OWN = "ring", "native"
"""The default collectives: for a schedule that runs the two halves of one apart, and for all others."""

UPDATES_ITSELF = ("split", "elastic", "outer")
"""Modes in which the model's weights are not the optimizer's work alone."""

Driver = Lockstep | Threaded | Elastic | OuterSteps


def collective_name(compressor: Method, scheduler: Scheduler) -> str:
    """The collective to take where the user names none: the method's own, as in its paper, else the engine's."""
    return compressor.collective or (IN_TWO_HALVES if scheduler.mode == "split" else ENGINES_OWN)


def refuse_groups(compressor: Method, name: str, scheduler: str, groups: Sequence[range]) -> None:
    """UserError where a scheduler cuts the model into several buckets and the compressor needs it whole."""
    if compressor.whole_model and len(groups) > 1:
        raise UserError(
            f"scheduler.name: {scheduler!r} cuts the model into {len(groups)} buckets, but "
            f"{name!r} needs it whole: {compressor.whole_model}; sync_easgd sends one message"
        )


def first_cut(scheduler: Scheduler, layers: Sequence[LayerCost]) -> tuple[list[range], bool]:
    """The groups that a job begins with, and whether they are those to stay with."""
    if not scheduler.needs_profile:
        return scheduler.partition(layers, lambda numel: 0.0), True
    # Layer by layer, as every scheduler may end up: until it is known what messages cost.
    return [range(i, i + 1) for i in range(len(layers))], False


def lane_of(
    rank: int,
    flat: FlatGradient,
    compressor: Method,
    communicator: Metered,
    collective: Collective,
    topology: Topology,
    seed: int,
    clock: Clock,
) -> Lane:
    """One rank's lane; the compressor's own work is timed by `clock`."""
    server = RequestExecutor(communicator, collective, topology)
    return Lane(rank, flat, compressor, server, seed, lambda: clock.phase("compress", "compress"))


def driver_of(
    engine: Engine,
    scheduler: Any,
    lanes: Sequence[Lane],
    models: Sequence[nn.Module],
    optimizers: Sequence[Any],
    clock: Clock,
    timeline: Timeline,
) -> Driver:
    """The driver that the scheduler's mode asks for.

    models, optimizers  of the lanes, in the same order; optimizers are read only in modes of UPDATES_ITSELF
    """
    if scheduler.mode == "elastic":
        return Elastic(lanes, optimizers, scheduler.beta, overlaps=engine.distributed)
    if scheduler.mode == "outer":
        return OuterSteps(lanes, optimizers, scheduler, clock, overlaps=engine.distributed)
    if not engine.distributed:
        return Lockstep(lanes)
    if scheduler.mode == "split":
        return ReduceScatterDriver(lanes[0], timeline, models[0], optimizers[0], clock)
    return Threaded(lanes[0], timeline, scheduler.mode == "after_backward")
