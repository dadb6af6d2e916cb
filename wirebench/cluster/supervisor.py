"""How a job ends: when all ranks have ended, when one fails, when the user asks for it or their command is gone."""

import heapq
import signal
import sys
import time
from collections.abc import Mapping
from queue import Empty, Queue
from subprocess import Popen
from typing import NamedTuple

from wirebench.errors import UserError

LAST_WORDS_SECONDS = 15.0
"""Time for the other ranks after one has failed: to meet the failure, to find out who is gone, to say so."""
STOP_SECONDS = 60.0
"""Time for the ranks after Ctrl-C or SIGTERM: to finish their step, save and write the record."""
TERM_SECONDS = 5.0
"""Time for the ranks between SIGTERM, or the second Ctrl-C, and SIGKILL."""


class RankEnded(NamedTuple):
    """A rank's process has ended with this exit code; 128 + n where signal n ended it, as in a shell."""

    rank: int
    code: int


class StopRequest(NamedTuple):
    """The user asks for the end: pass on this signal."""

    number: int


class Abandoned(NamedTuple):
    """The command that the user typed is gone."""


class Due(NamedTuple):
    """The time for this signal has come."""

    number: int


Event = RankEnded | StopRequest | Abandoned | Due


def conduct(ranks: Mapping[int, Popen], events: Queue[Event], host_of: Mapping[int, str]) -> int:
    """Wait until every rank has ended, and end the others when one fails or the user asks for it.

    ranks    each rank's process
    events   what happens: ranks' ends, the user's signals
    host_of  each rank's host
    Returns the exit code of the first rank that failed, else 0.
    """
    alive, first_code, times_asked = dict(ranks), 0, 0
    agenda: list[tuple[float, int]] = []
    while alive:
        match _next(events, agenda):
            case RankEnded(rank, code):
                del alive[rank]
                if code and not first_code:
                    first_code = code
                    if alive or not times_asked:
                        _say(f"rank {rank} on {host_of[rank]} ended with exit code {code}")
                    # The rank that met a user's mistake has reported it: the others have nothing left to find out.
                    patience = 0.0 if code == UserError.exit_code else LAST_WORDS_SECONDS
                    _plan(agenda, patience, signal.SIGTERM)
                    _plan(agenda, patience + TERM_SECONDS, signal.SIGKILL)
            case StopRequest(number):
                times_asked += 1
                _send(alive, number)
                _plan(agenda, STOP_SECONDS if times_asked == 1 else TERM_SECONDS, signal.SIGKILL)
            case Due(number):
                _send(alive, number)
            case Abandoned():
                _send(alive, signal.SIGKILL)
                return 128 + signal.SIGKILL
    return first_code


def _next(events: Queue[Event], agenda: list[tuple[float, int]]) -> Event:
    """The next event, or the first signal of the agenda that falls due before any event comes."""
    if not agenda:
        return events.get()
    try:
        return events.get(timeout=max(0.0, agenda[0][0] - time.monotonic()))
    except Empty:
        return Due(heapq.heappop(agenda)[1])


def _plan(agenda: list[tuple[float, int]], seconds: float, number: int) -> None:
    heapq.heappush(agenda, (time.monotonic() + seconds, number))


def _send(ranks: Mapping[int, Popen], number: int) -> None:
    for process in ranks.values():
        process.send_signal(number)


def _say(line: str) -> None:
    sys.stderr.write(f"wirebench cluster: {line}\n")
    sys.stderr.flush()
