"""A run ends before its time, as a rank is gone or cannot write: what is said, and how a user goes on."""

from wirebench.comm.launch import launched
from wirebench.comm.peers import first_line
from wirebench.run import Run


def lost_by_native(run: Run, error: Exception) -> bool:
    """Whether the engine's own synchroniser raised this because a rank is gone: it knows no PeerLost."""
    if not isinstance(error, RuntimeError) or run.lanes:
        return False
    return bool(run.engine.farewell()) or run.engine.lost_a_neighbour()


def describe(run: Run, error: Exception) -> str:
    """Which rank is gone, and how a user goes on."""
    gone = run.engine.who_is_gone()
    what = f"lost {gone}" if gone else "the ranks could not go on together"
    return f"{what} at step {run.step} ({first_line(error)}); {_advice(run)}"


def give_up(run: Run, error: Exception) -> str:
    """This rank alone cannot go on: what it says, which the others hear, too, instead of wondering where it is."""
    said = f"{error}; {_advice(run)}"
    run.engine.say_farewell(f"rank {launched().rank} cannot go on: {said}")
    return said


def _advice(run: Run) -> str:
    newest = run.checkpoints.newest
    if newest is None:
        return "no checkpoint was saved (train.checkpoint_every_steps)"
    return f"resume with output.dir={run.directory} train.resume=auto (newest checkpoint: {newest})"
