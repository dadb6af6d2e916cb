"""Put a run together from a config: the one place that knows both the plugin folders and the machinery."""

import copy
import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wirebench import data, models
from wirebench.comm.connections import end_silence
from wirebench.comm.engine import Engine, start
from wirebench.comm.launch import has_agent
from wirebench.comm.peers import agree_on, first_line
from wirebench.comm.stop import Stopper
from wirebench.compose.bookkeeping import Folder, folder_of, gpu_watch_of, record_of, residual_watch_of, traffic_of
from wirebench.compose.connect import Connected, connect
from wirebench.compose.precision import ChosenPrecision, Precision, choose
from wirebench.compose.resolve import compressor_of, method_of, refuse_workers, resolve, scheduler_of
from wirebench.compose.virtual_profile import virtual_seconds_of
from wirebench.config import loader
from wirebench.config.loader import Config
from wirebench.data.base import fingerprint, probe_batch, unit_of
from wirebench.errors import PeerLost, UserError
from wirebench.exchange.diagnostics import Health
from wirebench.exchange.preflight import preflight
from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient.flat import BackwardOrder, FlatGradient, backward_order
from wirebench.simulation.trace import Paced
from wirebench.telemetry.clock import Clock
from wirebench.telemetry.machines import hosts
from wirebench.telemetry.timeline import Timeline
from wirebench.training.checkpoint import Checkpoints
from wirebench.training.divergence import Guard
from wirebench.training.elastic.commits import Commits
from wirebench.training.elastic.host_memory import HostMemory
from wirebench.training.elastic.launchers import launcher_of
from wirebench.training.elastic.warden import Warden
from wirebench.training.loss import cross_entropy
from wirebench.training.optimizers.build import build_optimizer
from wirebench.training.progress import Progress, silent
from wirebench.training.replica import Replica
from wirebench.training.step_log import StepLog
from wirebench.training.train_state import Holder, Stateful, TrainState
from wirebench.training.trainer import Trainer
from wirebench.utils.rng import make_repeatable, seed_of

MAY_DIFFER = ("output.dir", "data.root", "network.interface")
"""Keys that ranks on different hosts may set differently."""

Tell = Callable[[str], None]
"""Called with one line of text for each stage of the start-up."""


def compose(given: Config, engine: Engine | None = None, tell: Tell = lambda text: None) -> Trainer:
    """Start the engine, unless one is given, and build everything a run needs, up to its first step."""
    settings = resolve(given)
    scheduler = scheduler_of(settings)
    tell("starting the engine")
    engine = engine or start(settings.engine, scheduler.driver.fusion_mb(scheduler))
    try:
        return _compose(settings, scheduler, engine, tell)
    except PeerLost as error:
        gone = engine.who_is_gone()
        engine.linger()
        raise PeerLost(f"lost {gone or 'a rank'} before the first step ({error})") from error


def _compose(settings: Config, scheduler: Scheduler, engine: Engine, tell: Tell) -> Trainer:
    # What runs, not what was asked for: a recorded config is to be repeated by the same engine, or refused.
    ran = dataclasses.replace(settings.engine, name=engine.name, workers=engine.size)
    settings = dataclasses.replace(settings, engine=ran)
    if engine.distributed:
        agree_on(engine.communicators[0], "the ranks' configs differ", _flat(settings))
    refuse_workers(settings)
    make_repeatable(settings.train.seed)
    timeline = Timeline(engine.ranks[0])
    clock = Clock(engine.device, timeline)
    workers = _workers(settings, engine, tell)
    choice = choose(settings, engine, workers[0], tell)
    settings = _computing_in(choice.precision, settings, workers)
    virtual_seconds = (
        _virtual_seconds(settings, workers[0]) if scheduler.needs_profile and not engine.distributed else []
    )
    connected = connect(settings, engine, scheduler, workers, virtual_seconds, clock, timeline)
    if connected.lanes:
        tell(f"trying an exchange by {settings.collective.name}")
        preflight(connected.lanes, lambda: method_of(settings))
    folder = folder_of(settings, engine)
    with folder.kept():
        return _assemble(settings, engine, workers, connected, choice, clock, timeline, folder)


