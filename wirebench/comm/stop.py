"""Stop all ranks after the same step when any of them gets a signal (SIGTERM, Ctrl-C).

A rank that got a signal writes "stop after s" into the store before it begins step s. No rank can finish the exchange
of step s without this one's part of it. So every rank that has finished it sees the entry. A rank ignores an entry of a
later step, because some ranks cannot see that one yet. The first entry counts. If steps have no exchange (local steps),
ranks look after exchanges alone, for entries of the exchanged step or of an earlier one.

Between steps, in an evaluation, there is no exchange to rely on: each rank sees the entry at its own time (`heard`),
and the ranks compare what they saw before they act on it.
"""

import functools
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch.distributed as dist

from wirebench.comm.connections import cut
from wirebench.comm.peers import reporting_loss
from wirebench.errors import PeerLost

KEY = "stop"
LOOK_EVERY_SECONDS = 0.5
SETTLED_STEPS = 3
"""After which ranks agree on how many steps that is."""
SAME_WISH_SECONDS = 2.0
"""A launcher passes on what the terminal has sent to everybody: this soon after the first, it is the same wish."""


class Stopper:
    """Turns signals into an agreed last step.

    store   that all processes reach; None where this process holds all ranks
    parent  the launcher, if its death is a wish to stop, too: horovodrun's ranks get SIGTERM then, torchrun's do not
    every   steps from one look to the next; looked: the step of the last one
    """

    def __init__(self, store: dist.Store | None, parent: int | None = None) -> None:
        self.told = False
        self.every, self.looked = 1, -1
        self._parent = parent
        self._regroup = False
        self._told_at = self._looked_at = 0.0
        self._store = store
        self._written = False
        self._restore: list[Callable[[], object]] = []

    def listen(self) -> None:
        """Take SIGTERM and SIGINT as the wish to stop; a later one raises KeyboardInterrupt.

        A closed terminal (SIGHUP) does not stop training. But launchers end then, and give their ranks some seconds:
        under a launcher it is a wish to stop, too.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.signal(number, self._on_signal)
            self._restore.append(functools.partial(signal.signal, number, before))
        if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # nohup has taken care of it otherwise
            signal.signal(signal.SIGHUP, signal.SIG_IGN if self._store is None else self._on_signal)
            self._restore.append(functools.partial(signal.signal, signal.SIGHUP, signal.SIG_DFL))

    def regroup(self) -> None:
        """Let all ranks stop, this one among them, though it got no signal; may be called by another thread."""
        self._regroup = True

    def close(self) -> None:
        """Give the signals back."""
        for restore in self._restore:
            restore()
        self._restore = []

    def before_step(self, step: int) -> None:
        """Call before step `step` begins."""
        if self._parent is not None and os.getppid() != self._parent:
            self.told = True
        if (self.told or self._regroup) and self._store is not None and not self._written:
            with self._asking():
                self._store.compare_set(KEY, "", str(step))
            self._written = True

    def looks(self, step: int, over: bool) -> bool:
        """Whether it is time to look, `step` being the last whose exchange is done; the same on all ranks.

        over  an epoch ends
        """
        due = (step + 1) // self.every > (self.looked + 1) // self.every
        if step <= self.looked or not (due or over):
            return False
        self.looked = step
        return True

    def after_step(self, step: int) -> bool:
        """Whether `step` or one before was to be the last; all ranks have the same answer if they ask after the same.

        step  of which this rank has finished the exchange
        Raises PeerLost where the rank that keeps the store does not answer.
        """
        if self._store is None:
            return self.told
        with self._asking():
            return bool(self._store.check([KEY])) and int(self._store.get(KEY)) <= step

    def heard(self, step: int) -> bool:
        """After step `step`, before the next: whether any rank got a signal to stop, as far as this one knows.

        Its own signal is passed on; others' are looked up twice a second.
        """
        self.before_step(step)
        now = time.monotonic()
        if self.told or self._store is None or now - self._looked_at < LOOK_EVERY_SECONDS:
            return self.told
        self._looked_at = now
        return self.after_step(step)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """A context for a call to the store; after a call without an answer the store gets no further call."""
        try:
            with reporting_loss():
                yield
        except PeerLost:
            if self._store is not None:
                cut(self._store)
            raise

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.told and now - self._told_at > SAME_WISH_SECONDS:
            signal.signal(number, signal.SIG_DFL)  # the third one ends the process at once
            raise KeyboardInterrupt
        if not self.told:
            self.told, self._told_at = True, now


def steps_between_looks(step_seconds: float) -> int:
    """Look at the store about twice a second: a look costs a message to rank 0."""
    return max(1, int(LOOK_EVERY_SECONDS / max(step_seconds, 1e-6)))
