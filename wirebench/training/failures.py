"""A rank is gone: what the others print, and how a user goes on."""

from wirebench.comm.peers import first_line
from wirebench.training.trainer import Trainer


def lost_by_native(run: Trainer, error: Exception) -> bool:
    """Whether the engine's own synchroniser, which does not know PeerLost, raised `error` because a rank is gone."""
    return isinstance(error, RuntimeError) and not run.lanes and run.engine.lost_a_neighbour()


def describe(run: Trainer, error: Exception) -> str:
    """One line for the user: which rank is gone, at which step, and how to resume."""
    gone = run.engine.who_is_gone()
    what = f"lost {gone}" if gone else "the ranks could not go on together"
    return f"{what} at step {run.step} ({first_line(error)}); {_advice(run)}"


def _advice(run: Trainer) -> str:
    newest = run.checkpoints.newest
    if newest is None:
        return "no checkpoint was saved (train.checkpoint_every_steps)"
    return f"resume with output.dir={run.directory} train.resume=auto (newest checkpoint: {newest})"
