"""The end of an epoch: its training is summed up, then the model is evaluated on the whole test set.

A test set can take minutes, and one batch of it seconds, so each rank looks for a wish to stop between layers. A rank
that sees one leaves its share unfinished and marks that in the sum over ranks: no rank then counts the evaluation. The
epoch stays open, a checkpoint keeps that, and a resumed run begins with the evaluation.
"""

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook

from wirebench.comm.peers import reporting_loss
from wirebench.data.base import text_measures
from wirebench.errors import Diverged
from wirebench.training.trainer import Trainer
from wirebench.utils.background import Background

SECONDS_BETWEEN_LOOKS = 0.2


class _UnfinishedError(Exception):
    """A rank got a signal to stop, so this rank's share will not be finished."""


def end_epoch(run: Trainer, epoch: int) -> None:
    """Sum up the training of the epoch that ends with the step before run.step; every rank calls it."""
    run.check_parameters()
    steps = run.workers[0].shard.worker_steps(epoch, run.step - epoch * run.steps_per_epoch)
    total = run.engine.sum_over_ranks([worker.epoch_loss for worker in run.workers]).item()
    seconds = time.perf_counter() - run.epoch_began
    with reporting_loss():
        run.record.scalars(run.gpu.so_far(run.samples))
    run.state.open_epoch = {"epoch": epoch, "seconds": seconds, "loss": total / steps}


def close_epoch(run: Trainer, stop: bool) -> dict[str, float] | None:
    """Evaluate the open epoch if that is due (always after the last step), and add it to the record.

    Returns the evaluation, {} if there was none, and None if all ranks stop before it is done: because of `stop` or
    because of a wish to stop that comes meanwhile. Raises Diverged for a bad loss.
    """
    assert run.state.open_epoch is not None, "end_epoch() comes before"
    epoch, began, every = run.state.open_epoch["epoch"], time.perf_counter(), run.config.train.eval_every
    due = run.step >= run.total_steps or (every and (epoch + 1) % every == 0)
    if due and stop and run.workers[0].shard.dataset.test_size:
        return None
    evaluation = evaluate(run) if due else {}
    if evaluation is None:
        return None
    seconds = time.perf_counter() - began
    entry: dict[str, Any] = {
        **run.state.open_epoch,
        "seconds": run.state.open_epoch["seconds"] + seconds,
        "eval_seconds": seconds if evaluation else None,
        "top1": evaluation.get("top1"),
        "top5": evaluation.get("top5"),
        **text_measures(run.workers[0].shard.dataset, evaluation.get("loss")),
        "test_loss": evaluation.get("loss"),
        "seconds_total": run.state.seconds,
        "wire_bytes_total": run.traffic.total,
    }
    run.state.open_epoch = None
    run.state.history.append(entry)
    run.record.epoch(entry)
    run.progress.epoch(epoch, entry["loss"], entry["top1"], entry["seconds"])
    return evaluation


def evaluate(run: Trainer) -> dict[str, float] | None:
    """Mean loss, top-1 and top-5, every image counted once; {} for a set without images. Every rank calls it.

    None, on all ranks, if one of them got a signal to stop before its share was done. Raises Diverged.
    """
    with run.synchroniser.evaluation_view(), reporting_loss():
        loss, top1, top5, images, unfinished = _sum(run, _shares(run)).tolist()
    if unfinished:
        return None
    if not images:
        return {}
    if not math.isfinite(loss):
        raise Diverged(f"step {run.step - 1}: the loss on the test set is {loss / images}")
    return {"loss": loss / images, "top1": top1 / images, "top5": top5 / images}


def _shares(run: Trainer) -> list[Tensor]:
    """For each rank in this process (loss, top-1 hits, top-5 hits, images, whether it is unfinished), float64."""
    rows = [torch.zeros(5, dtype=torch.float64) for _ in run.workers]
    done, batches = 0, sum(worker.shard.test_batches for worker in run.workers)

    def listen(*_: object) -> None:
        run.progress.evaluation(done, batches)
        if run.stopper.heard(run.step - 1):
            raise _UnfinishedError

    def count() -> None:
        nonlocal done
        done += 1

    # The global hook, not the modules' own: with those, some modules would take another path, and other last bits.
    hook = register_module_forward_pre_hook(listen)
    try:
        for row, worker in zip(rows, run.workers, strict=True):
            row[:4] = worker.evaluate(count)
    except _UnfinishedError:
        rows[0][4] = 1
    finally:
        hook.remove()
    return rows


def _sum(run: Trainer, rows: Sequence[Tensor]) -> Tensor:
    """The rows' sum over ranks. A thread waits for the slowest rank, so that this thread still receives signals."""
    if not run.engine.distributed:
        return run.engine.sum_over_ranks(rows)
    background, done, totals = Background("evaluation"), threading.Event(), list[Tensor]()
    background.submit(lambda: totals.append(run.engine.sum_over_ranks(rows)), done.set)
    while not done.wait(SECONDS_BETWEEN_LOOKS):
        run.stopper.heard(run.step - 1)
    background.wait()
    return totals[0]