def _assemble(
    settings: Config,
    engine: Engine,
    workers: list[Replica],
    connected: Connected,
    choice: ChosenPrecision,
    clock: Clock,
    timeline: Timeline,
    folder: Folder,
) -> Trainer:
    lanes, driver, calibration = connected
    directory, traffic = folder.directory, traffic_of(settings, engine, workers[0])
    total_steps = settings.train.max_steps or settings.train.epochs * workers[0].shard.steps_per_epoch
    progress = Progress(unit_of(workers[0].shard.dataset)) if engine.is_first else silent()
    identity = _identity(settings, workers[0])
    states: Sequence[Holder] = driver.holders or [compressor_of(settings)]
    health, warnings = Health(lanes), list[str]()
    begin = len(settings.compressor.warmup) * workers[0].shard.steps_per_epoch
    residual_watch = residual_watch_of(settings, lanes, warnings, progress, begin) if engine.is_first else None
    parts: dict[str, Stateful | None] = {
        "health": health, "traffic": traffic, "residual_watch": residual_watch, "calibration": calibration,
    }  # fmt: skip
    state = TrainState(workers, states, {name: part for name, part in parts.items() if part is not None}, warnings)
    checkpoints = Checkpoints(directory / "checkpoints", engine, state, identity, settings.train.keep, progress.note)
    commits = _commits(settings, engine, state, progress.note)
    # Before anything is written: a checkpoint that is refused costs an earlier run in this folder nothing.
    source = _go_on(settings, checkpoints, commits)
    choice.tell(warnings, progress.note)
    machines = hosts(engine)
    record = record_of(settings, engine, folder, source, progress.note, machines)
    guard = Guard(workers[0].flat, alone=bool(driver.own_weights))
    if driver.halves:
        # A step's average is complete within the next step; it is looked at there, on all ranks alike.
        driver.averaged = guard.note_gradient
        guard.lag = max(guard.lag, 1)
    # An elastic run continues without the host whose agent is gone.
    stopper = Stopper(engine.store, os.getppid() if has_agent() and commits is None else None)
    return Trainer(
        settings, engine, directory, workers, lanes, driver, guard, health, residual_watch, calibration,
        clock, timeline, traffic, record, progress, StepLog(clock, guard, record, progress, engine.size), checkpoints,
        stopper, gpu_watch_of(settings, engine, machines), total_steps, state, commits,
    )  # fmt: skip


def _commits(settings: Config, engine: Engine, state: TrainState, note: Callable[[str], None]) -> Commits | None:
    """The commits of an elastic run; None for another run; UserError if the run cannot be elastic."""
    section = settings.train
    if not section.elastic:
        if section.mirror:
            raise UserError("train.mirror: belongs to train.elastic=true")
        return None
    launcher = launcher_of(engine)
    if launcher is None:
        raise UserError(
            "train.elastic: needs torchrun or horovodrun --min-np, which start ranks anew (docs/elastic.md)"
        )
    if not settings.output.dir:
        raise UserError("train.elastic: needs output.dir, so that the ranks that are started anew go on in it")
    if not state.can_reshard:
        raise UserError("train.elastic: this compressor cannot hand over what it holds: it has no take_over")
    if section.commit_every_steps < 1:
        raise UserError(f"train.commit_every_steps: needs at least 1, got {section.commit_every_steps}")
    host = engine.peers[engine.ranks[0]].host
    memory = HostMemory(f"{launcher.job()} {Path(settings.output.dir).name}", host=host)
    # A rank that stands still and a host that is cut off are known by half the time, so that all have told in time.
    silence = settings.engine.timeout_seconds / 2
    warden = Warden(f"rank {engine.ranks[0]}", silence)
    end_silence({end for peer in engine.peers for end in peer.ends}, silence)
    mirror = bool(section.mirror) and engine.size > 1
    return Commits(engine, state, memory, section.commit_every_steps, mirror, note, launcher, warden)


def _go_on(settings: Config, checkpoints: Checkpoints, commits: Commits | None) -> Path | None:
    """Load the state to resume from; returns its folder (rank 0 knows it), None for a run that begins."""
    if commits is not None and commits.recover(checkpoints):
        return checkpoints.directory / "memory"
    restored = bool(settings.train.resume) and checkpoints.restore(settings.train.resume)
    if checkpoints.state.left_behind:
        checkpoints.note(f"warning: {checkpoints.state.left_behind}")
    if commits is not None:
        commits.begin_anew(restored)
    return checkpoints.restored_from


def _computing_in(precision: Precision, settings: Config, workers: list[Replica]) -> Config:
    """The config with what its `auto` became; the workers compute in it from now on."""
    settings = dataclasses.replace(settings, train=dataclasses.replace(settings.train, precision=precision))
    for worker in workers:
        worker.section = settings.train
    return settings


