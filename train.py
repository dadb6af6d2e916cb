#!/usr/bin/env python3
"""Train one composition of model, compressor, scheduler and collective, and record what it puts on the wire.

python train.py CONFIG.toml [section.key=value ...]       virtual workers in this process
horovodrun -np 4 python train.py CONFIG.toml ...          Horovod
torchrun --nproc-per-node 4 train.py CONFIG.toml ...      torch.distributed
"""

import signal
import sys

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # First of all: Python would show which import Ctrl-C found it in.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress

import wirebench.utils.entered  # noqa: F401  first of all: says how to enter the environment
from wirebench.compose.startup import begin, imported, interrupted, over, parse, phase

if __name__ == "__main__":
    # Above the other imports, which bring in torch: what starts, and what is wrong with the command, is said at once.
    begin(sys.argv[1:], __doc__)

from wirebench.comm.engine import ENGINES
from wirebench.comm.launch import await_agent, end_process, launched, launched_or_alone, tell_error
from wirebench.compose.build import compose
from wirebench.compose.resolve import KINDS, notes
from wirebench.config import catalog, loader
from wirebench.data.base import Batch
from wirebench.errors import Diverged, PeerLost, Unwritable, UserError
from wirebench.gradient.clipping import clip
from wirebench.training.divergence import seeded
from wirebench.training.epoch_end import close_epoch, end_epoch, evaluate
from wirebench.training.failures import describe, give_up, lost_by_native, out_of_memory
from wirebench.training.optimizers.rates import apply_learning_rate, learning_rate
from wirebench.training.trainer import Trainer
from wirebench.utils.output import show
from wirebench.utils.terminal import outlive_output

INTERRUPTED = 130
"""What a shell reports for a program that Ctrl-C ended."""
AGAIN = PeerLost.exit_code
"""To a launcher that then starts this rank anew, in another world."""


def main(arguments: list[str], tell: Callable[[str], None] = lambda text: None) -> int:
    """Run the command line; returns the exit code. `tell` is told what the start-up does."""
    run = None
    try:
        imported()
        options = parse(arguments, __doc__)
        if options.list is not None:
            about = options.list
            return show(catalog.explain(about, KINDS, ENGINES) if about else catalog.plugins(KINDS, ENGINES))
        given = loader.load(options.config, options.overrides)
        run = compose(given, tell=tell)
        if interrupted():
            raise KeyboardInterrupt
        tell(f"training {run.total_steps} steps, into {run.directory}")
        for line in notes(given, run.total_steps, run.steps_per_epoch):
            run.progress.note(line)
        return conduct(run)
    except Unwritable as error:
        return fail(give_up(run, error) if run else error, error.exit_code, run)
    except (UserError, Diverged) as error:
        return fail(error, error.exit_code, run)
    except PeerLost as error:
        return lose(error, run)
    except KeyboardInterrupt:
        return fail("stopped at once", INTERRUPTED, run)
    except Exception as error:
        if interrupted():  # C++ code has made another error of it
            return fail("stopped at once", INTERRUPTED, run)
        if run is not None and lost_by_native(run, error):
            return lose(error, run)
        if told := out_of_memory(error):
            return fail(told, UserError.exit_code, run)
        traceback.print_exc()
        return leave(1, run)


def conduct(run: Trainer) -> int:
    """Train to the end, or to the step after which all ranks agree to stop, write the record; the exit code."""
    run.resume()
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
    run.progress.note(f"record: {run.directory / 'record.json'} (every line: wirebench show --all FOLDER)")
    run.close()
    if status == "interrupted" and run.goes_on():
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


def lose(error: Exception, run: Trainer | None) -> int:
    """Another rank is gone: say which one, unless it has said itself why."""
    if run is None:
        return fail(error, PeerLost.exit_code, run)
    if run.commits is not None:
        run.commits.note_trouble()
    if why := run.engine.farewell():
        run.stopper.close()  # the launcher may end this rank before it repeats what is said already
        return fail(why, UserError.exit_code, run)
    return fail(describe(run, error), PeerLost.exit_code, run)


def fail(message: object, code: int, run: Trainer | None) -> int:
    """Say what went wrong in one line, and leave."""
    if run is not None:
        run.progress.close()
    # The ranks that go on wait until this one has ended.
    tell_error(message, code, at_once=run is not None and run.commits is not None)
    return leave(code, run)


def leave(code: int, run: Trainer | None) -> int:
    """Exit code `code`, at once where other ranks could keep this process waiting for ever."""
    if run is not None:
        if code != INTERRUPTED:  # what was copied for a checkpoint before the failure is not lost with it
            run.checkpoints.settle()
        with suppress(Unwritable):  # what ends the run is said already
            run.record.close()
        if code == PeerLost.exit_code or run.engine.leaves:
            run.engine.linger()
        # Not before: a launcher ends the others with SIGTERM as soon as one rank is gone.
        run.stopper.close()
        if code == PeerLost.exit_code:
            come_back(run)
    if launched_or_alone().size != 1:
        end_process(code, tidy=False)
    return code


def come_back(run: Trainer) -> None:
    """A rank of an elastic run begins anew in this process, and this never returns, where its launcher wants that."""
    if run.commits is not None:
        run.commits.come_back()


if __name__ == "__main__":
    outlive_output()
    code = main(sys.argv[1:], phase)
    over()
    end_process(code)
