"""What a message costs: seconds to start it, and bytes per second, fitted to the messages that were timed."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ALIKE = 4
"""Sizes that differ by less than this factor are alike: they do not separate start-up from bytes."""

TINY = 8_000
"""Bytes of a round whose transfer time is negligible; without a larger round the rate is unknown."""


class TimedMessage(NamedTuple):
    """A request of every step, as rank 0 saw it, or an all-reduce that was measured alone.

    seconds  the shortest of those that were timed: the one that waited least for another rank
    rounds   messages one after the other; 1 for an engine's own call
    """

    kind: str
    seconds: float
    wire_bytes: float
    rounds: int


class FittedLink(NamedTuple):
    """What a message costs: seconds to start a round, and bytes per second; None if unknown."""

    start_seconds: float | None
    bytes_per_second: float | None


UNKNOWN = FittedLink(None, None)


def fitted(messages: Sequence[TimedMessage]) -> FittedLink:
    """The line seconds = start * rounds + bytes / rate through all messages; both lie above 0, or are not known.

    Where the line would have a constant below 0, as noise and short messages that arrive too early can give it, one
    constant explains what there is to explain: the other one is fitted alone.
    """
    known = [each for each in messages if each.seconds > 0]
    if not known:
        return UNKNOWN
    sizes = {each.wire_bytes / each.rounds for each in known}
    if max(sizes) < ALIKE * min(sizes):
        # The rate is the least that it can be.
        rate = max(each.wire_bytes / each.seconds for each in known)
        return FittedLink(None, rate if rate > 0 else None)
    rounds, sizes_, seconds = (
        np.array(column, dtype=float)
        for column in zip(*((each.rounds, each.wire_bytes, each.seconds) for each in known), strict=True)
    )
    # Each message counts by its share, or the largest alone would decide.
    starts, shares = rounds / seconds, sizes_ / seconds
    (start, per_byte), *_ = np.linalg.lstsq(np.stack([starts, shares], 1), np.ones_like(seconds), rcond=None)
    if start > 0 and per_byte > 0 and max(sizes) > TINY:
        return FittedLink(float(start), float(1 / per_byte))
    if start > 0:
        return FittedLink(_alone(starts), None)
    return FittedLink(None, 1 / _alone(shares))


def _alone(column: NDArray[np.float64]) -> float:
    """The constant for which its column comes closest to 1 for every message."""
    return float(column.sum() / (column**2).sum())
