"""Everything that one run is made of, put together, and its bookkeeping between the steps."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from wirebench.comm.engine import Engine
from wirebench.comm.peers import gather_bytes, reporting_loss
from wirebench.comm.stop import SETTLED_STEPS, Stopper, steps_between_looks
from wirebench.config.loader import Config
from wirebench.exchange.consistency import check_averages, check_parameters
from wirebench.exchange.diagnostics import Health, held_back
from wirebench.exchange.driver import Driver
from wirebench.exchange.lane import Lane
from wirebench.profiling.calibration import Calibration
from wirebench.record.writer import NullRecord, RunRecord
from wirebench.telemetry import rank_facts
from wirebench.telemetry.clock import Clock
from wirebench.telemetry.gpu_watch import GpuWatch
from wirebench.telemetry.machines import LoadMeter
from wirebench.telemetry.rank_facts import CoreWatch, InterfaceWatch
from wirebench.telemetry.step_stats import summary
from wirebench.telemetry.timeline import Timeline
from wirebench.telemetry.wire_stats import Traffic
from wirebench.training import run_summary
from wirebench.training.checkpoint import Checkpoints
from wirebench.training.divergence import Guard
from wirebench.training.elastic.commits import Commits
from wirebench.training.progress import Progress
from wirebench.training.replica import Replica
from wirebench.training.residual_watch import ResidualWatch
from wirebench.training.step_log import StepLog
from wirebench.training.train_state import TrainState
from wirebench.utils import this_machine
from wirebench.utils.files import keeping


@dataclass
class Trainer:
    """One process's part of a run, composed and ready.

    workers, lanes  of the ranks that live in this process, in the same order; no lanes where the engine synchronises
    total_steps     of the whole run, whatever was done before a resume
    state           where the run stands, and what a resumed one needs
    first_step      of this process; counted_from: the first that counts
    """

    config: Config
    engine: Engine
    directory: Path
    workers: list[Replica]
    lanes: list[Lane]
    synchroniser: Driver
    guard: Guard
    health: Health
    residual_watch: ResidualWatch | None
    calibration: Calibration | None
    clock: Clock
    timeline: Timeline
    traffic: Traffic
    record: RunRecord | NullRecord
    progress: Progress
    step_log: StepLog
    checkpoints: Checkpoints
    stopper: Stopper
    gpu: GpuWatch
    total_steps: int
    state: TrainState
    commits: Commits | None = None
    first_step: int = 0
    counted_from: int = 0
    load: LoadMeter = field(default_factory=LoadMeter)
    interfaces: InterfaceWatch = field(default_factory=InterfaceWatch)
    cores: CoreWatch = field(default_factory=CoreWatch)
    _extra: dict[str, float] = field(default_factory=dict)
    _startup_seconds: float | None = None
    _steps_began: float = field(default_factory=time.perf_counter)
    epoch_began: float = field(default_factory=time.perf_counter)

    @property
    def step(self) -> int:
        """The next step to do."""
        return self.state.step

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which the world sees the training split once."""
        return self.state.steps_per_epoch

    @property
    def samples(self) -> int:
        """That all ranks have trained on in this part of the run."""
        return (self.step - self.first_step) * self.config.data.batch_size * self.engine.size

    @property
    def epochs(self) -> float:
        """Length of the learning-rate schedule: train.epochs, so that a run cut short by max_steps can be resumed."""
        return max(self.config.train.epochs, self.total_steps / self.steps_per_epoch)

    def resume(self) -> None:
        """Begin training, or resume it from the checkpoint that was loaded."""
        self.first_step = self.state.step
        self.stopper.looked = self.first_step - 1
        left = self.state.open_epoch
        if left is not None and left["epoch"] >= self.step // self.steps_per_epoch and self.step < self.total_steps:
            # max_steps ended the earlier run within an epoch, which continues now.
            self.state.open_epoch = None
        self.counted_from = self.first_step + self.config.train.warmup_steps
        if self.calibration is not None:
            self.calibration.plan(self.first_step)
            self.counted_from = self.calibration.counted_from
        self.record.truncate(self.first_step)
        self.record.restore(self.state.history)
        self.state.start_watch()
        self._steps_began = self.epoch_began = time.perf_counter()
        self._startup_seconds = this_machine.process_age()

    def already_finished(self) -> bool:
        """Whether the run that is resumed has done all steps and has its record: then there is nothing to do."""
        if self.step < self.total_steps:
            return False
        mine = self.record.already_finished()
        if not self.engine.distributed:
            return mine
        return gather_bytes(self.engine.communicators[0], b"1" if mine else b"0")[0] == b"1"

    def start_clock(self) -> None:
        """Start the clocks: training begins, or continues after a pause."""
        self.traffic.resume()
        self.clock.resume()

    def pause_clock(self) -> None:
        """Stop the clocks before an evaluation or a checkpoint, which are not training; raises Diverged."""
        self.synchroniser.settle()
        self.step_log.flush()
        self.clock.pause()
        self.traffic.pause()

    def begin_epoch(self) -> None:
        """Start the epoch's clock, and its sum of losses at 0."""
        self.epoch_began = time.perf_counter()
        for worker in self.workers:
            worker.epoch_loss.zero_()

    def begin_step(self, epoch: int) -> None:
        """Everything before the first forward pass of a step; raises Unwritable for a checkpoint written beside."""
        self.checkpoints.look()
        with reporting_loss():
            self.stopper.before_step(self.step)
        begin, output = self.counted_from, self.config.output
        drawing = self.engine.is_first or output.trace_all_ranks
        self.timeline.active = drawing and begin <= self.step < begin + output.trace_steps
        if self.calibration is not None:
            self.calibration.begin_step(self.step)
        self.synchroniser.begin(self.step, epoch)

    def check_step(self) -> None:
        """After the exchange of a step and before its update: loss, gradient and, where it is due, the compression."""
        self.guard.note(self.step, self.workers[0].loss)
        self._extra = self.health.read(self.step)
        if self._extra:
            check_averages(self.lanes, [lane.flat.grad for lane in self.lanes], f"step {self.step}")
        if self.residual_watch is not None:
            self.residual_watch.look(self.step, lambda: held_back(self.lanes[0]))

    def end_step(self, epoch: int, rate: float) -> None:
        """Everything after the update; raises Diverged for this step or, on a GPU, for one just before."""
        counted = self.step >= self.counted_from and not self._extra
        self.clock.end_step(self.step, self.config.data.batch_size, counted)
        logs = self.synchroniser.take_logs()
        run_summary.draw_requests(self.timeline, self.engine.ranks, logs, self.config.output.trace_all_ranks)
        wire_bytes = self.traffic.step(logs, counted)
        self.step_log.step(self.step, epoch, rate, wire_bytes, self._extra)
        self.record.scalars(self.gpu.news(), self.step)
        if self.calibration is not None and self.calibration.end_step(self.step):
            self._conclude(self.calibration)
        self.state.step += 1
        if self.step == self.first_step + SETTLED_STEPS and self.engine.distributed:
            self._agree_on_looks()

    def _conclude(self, calibration: Calibration) -> None:
        self.pause_clock()
        with reporting_loss():
            line = calibration.conclude(self.directory)
        if line:
            self.progress.note(line)
        self.start_clock()

    def asked_to_stop(self) -> bool:
        """Whether all ranks stop here, because one of them got a signal to stop."""
        met = self.synchroniser.met(self.step - 1)
        if not self.stopper.looks(met, self.step % self.steps_per_epoch == 0):
            return False
        if self.engine.device.type == "cuda":
            # The host runs ahead of the device, and only the device's step proves that the others have begun it.
            torch.cuda.synchronize(self.engine.device)
        with reporting_loss():
            return self.stopper.after_step(met)

    def checkpoint_due(self) -> bool:
        """Whether the config asks for a checkpoint after this many steps."""
        steps = self.config.train.checkpoint_every_steps
        epochs = self.config.train.checkpoint_every_epochs * self.steps_per_epoch
        return any(every and self.step % every == 0 for every in (steps, epochs))

    def commit_due(self) -> bool:
        """Whether an elastic run's state goes into memory after this many steps."""
        return self.commits is not None and self.commits.due()

    def goes_on(self) -> bool:
        """Whether the elastic run that stops here continues on this rank, which got no signal to stop itself."""
        return self.commits is not None and not self.stopper.told

    def save(self) -> None:
        """Save a checkpoint of the state after `step` steps; raises Diverged where it is not worth it.

        It is copied when this returns, and written during training; `finish` waits for it.
        """
        with self.checkpoints.standing_still():
            self.check_parameters()
            with self.synchroniser.evaluation_view():
                self.checkpoints.save()

    def commit(self) -> None:
        """Keep the state after `step` steps in memory, for the ranks that continue when one is lost."""
        if self.commits is not None:
            with self.synchroniser.evaluation_view():
                self.commits.save()

    def finish(self, status: str, final: dict[str, float]) -> dict[str, Any]:
        """Write record.json and trace.json; returns the record (empty on other ranks). The checkpoints are complete."""
        self._settle(over=status == "finished")
        if self.config.output.trace_all_ranks and status != "diverged":
            self.timeline.join(self.engine)
        if self.engine.is_first:
            with keeping(self.directory / "trace.json"):
                self.timeline.save(self.directory / "trace.json")
        top1 = final.get("top1") if self.first_step == 0 else None
        gpu = self.gpu.stop(self.samples, top1, alone=status == "diverged")
        loads = ranks = None
        if status != "diverged":
            run_summary.gather(self.engine, self.traffic)
            loads = self.load.loads(self.engine)
            ranks = rank_facts.gathered(self.engine, self.step_log.steps, self.interfaces, self.cores)
        measured = summary(self.step_log.steps, self.engine.size) | self.traffic.summary()
        measured["compression_ratio"] |= run_summary.last_step(self.config, self.traffic)
        bounded_by = self.lanes[0].compressor.bounded_by if self.lanes else ""
        warned = run_summary.warnings(self.config, bounded_by, self.traffic, self.step, self.steps_per_epoch)
        if not self.lanes:
            # The engine's own synchroniser hides its work inside backward.
            measured["phases"]["compress"] = None
        return self.record.finish(
            status,
            engine=self.engine.name,
            backend=self.engine.backend,
            device=self.engine.device.type,
            **run_summary.setting(self.workers[0]),
            startup_seconds=self._startup_seconds,
            final=run_summary.evaluated(self.workers[0], final),
            steps_done=self.step,
            resumed_at=self.first_step or None,
            seconds_total=self.state.seconds,
            gpu=gpu,
            load=loads,
            ranks=ranks,
            health=self.health.summary(),
            checkpoints=self.checkpoints.summary(),
            worlds=self.state.worlds,
            warnings=self.state.warnings + warned,
            compressor_state=self.lanes[0].state_share if self.lanes else None,
            prediction=self.calibration.prediction(self.step_log.steps) if self.calibration else None,
            **measured,
        )

    def _settle(self, *, over: bool) -> None:
        """Wait until checkpoints and commits are written; `over`: the commits will not be needed again."""
        with self.checkpoints.standing_still():
            self.checkpoints.wait()
        if self.commits is not None:
            self.commits.close(over=over)

    def close(self) -> None:
        """Give everything back."""
        self.progress.close()
        self.record.close()
        self.stopper.close()
        self.synchroniser.close()
        self.engine.close()

    def check_parameters(self) -> None:
        """Raise Diverged where a rank's are not finite, on all alike, UserError where the ranks' differ."""
        own = [worker.flat.gather_weights() for worker in self.workers]
        self.guard.parameters(self.step - 1, own, self.engine.sum_over_ranks)
        with self.synchroniser.evaluation_view():
            alike = [worker.flat.gather_weights() for worker in self.workers]
            check_parameters(self.engine.communicators, alike, self.step - 1, self.config)

    def _agree_on_looks(self) -> None:
        """Set the steps between looks for a stop on all ranks, by rank 0's time per step."""
        seconds = (time.perf_counter() - self._steps_began) / SETTLED_STEPS
        self.pause_clock()  # and settle: a thread may be in an exchange of the same communicator
        every = torch.tensor([steps_between_looks(seconds)])
        self.engine.communicators[0].broadcast([every]).wait()
        self.stopper.every = int(every.item())
        self.start_clock()
