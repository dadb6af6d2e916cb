"""Join the workers of a run: schedule, compressor, server and driver of their exchanges, and a calibration."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.comm.engine import Engine
from wirebench.comm.peers import agree_on
from wirebench.compose.resolve import collective_of, compressor_of, refuse_cut
from wirebench.compose.virtual_profile import virtual_cost
from wirebench.config import loader
from wirebench.config.loader import Config
from wirebench.costmodel.piecewise import Piecewise, Points
from wirebench.data.base import Dataset, unit_of
from wirebench.errors import UserError
from wirebench.exchange.builtin import EnginesOwn
from wirebench.exchange.driver import Driver, Workers
from wirebench.exchange.graphs import Graphs
from wirebench.exchange.lane import Lane
from wirebench.exchange.scheduler import Scheduler, first_cut
from wirebench.gradient.schedule import LayerCost
from wirebench.gradient.weight_decay import Decay
from wirebench.profiling import profile_files
from wirebench.profiling.calibration import Calibration
from wirebench.profiling.exchange_timer import measure_exchange, measure_native
from wirebench.profiling.layer_timer import LayerTimer, Profile
from wirebench.telemetry.clock import Clock
from wirebench.telemetry.environment import TORCH, hardware
from wirebench.telemetry.timeline import Timeline
from wirebench.topology import topology_file
from wirebench.topology.tree import Topology
from wirebench.training.replica import Replica


class Connected(NamedTuple):
    """The path from local to averaged gradients. No lanes if the engine synchronises; no calibration of local runs."""

    lanes: list[Lane]
    driver: Driver
    calibration: Calibration | None


def connect(
    settings: Config,
    engine: Engine,
    scheduler: Scheduler,
    workers: list[Replica],
    virtual_seconds: Sequence[float],
    clock: Clock,
    timeline: Timeline,
) -> Connected:
    """Lanes and driver of this process's workers.

    virtual_seconds  backward seconds of the layers, for virtual workers, whose own times do not describe a cluster
    """
    layers = [LayerCost(layer.name, layer.numel) for layer in workers[0].flat.layers]
    groups, known = _first_cut(settings, engine, scheduler, layers, virtual_seconds)
    refuse_cut(settings, groups)
    lanes = _lanes(settings, engine, workers, clock) if scheduler.driver.messages else []
    for lane in lanes:
        lane.set_buckets(groups)
    driver = scheduler.driver.make(
        Workers(
            engine, lanes, [worker.model for worker in workers], [worker.optimizer for worker in workers], clock,
            timeline, settings.train.accumulation, workers[0].unused,
        ),
        scheduler,
    )  # fmt: skip
    if isinstance(driver, EnginesOwn):
        workers[0].module, workers[0].optimizer = driver.module, driver.optimizer
        numels = [sum(layers[i].numel for i in group) for group in groups]
        costs = functools.partial(measure_native, engine, numels)
        return Connected([], driver, _calibration(settings, engine, scheduler, workers[0], groups, None, costs))
    if not driver.can_hold or not engine.distributed:
        return Connected(lanes, driver, None)
    costs = functools.partial(measure_exchange, engine, lanes[0], lambda: compressor_of(settings))
    calibration = _calibration(settings, engine, scheduler, workers[0], groups, driver, costs)
    calibration.set_buckets = lanes[0].set_buckets
    calibration.learns = not known
    return Connected(lanes, driver, calibration)


def _first_cut(
    settings: Config,
    engine: Engine,
    scheduler: Scheduler,
    layers: Sequence[LayerCost],
    virtual_seconds: Sequence[float],
) -> tuple[list[range], bool]:
    """The groups to begin with, and whether they are those to stay with."""
    if scheduler.needs_profile and settings.scheduler.profile:
        timed, points = profile_files.load(Path(settings.scheduler.profile), layers, _exchange(settings, engine))
        return scheduler.partition(timed, Piecewise(points)), True
    if scheduler.needs_profile and not engine.distributed:
        timed = [layer._replace(backward_seconds=s) for layer, s in zip(layers, virtual_seconds, strict=True)]
        return scheduler.partition(timed, virtual_cost(compressor_of(settings), engine.size)), True
    return first_cut(scheduler, layers)


def _lanes(settings: Config, engine: Engine, workers: list[Replica], clock: Clock) -> list[Lane]:
    collective = collective_of(settings)
    topology = _topology(settings, engine)
    collective.plan(topology, 0)  # a misfit with the cluster raises before training
    lanes = []
    for worker, communicator in zip(workers, engine.communicators, strict=True):
        compressor, server = compressor_of(settings), RequestExecutor(communicator, collective, topology)
        compressing = functools.partial(clock.phase, "compress", "compress")
        lane = Lane(worker.rank, worker.flat, compressor, server, settings.train.seed, compressing)
        if compressor.owns_momentum and not compressor.makes_update:
            lane.decay = Decay(settings.optimizer)
        lane.measure_every = settings.output.health_every
        if settings.engine.cuda_graphs:
            if engine.device.type != "cuda":
                raise UserError("engine.cuda_graphs: needs a GPU, and the model is on the CPU; set it to false")
            lane.graphs = Graphs(compressor)
        lanes.append(lane)
    return lanes


def _calibration(
    settings: Config,
    engine: Engine,
    scheduler: Scheduler,
    worker: Replica,
    groups: Sequence[range],
    driver: Any,
    costs: Any,
) -> Calibration:
    layers, accumulation = worker.flat.layers, settings.train.accumulation
    about = {
        "name": settings.name,
        "model": _model(settings, worker.shard.dataset),
        "hardware": hardware(engine.device),
        "batch_size": settings.data.batch_size // accumulation,
        "source": f"train.py, {settings.train.precision}: medians of steps whose messages waited, then of ranks",
        "torch": TORCH,
        "unit": unit_of(worker.shard.dataset),
        "exchange": _exchange(settings, engine),
    }
    shapes = [(layer.name, tuple(p.shape)) for layer, p in zip(layers, worker.flat.parameters, strict=True)]

    def save(directory: Path, profile: Profile, points: Points) -> None:
        profile_files.save(directory, about, shapes, profile, points)

    return Calibration(
        engine=engine,
        scheduler=scheduler,
        driver=driver,
        timer=LayerTimer(worker.model, [layer.name for layer in layers], engine.device),
        layers=[LayerCost(layer.name, layer.numel) for layer in layers],
        groups=groups,
        set_buckets=lambda groups: None,
        costs=costs,
        warmup_steps=settings.train.warmup_steps,
        accumulation=accumulation,
        learns=False,
        identity={"scheduler": loader.to_dict(settings)["scheduler"], "world": engine.size},
        save=save,
    )


def _exchange(settings: Config, engine: Engine) -> dict[str, Any]:
    """The exchange's settings, which the costs of messages depend on."""
    tables = loader.to_dict(settings)
    of_engine = {"engine": engine.name, "backend": engine.backend, "workers": engine.size}
    return {key: tables[key] for key in ("compressor", "collective")} | of_engine


def _model(settings: Config, dataset: Dataset) -> str:
    """The text of a trace's `model`: the model, its options, the shape of its inputs and its number of classes."""
    words = " ".join([settings.model.name, *(f"{key}={value}" for key, value in settings.model.options.items())])
    shape = "x".join(map(str, dataset.image_shape)) or settings.data.name
    return f"{words}, {shape}, {dataset.num_classes} classes"


def _topology(settings: Config, engine: Engine) -> Topology:
    """The ranks' topology: from network.topology if set, else from the hosts they run on."""
    hosts = [peer.host for peer in engine.peers]
    topology = topology_file.of_job(settings.network.topology, hosts, "network.topology")
    if engine.distributed and settings.network.topology.endswith(".toml"):
        # A file of the same name may have other content on another host.
        content = {"topology": f"{topology.layout}, ranks {topology.ranks}, {topology.root!r}"}
        agree_on(engine.communicators[0], f"{settings.network.topology} differs", content)
    return topology
