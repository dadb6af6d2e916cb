"""Exchanges that a program has not closed are closed when its process ends.

Otherwise their threads and their process group's run on while the interpreter ends. A thread that then comes back from
C++ aborts the process.
"""

import atexit
import os
import sys
import weakref
from typing import Protocol

from wirebench.errors import PeerLost, UserError, line_of


class Closable(Protocol):
    """What has threads or a process group; a second call of `close` does nothing."""

    def close(self) -> None:
        """End them."""


_open: weakref.WeakKeyDictionary[Closable, int] = weakref.WeakKeyDictionary()
"""With the process in which each was made: a fork of it does not close them."""


def close_at_exit(exchange: Closable) -> None:
    """Close it when the process ends, if it is still there; it is held weakly."""
    _open[exchange] = os.getpid()


@atexit.register
def _close_all() -> None:
    if getattr(sys, "last_value", None) is not None:
        # The program ends with an error. Other ranks need not have got as far, so nothing is waited for.
        return
    for exchange in [each for each, process in _open.items() if process == os.getpid()]:
        try:
            exchange.close()
        except (UserError, PeerLost) as error:
            print(line_of(f"error: {error}"), file=sys.stderr)