def _workers(settings: Config, engine: Engine, tell: Tell) -> list[Replica]:
    tell("loading the data")
    dataset = data.build(settings.data.name, settings.data.root, **settings.data.options)
    if engine.distributed:
        agree_on(engine.communicators[0], "the ranks' data differ", fingerprint(dataset))
    tell("building the model")
    workers, order, updates = [], None, settings.optimizer
    compressor = compressor_of(settings)
    if compressor.owns_momentum and not compressor.makes_update:
        # The decay goes with the momentum, into the gradient before it is compressed.
        updates = dataclasses.replace(updates, weight_decay=0.0)
    # Of an update the gradient was clipped before (compressors/common/clipped.py).
    clip = 0.0 if compressor.makes_update else updates.clip
    if settings.network.straggler != 1 and not engine.distributed:
        raise UserError("network.straggler: virtual workers take turns in one process, so none of them can be slow")
    for rank in engine.ranks:
        model = model_of(settings, dataset, engine.device)
        if isinstance(model, Paced) and rank == engine.size - 1:
            model.dilation *= settings.network.straggler
        order = order or _backward_order(settings, model, dataset, engine.device)
        flat = FlatGradient(model, order.names)
        shard = data.Shard(
            dataset, rank, engine.size, settings.data.batch_size, settings.data.eval_batch_size,
            settings.train.seed, engine.device,
        )  # fmt: skip
        optimizer = build_optimizer(model, updates)
        workers.append(
            Replica(rank, model, model, flat, optimizer, shard, settings.train, engine.device, order.unused, clip)
        )
    for communicator, worker in zip(engine.communicators, workers, strict=True):
        if engine.distributed:
            agree_on(communicator, "the ranks' models differ", {"layout": worker.flat.digest()})
            weights = worker.flat.gather_weights()
            communicator.broadcast([weights, *(b for b in worker.model.buffers())]).wait()
            worker.flat.set_weights(weights)
    return workers


def model_of(settings: Config, dataset: data.Dataset, device: torch.device) -> nn.Module:
    """The model of a config with its first weights, the same on all ranks; UserError where it does not go with the
    data.
    """
    torch.manual_seed(seed_of("init", settings.train.seed))
    if not dataset.image_shape and "image_shape" in models.PLUGINS.parameters(settings.model.name):
        raise UserError(f"model.name: {settings.model.name!r} takes images, and {settings.data.name!r} has none")
    model = models.build(settings.model.name, dataset.num_classes, dataset.image_shape, **settings.model.options)
    if not isinstance(model, nn.Module):
        raise UserError(f"model.name: {settings.model.name!r} makes no torch.nn.Module, but {type(model).__name__}")
    if isinstance(model, Paced):
        model.dilation = settings.network.dilation
    if settings.train.channels_last and not dataset.image_shape:
        raise UserError(f"train.channels_last: {settings.data.name!r} has no images, whose channels could be last")
    layout = torch.channels_last if settings.train.channels_last else torch.preserve_format
    return model.to(device).to(memory_format=layout)


def _virtual_seconds(settings: Config, worker: Replica) -> list[float]:
    """Backward seconds of the worker's layers on the hardware that virtual workers stand for."""
    names, dataset, batch = [layer.name for layer in worker.flat.layers], worker.shard.dataset, settings.data.batch_size
    if isinstance(worker.model, Paced):
        return [worker.model.backward_seconds(name, batch) for name in names]
    return virtual_seconds_of(copy.deepcopy(worker.model), names, probe_batch(dataset, 2, worker.device), batch)


def _backward_order(settings: Config, model: nn.Module, dataset: data.Dataset, device: torch.device) -> BackwardOrder:
    """The order in which gradients come, from one pass of a copy over two samples; UserError where it cannot pass.

    Over one where steps have no more: batch normalisation may refuse it.
    """
    of_a_pass = settings.data.batch_size // settings.train.accumulation
    inputs, labels = probe_batch(dataset, min(of_a_pass, 2), device)

    def loss_of(probe: nn.Module) -> Tensor:
        return cross_entropy(probe(inputs), labels)

    try:
        return backward_order(copy.deepcopy(model), loss_of)
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError) as error:
        if isinstance(error, UserError | torch.OutOfMemoryError):
            raise
        what = f"{str(inputs.dtype).removeprefix('torch.')} of shape {tuple(inputs.shape)}"
        raise UserError(
            f"model.name: {settings.model.name!r} cannot be trained on what data.name = {settings.data.name!r} has, "
            f"{what}: {first_line(error)}"
        ) from error


def _identity(settings: Config, worker: Replica) -> dict[str, Any]:
    """The facts that a checkpoint and a resumed run must share for the run to end as if it had not stopped."""
    tables = loader.to_dict(settings)
    shared = {f"compressor.{key}": value for key, value in tables["compressor"].items()}
    for key in ("data.batch_size", "train.seed", "train.accumulation", "train.precision"):
        section, _, name = key.partition(".")
        shared[key] = tables[section][name]
    for kind, plugin in (("model", settings.model), ("data", settings.data)):
        shared |= {f"{kind}.name": plugin.name} | {f"{kind}.{key}": value for key, value in plugin.options.items()}
    sizes = {"training images": worker.shard.dataset.train_size, "layers of the model": worker.flat.digest()}
    return shared | sizes


def _flat(settings: Config) -> dict[str, Any]:
    tables = loader.to_dict(settings)
    tables.pop("name")
    keys = {f"{section}.{key}": value for section, table in tables.items() for key, value in table.items()}
    return {key: value for key, value in keys.items() if key not in MAY_DIFFER}
