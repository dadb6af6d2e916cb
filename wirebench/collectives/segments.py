"""Large sums are cut into segments, several of which are under way at once.

While one segment's part of a round is added up, another's is on the wire; and a round need not wait until the slowest
rank has finished the one before. Every segment is an all-reduce of its own with a plan of its own, so nothing but the
order in which ranks own items depends on the cut, and that is the same on every rank and engine.
"""

from collections import deque
from collections.abc import Generator, Iterable
from itertools import pairwise
from typing import Any

SEGMENT_BYTES = 2 << 20
LEAST_SEGMENT_BYTES = 1 << 20
LEAST_MESSAGE_BYTES = 128 << 10
IN_FLIGHT = 3

Steps = Generator[Any, Any, None]


def cut(items: int, item_bytes: int, size: int) -> list[tuple[int, int]]:
    """Bounds (start, stop) of the segments of a sum of `items` items among `size` ranks; at least one.

    Segments of SEGMENT_BYTES, or as many as can be under way where that would make fewer. They never have less than
    LEAST_SEGMENT_BYTES, nor than LEAST_MESSAGE_BYTES for every rank, since plans cut them into a part per rank: below
    that a message's own cost is more than what the overlap wins (docs/collectives.md).
    """
    num_bytes = items * item_bytes
    most = num_bytes // max(LEAST_SEGMENT_BYTES, size * LEAST_MESSAGE_BYTES)
    count = max(1, min(most, max(IN_FLIGHT, num_bytes // SEGMENT_BYTES)))
    bounds = [items * number // count for number in range(count + 1)]
    return list(pairwise(bounds))


def in_flight(segments: Iterable[Steps]) -> Steps:
    """Advance generators of handles, up to IN_FLIGHT of them with a round under way; yields the oldest handle.

    A generator's next round begins as soon as it is sent the answer of the last; the next generator starts where one
    has ended. The order is the same on every rank, so that the messages of a pair of ranks meet.
    """
    waiting = iter(segments)
    under_way: deque[tuple[Steps, Any]] = deque()

    def advance(steps: Steps, answer: Any) -> bool:
        try:
            under_way.append((steps, steps.send(answer)))
        except StopIteration:
            return False
        return True

    def start() -> None:
        while (steps := next(waiting, None)) is not None and not advance(steps, None):
            pass

    for _ in range(IN_FLIGHT):
        start()
    while under_way:
        steps, handle = under_way.popleft()
        answer = yield handle
        if not advance(steps, answer):
            start()
