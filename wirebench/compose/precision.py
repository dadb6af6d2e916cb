"""The precision of a run: the choice for `train.precision = "auto"`, and the warning of a slow bf16."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from torch import Tensor

from wirebench.comm.engine import Engine
from wirebench.comm.peers import gather_bytes
from wirebench.config.loader import Config
from wirebench.errors import UserError
from wirebench.profiling.precision_trial import PassSeconds, time_passes
from wirebench.simulation.trace import Paced
from wirebench.telemetry.timers import timer_for
from wirebench.training.loss import cross_entropy
from wirebench.training.replica import Replica
from wirebench.training.state_files import saved_identity
from wirebench.utils import this_machine

Precision = Literal["fp32", "bf16"]
KEY = "train.precision"
MULTIPLY_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of CPUs that multiply bf16 numbers: on x86, and the last one on ARM. Others convert to fp32 and back."""


class ChosenPrecision(NamedTuple):
    """The precision that the run computes in.

    reason   why, where the config left it open: a line for the one who started the run
    warning  of an explicit choice that costs speed
    """

    precision: Precision
    reason: str = ""
    warning: str = ""

    def tell(self, warnings: list[str], note: Callable[[str], None]) -> None:
        """Note the reason and the warning, and keep the warning among the run's `warnings`."""
        if self.reason:
            note(f"{KEY}: {self.reason}")
        if self.warning:
            # A checkpoint has the warning with the rates of the machine that saved it; this machine's replace it.
            warnings[:] = [line for line in warnings if not line.startswith(KEY)] + [f"{KEY}: {self.warning}"]
            note(f"warning: {KEY}: {self.warning}")


def choose(settings: Config, engine: Engine, worker: Replica, tell: Callable[[str], None]) -> ChosenPrecision:
    """The config's precision; for `auto` the resumed checkpoint's, or the faster one in a trial.

    Every rank calls it, and rank 0's choice is all ranks'. UserError as of the checkpoint that cannot be resumed.
    """
    asked = settings.train.precision
    if asked != "auto":
        return ChosenPrecision(asked, warning=_warning(settings, engine, worker, tell) if asked == "bf16" else "")
    if saved := _of_checkpoint(settings, engine):
        return ChosenPrecision(saved, f"{saved}, as the checkpoint has it")
    if isinstance(worker.model, Paced):
        return ChosenPrecision("fp32", "fp32; a replayed model computes nothing")
    # All ranks at once, as in training, where they share memory and perhaps cores; rank 0's times decide.
    fp32, bf16 = json.loads(_rank_0s(engine, json.dumps(_trial(settings, worker, tell)).encode()))
    seconds = PassSeconds(fp32, bf16)
    chosen: Precision = "bf16" if seconds.bf16_is_faster else "fp32"
    images = _images(settings)
    return ChosenPrecision(
        chosen, f"{chosen}; a pass over {images} images takes {fp32:.3g} s in fp32, {bf16:.3g} s in bf16"
    )


def _warning(settings: Config, engine: Engine, worker: Replica, tell: Callable[[str], None]) -> str:
    flags = this_machine.cpu().flags or ()
    if engine.device.type != "cpu" or isinstance(worker.model, Paced) or MULTIPLY_BF16 & set(flags):
        return ""
    seconds = _trial(settings, worker, tell)
    if seconds.bf16 <= seconds.fp32:
        return ""
    slow, fast = (f"{_images(settings) / each:.3g}" for each in (seconds.bf16, seconds.fp32))
    return f"bf16 is slower than fp32 on this CPU: {slow} against {fast} images/s in a trial of one worker; take auto"


def _trial(settings: Config, worker: Replica, tell: Callable[[str], None]) -> PassSeconds:
    """Passes such as a step makes, over noise."""
    tell("timing a pass in fp32 and in bf16")
    images, labels = worker.blank_batch(_images(settings))

    def loss_of(output: Tensor | tuple[Tensor, list[Tensor]]) -> Tensor:
        return cross_entropy(output, labels, settings.train.label_smoothing)

    return time_passes(worker.model, images, loss_of, timer_for(worker.device))


MOST_IMAGES = 64
"""A CPU that emulates bf16 passes ten images in a second or so, and the trial's first passes are not cut short."""


def _images(settings: Config) -> int:
    """Images of one pass of the trial."""
    return min(settings.data.batch_size // settings.train.accumulation, MOST_IMAGES)


def _of_checkpoint(settings: Config, engine: Engine) -> Precision | None:
    """The precision of the checkpoint that the run resumes, if it resumes one; only rank 0 reads it."""
    if not settings.train.resume:
        return None
    saved, error = None, ""
    if engine.is_first:
        try:
            saved = saved_identity(Path(settings.output.dir) / "checkpoints", settings.train.resume).get(KEY)
        except UserError as mistake:
            error = str(mistake)
    saved, error = json.loads(_rank_0s(engine, json.dumps([saved, error]).encode()))
    if error:
        raise UserError(error)
    return saved


def _rank_0s(engine: Engine, content: bytes) -> bytes:
    """Rank 0's bytes, on every rank."""
    return gather_bytes(engine.communicators[0], content)[0] if engine.distributed else content
