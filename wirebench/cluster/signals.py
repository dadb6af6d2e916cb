"""Ctrl-C, SIGTERM and a closed terminal: raised while a cluster is built, passed on while a job runs in it."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from wirebench.errors import Stopped

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
