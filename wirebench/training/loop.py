"""The loop: epochs, steps, evaluations and what follows the last one."""

from collections.abc import Iterator

from wirebench.comm.launch import await_agent, end_process, launched
from wirebench.data.base import Batch
from wirebench.errors import Diverged, PeerLost
from wirebench.gradient.clipping import clip
from wirebench.training.divergence import seeded
from wirebench.training.epoch_end import close_epoch, end_epoch, evaluate
from wirebench.training.failures import how_to_resume
from wirebench.training.optimizers.rates import apply_learning_rate, learning_rate
from wirebench.training.trainer import Trainer

AGAIN = PeerLost.exit_code
"""Exit code for a launcher that then restarts this rank in another world."""


def conduct(run: Trainer) -> int:
    """Train to the end, or to the step after which all ranks agree to stop, write the record; the exit code."""
    run.resume()
    if run.step > run.total_steps:
        train = run.config.train
        asked = f"train.max_steps={train.max_steps}" if train.max_steps else f"train.epochs={train.epochs}"
        run.progress.note(f"already past {asked}: the checkpoint is of {run.step} steps, and no step is trained")
    if run.already_finished():
        run.progress.note(f"nothing to do: {run.directory} has finished its {run.step} steps")
        run.close()
        return 0
    run.stopper.listen()
    if run.commits is not None:
        run.commits.launcher.watch(run.stopper.regroup)
    run.gpu.start()
    run.progress.start(run.total_steps, run.step)
    status = "finished"
    final: dict[str, float] | None = {}
    try:
        if run.state.epoch_is_over:
            end_epoch(run, run.step // run.steps_per_epoch - 1)
        if run.state.open_epoch is not None:
            status, final = evaluate_epoch(run)
        while status == "finished" and run.step < run.total_steps:
            status, final = train_epoch(run)
        if status == "finished":
            final = final or evaluate(run)
    except Diverged:
        run.traffic.pause()
        run.finish("diverged", {})
        raise
    status = "interrupted" if final is None else status
    record = run.finish(status, final or {})
    run.progress.result(record)
    run.progress.note(f"record: {run.directory / 'record.json'} (every line: wirebench show --all {run.directory})")
    goes_on = status == "interrupted" and run.goes_on()
    if status == "interrupted" and not goes_on:
        run.progress.note(f"stopped at step {run.step}; {how_to_resume(run)}")
    run.close()
    if goes_on:
        come_back(run)
        return AGAIN
    if run.stopper.told and not launched().alone:
        end_process(0, told=True)
    if status == "interrupted":
        await_agent()
    return 0


def train_epoch(run: Trainer) -> tuple[str, dict[str, float] | None]:
    """Train from run.step to the end of its epoch; returns (finished | interrupted, evaluation, {} or None)."""
    epoch, first = divmod(run.step, run.steps_per_epoch)
    end = min((epoch + 1) * run.steps_per_epoch, run.total_steps)
    if first == 0:
        run.begin_epoch()
    batches = [worker.shard.train(epoch, first) for worker in run.workers]
    stop = False
    run.start_clock()
    while run.step < end and not stop:
        train_step(run, epoch, batches)
        stop = run.asked_to_stop()
        if run.step < end and (stop or run.checkpoint_due() or run.commit_due()):
            run.pause_clock()
            if stop or run.checkpoint_due():
                run.save()
            if stop or run.commit_due():
                run.commit()
            run.start_clock()
    run.pause_clock()
    if run.step < end:
        return "interrupted", {}
    end_epoch(run, epoch)
    return evaluate_epoch(run, stop)


def evaluate_epoch(run: Trainer, stop: bool = False) -> tuple[str, dict[str, float] | None]:
    """Evaluate after an epoch, unless all ranks stop first; returns as `train_epoch` does."""
    final = close_epoch(run, stop)
    if stop or final is None or run.checkpoint_due():
        run.save()
    if stop or run.commit_due():
        run.commit()
    stopped = final is None or (stop and run.step < run.total_steps)
    return "interrupted" if stopped else "finished", final


def train_step(run: Trainer, epoch: int, batches: list[Iterator[Batch]]) -> None:
    """One step of every worker of this process: gradients, their exchange, update."""
    clock, step, parts = run.clock, run.step, run.config.train.accumulation
    run.begin_step(epoch)
    with clock.phase("data"):
        pairs = [next(each) for each in batches]
    for worker, (images, labels) in zip(run.workers, pairs, strict=True):
        worker.begin_step()
        # The last step of an epoch that another world began may have fewer images than micro-batches.
        micro_batches = list(zip(images.chunk(parts), labels.chunk(parts), strict=True))
        for part, (few, few_labels) in enumerate(micro_batches):
            if part == len(micro_batches) - 1:
                run.synchroniser.enable_sync()
            with clock.phase("forward"):
                loss = worker.forward(few, few_labels, step, part, len(images))
            with clock.phase("backward"):
                seeded(loss).backward()
        worker.end_step()
    with clock.phase("exchange_exposed"):
        run.synchroniser.finish()
    run.check_step()
    rate = learning_rate(run.config.optimizer, step / run.steps_per_epoch, run.epochs, run.engine.size)
    with clock.phase("update"), run.synchroniser.stepping():
        for worker in run.workers:
            clip(worker.gradients(whole=bool(run.lanes)), worker.clip)
            apply_learning_rate(worker.optimizer, rate)
            worker.optimizer.step()
    run.end_step(epoch, rate)


def come_back(run: Trainer) -> None:
    """Restart a rank of an elastic run in this process, if its launcher does that; then this never returns."""
    if run.commits is not None:
        run.commits.come_back()
