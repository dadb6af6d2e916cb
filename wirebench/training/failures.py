"""Messages of a run that ends early because a rank is gone or cannot write: the cause, and how to resume."""

import torch

from wirebench.comm.launch import launched
from wirebench.comm.peers import first_line
from wirebench.training.trainer import Trainer


def lost_by_native(trainer: Trainer, error: Exception) -> bool:
    """Whether the engine's own synchroniser, which does not know PeerLost, raised `error` because a rank is gone."""
    if not isinstance(error, RuntimeError) or trainer.lanes:
        return False
    return bool(trainer.engine.farewell()) or trainer.engine.lost_a_neighbour()


def describe(trainer: Trainer, error: Exception) -> str:
    """One line for the user: which rank is gone, at which step, and how to resume."""
    gone = trainer.engine.who_is_gone()
    what = f"lost {gone}" if gone else "the ranks could not go on together"
    return f"{what} at step {trainer.step} ({first_line(error)}); {_advice(trainer)}"


def give_up(trainer: Trainer, error: Exception) -> str:
    """The message of a rank that alone cannot continue; it is sent to the other ranks, too, as the cause of its end."""
    said = f"{error}; {_advice(trainer)}"
    trainer.engine.say_farewell(f"rank {launched().rank} cannot go on: {said}")
    return said


def out_of_memory(error: Exception) -> str:
    """The message for an error of PyTorch or Python that could not allocate memory; "" for any other error."""
    text = first_line(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in text:
        detail = f": {text}" if text else ""
        return f"out of memory{detail}; a smaller model, data.batch_size or engine.workers needs less"
    return ""


def _advice(trainer: Trainer) -> str:
    if trainer.commits is not None:
        trainer.commits.settle()
        if trainer.commits.newest is not None:
            return f"the ranks that the launcher starts anew go on after step {trainer.commits.newest}"
    return how_to_resume(trainer)


def how_to_resume(trainer: Trainer) -> str:
    """How the newest checkpoint of a run that has ended early is resumed, or that there is none."""
    checkpoints = trainer.checkpoints
    checkpoints.settle()
    which = checkpoints.newest
    if checkpoints.under_way is not None:
        which = f"{checkpoints.under_way} if rank 0 completed it, otherwise {which or 'none'}"
    if which is None:
        return "no checkpoint was saved (train.checkpoint_every_steps)"
    return f"resume with output.dir={trainer.directory} train.resume=auto (newest checkpoint: {which})"
