"""One run from its command line to its exit code: compose, train, and report a failure."""

import traceback
from collections.abc import Callable
from contextlib import suppress

from wirebench.comm.engine import ENGINES
from wirebench.comm.launch import end_process, launched_or_alone, tell_error
from wirebench.compose.build import compose
from wirebench.compose.resolve import KINDS, notes
from wirebench.compose.startup import imported, interrupted, parse
from wirebench.config import catalog, loader
from wirebench.errors import Diverged, PeerLost, Unwritable, UserError
from wirebench.training.failures import describe, give_up, lost_by_native, out_of_memory
from wirebench.training.loop import come_back, conduct
from wirebench.training.trainer import Trainer
from wirebench.utils.cli import INTERRUPTED, show
from wirebench.utils.extras import missing


def main(arguments: list[str], tell: Callable[[str], None] = lambda text: None) -> int:
    """Run the command line; returns the exit code. `tell` is called with each stage of the start-up."""
    run = None
    try:
        imported()
        options = parse(arguments)
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
        if told := out_of_memory(error) or missing(error):
            return fail(told, UserError.exit_code, run)
        traceback.print_exc()
        return leave(1, run)


def lose(error: Exception, run: Trainer | None) -> int:
    """End the run after the loss of another rank: report that rank's own reason, else which rank is gone."""
    if run is None:
        return fail(error, PeerLost.exit_code, run)
    if run.commits is not None:
        run.commits.note_trouble()
    if why := run.engine.farewell():
        run.stopper.close()  # the launcher may end this rank before it prints the cause, which is printed already
        return fail(why, UserError.exit_code, run)
    return fail(describe(run, error), PeerLost.exit_code, run)


def fail(message: object, code: int, run: Trainer | None) -> int:
    """Report in one line what went wrong, and leave."""
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
        with suppress(Unwritable):  # the error that ends the run is printed already
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
