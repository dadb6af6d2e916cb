"""Ctrl-C, SIGTERM and a closed terminal: raised while a cluster is built, passed on while a job runs in it.

And SIGKILL, which no handler sees: the kernel passes it on.
"""

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from wirebench.errors import Stopped

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def ends_with_parent(number: int = signal.SIGTERM) -> Callable[[], None]:
    """For Popen's preexec_fn: the child gets the signal `number` when this process ends, also where it is killed.

    Call it, and Popen, in the main thread: the kernel means the thread that starts the child.
    """
    parent = os.getpid()

    def arrange() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), number)

    return arrange


class Interrupted(Stopped):
    """A signal came while there was no job to pass it on to."""


class Relay:
    """Catches the signals that ask for an end, within its block: raises Interrupted, or passes them on to a job."""

    def __init__(self) -> None:
        self._job: int | None = None

    def __enter__(self) -> "Relay":
        # What the caller ignores, as nohup does, stays ignored.
        caught = [number for number in CAUGHT if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._on_signal) for number in caught}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def to(self, job: int) -> Iterator[None]:
        """Pass signals on to a job while the block runs: write each one's number, as a line, into this descriptor."""
        self._job = job
        try:
            yield
        finally:
            self._job = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._job is None:
            raise Interrupted(number)
        # A closed terminal asks the job to stop, which is SIGTERM's meaning; ranks do not handle SIGHUP.
        passed_on = signal.SIGTERM if number == signal.SIGHUP else number
        with suppress(BrokenPipeError):
            os.write(self._job, f"{int(passed_on)}\n".encode())
