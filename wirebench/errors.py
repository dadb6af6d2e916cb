"""The ways a run can end early, and the exit code of each (docs/running.md).

Importing this, as all that raises them does, has a program that does not catch them end with one line and that code.
"""

import atexit
import os
import signal
import sys
from types import TracebackType

LONGEST = 900
"""Characters of an error's line; what was given may be as long as a file."""


def line_of(message: object) -> str:
    """The message in a line that can be read: a very long one without its middle."""
    text = str(message)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 200]} [...] {text[-190:]}"


class UserError(ValueError):
    """A mistake of the user's: one line that says what, where and what is allowed. Exit code 2."""

    exit_code = 2


class Unwritable(UserError):
    """What a run keeps cannot be written, as a rule because a disk is full. Rank 0 alone meets it."""


class Diverged(RuntimeError):
    """Training produced a loss or gradient that is not finite, or its own guard stopped it. Exit code 3."""

    exit_code = 3


class PeerLost(RuntimeError):
    """Another rank died or stopped answering; the message names it where it is known. Exit code 1."""

    exit_code = 1


class Stopped(Exception):
    """A signal ended a tool: the number after 128 is the exit code, as a shell reports it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number


_before = sys.excepthook


def _end_in_one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The excepthook: all other errors, and those in an interactive session, are left to the hook before."""
    if not isinstance(error, UserError | PeerLost) or hasattr(sys, "ps1") or sys.flags.interactive:
        return _before(kind, error, trace)
    dist = sys.modules.get("torch.distributed")
    rank = f"rank {dist.get_rank()}: " if dist and dist.is_available() and dist.is_initialized() else ""
    # PyTorch's hook, set by init_process_group, calls this one and drops what sys.stderr got if this one exits.
    print(line_of(f"error: {rank}{error}"), file=sys.__stderr__, flush=True)
    if rank:
        # A thread of a process group that comes back from C++ while the interpreter ends would abort the process.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(error.exit_code)
    sys.exit(error.exit_code)


sys.excepthook = _end_in_one_line
