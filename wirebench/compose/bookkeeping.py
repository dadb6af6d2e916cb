"""What a run keeps about itself: its folder, its record, its traffic, its warnings."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.comm.engine import Engine
from wirebench.comm.peers import gather_bytes
from wirebench.compose.resolve import scheduler_of
from wirebench.config import loader
from wirebench.config.loader import Config
from wirebench.errors import UserError
from wirebench.exchange.lane import Lane
from wirebench.record.archive import archive_previous_run
from wirebench.record.folder_lock import FolderLock
from wirebench.record.writer import NullRecord, RunRecord, run_directory
from wirebench.telemetry.environment import capture
from wirebench.telemetry.gpu import sampler
from wirebench.telemetry.gpu_watch import GpuWatch
from wirebench.telemetry.nic import InterfaceCounter, find_interface
from wirebench.telemetry.wire_stats import Traffic
from wirebench.training.elastic.launchers import launcher_of
from wirebench.training.progress import Progress
from wirebench.training.replica import Replica
from wirebench.training.residual_watch import ResidualWatch

NO_NAME = "none"
"""The id of every torchrun that was given none."""


class Folder(NamedTuple):
    """A run's folder, and on rank 0 the lock on it."""

    directory: Path
    lock: FolderLock | None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """A context for work that needs the folder: if the work fails, the folder is unlocked."""
        try:
            yield
        except BaseException:
            if self.lock is not None:
                self.lock.release()
            raise


def folder_of(settings: Config, engine: Engine) -> Folder:
    """The run's folder, locked; every rank calls it. UserError, on all alike, where another run holds it.

    Its name may have a time in it, and rank 0's is the one that counts.
    """
    directory, lock, error = run_directory(settings, datetime.now(UTC)), None, ""
    if engine.is_first:
        launcher = launcher_of(engine) if settings.train.elastic else None
        job = launcher.job() if launcher else ""
        try:
            lock = FolderLock(directory, "" if job == NO_NAME else job)
        except UserError as mistake:
            error = str(mistake)
    told = json.dumps([str(directory), error]).encode()
    if engine.distributed:
        told = gather_bytes(engine.communicators[0], told)[0]
    name, error = json.loads(told)
    if error:
        raise UserError(error)
    return Folder(Path(name), lock)


def traffic_of(settings: Config, engine: Engine, worker: Replica) -> Traffic:
    """The counter of the messages' bytes, by arithmetic, and of the bytes of this process's interface."""
    interface = settings.network.interface or (
        find_interface(engine.ranks_on_this_host == engine.size) if engine.distributed else None
    )
    return Traffic(worker.flat.numel, engine.size, InterfaceCounter(interface), engine.ranks_on_this_host)


def residual_watch_of(
    settings: Config, lanes: list[Lane], warnings: list[str], progress: Progress, begin: int
) -> ResidualWatch | None:
    """The watch that warns if the residual grows without bound; None for a method whose residual cannot.

    None, too, for one that fades, and for weights' differences that are under way for some steps: then the residual is
    the exchange's own.
    """
    compressor = lanes[0].compressor if lanes else None
    if compressor is None or not compressor.bounded_by or compressor.fades:
        return None
    scheduler = scheduler_of(settings)
    every, delay = scheduler.driver.rhythm(scheduler)
    if delay:
        return None

    def warn(text: str) -> None:
        warnings.append(text)
        progress.note(f"warning: {text}")

    density, setting = compressor.sent_share(lanes[0].flat.numel), compressor.bounded_by
    return ResidualWatch(settings.compressor.name, setting, density, warn, begin, lanes[0].world.size, every)


def gpu_watch_of(settings: Config, engine: Engine, machines: Sequence[dict[str, Any]]) -> GpuWatch:
    """The sampler of this process's GPU, which gathers all ranks' samples; `machines`: telemetry.machines.hosts()."""
    anywhere = settings.engine.device != "cpu" and any(machine["gpus"] for machine in machines)
    return GpuWatch(engine, sampler(engine.device), anywhere)


def record_of(
    settings: Config,
    engine: Engine,
    folder: Folder,
    source: Path | None,
    note: Callable[[str], None],
    machines: Sequence[dict[str, Any]],
) -> RunRecord | NullRecord:
    """The record in `folder`; an earlier run there is archived unless this run resumes from its checkpoint `source`."""
    directory = folder.directory
    if not engine.is_first:
        return NullRecord()
    if source is None or directory.resolve() not in source.resolve().parents:
        archive_previous_run(directory)
    # Reading it back must not write over this run.
    repeatable = dataclasses.replace(
        settings,
        output=dataclasses.replace(settings.output, dir=""),
        train=dataclasses.replace(settings.train, resume=""),
    )
    environment = capture(engine.device) | {"hosts": machines, "backend": engine.backend}
    environment["peers"] = [str(peer) for peer in engine.peers]
    return RunRecord(
        directory,
        loader.to_dict(repeatable),
        loader.dump(repeatable),
        environment,
        settings.output.tensorboard,
        engine.size,
        note,
        folder.lock,
    )
