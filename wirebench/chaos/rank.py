"""A rank of a job that faults are injected into: train.py at a steady pace, with two faults that a signal asks for.

-m wirebench.chaos.rank CONFIG.toml [section.key=value ...], started by the launchers of job.py alone: without the
folder that these name it refuses to start. HOLD_LOCK makes the rank hold Python's lock (the GIL) for ever, NAN makes
the gradient of its next step NaN.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from wirebench.chaos.job import FOLDER, HOLD_LOCK, NAN, SPOILED_LAYER, STEPS
from wirebench.comm.launch import end_process
from wirebench.compose import run
from wirebench.compose.startup import phase
from wirebench.data.base import Batch
from wirebench.errors import UserError
from wirebench.training import loop
from wirebench.training.trainer import Trainer
from wirebench.utils.terminal import outlive_output

PACE_SECONDS = 0.1
"""A step takes at least so long, so that what a fault costs is not lost among the machine's own delays."""

Step = Callable[[Trainer, int, list[Iterator[Batch]]], None]


class Injector:
    """Stands around each step of a rank: paces it, spoils its gradient when asked to, notes how far the job is.

    folder  where the steps are noted; inner: the step itself
    """

    def __init__(self, folder: Path, inner: Step) -> None:
        self._steps, self._inner = folder / STEPS, inner
        self._spoil = False

    def listen(self) -> None:
        """Take the signals that ask for a fault."""
        signal.signal(HOLD_LOCK, lambda number, frame: hold_lock())
        signal.signal(NAN, self._on_nan)

    def step(self, run: Trainer, epoch: int, batches: list[Iterator[Batch]]) -> None:
        """One step, as train.py makes it."""
        began = time.monotonic()
        if self._spoil:
            self._spoil = False
            flat = run.workers[0].flat
            place = [layer.name for layer in flat.layers].index(SPOILED_LAYER)
            hook = flat.parameters[place].register_hook(lambda grad: torch.full_like(grad, torch.nan))
            try:
                self._inner(run, epoch, batches)
            finally:
                hook.remove()
        else:
            self._inner(run, epoch, batches)
        time.sleep(max(0.0, PACE_SECONDS - (time.monotonic() - began)))
        if run.engine.is_first:
            with self._steps.open("a") as file:
                file.write(f"{time.monotonic()} {images(run, epoch):.0f} {run.engine.size}\n")

    def _on_nan(self, number: int, frame: object) -> None:
        self._spoil = True


def images(run: Trainer, epoch: int) -> float:
    """Images that the job has trained on since it began, in all world sizes."""
    shard = run.workers[0].shard
    within = shard.worker_steps(epoch, run.step - epoch * run.steps_per_epoch) * shard.batch_size
    return epoch * shard.dataset.train_size + within


def hold_lock() -> None:
    """Wait for ever without giving up the GIL, as an extension does that waits for a thread which needs it."""
    libc = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(128)  # of zeros, as PTHREAD_MUTEX_INITIALIZER is
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def main(arguments: list[str]) -> int:
    """Train as train.py does; the exit code."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        raise UserError("wirebench.chaos.rank is started by `wirebench chaos` alone; wirebench train trains")
    injector = Injector(Path(folder), loop.train_step)
    injector.listen()
    loop.train_step = injector.step
    return run.main(arguments, phase)


if __name__ == "__main__":
    outlive_output()
    end_process(main(sys.argv[1:]))
