"""Large sums are cut into segments, several of which are under way at once.

While one segment's part of a round is added up, another's is on the wire; and a round need not wait until the slowest
rank has finished the one before. Every segment is an all-reduce of its own with a plan of its own, so nothing but the
order in which ranks own items depends on the cut, and that is the same on every rank and engine.
"""

from collections import deque
from collections.abc import Generator, Iterable
from itertools import pairwise
from typing import Any

SEGMENT_BYTES = 4 << 20
MIN_MESSAGE_BYTES = 256 << 10
IN_FLIGHT = 3

Steps = Generator[Any, Any, None]


def cut(items: int, item_bytes: int, size: int) -> list[tuple[int, int]]:
    """Bounds (start, stop) of the segments of a sum of `items` items among `size` ranks; at least one.

    A segment has at least SEGMENT_BYTES, and MIN_MESSAGE_BYTES for every rank, since plans cut it into a part per rank.
    """
    least = max(SEGMENT_BYTES, size * MIN_MESSAGE_BYTES)
    count = max(1, items * item_bytes // least)
    bounds = [items * number // count for number in range(count + 1)]
    return list(pairwise(bounds))


def in_flight(segments: Iterable[Steps]) -> Steps:
    """Advance generators of handles so that IN_FLIGHT of them have a round under way; yields the oldest handle.

    A generator's next round begins as soon as it is sent the answer of the last.
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
        for steps in waiting:
            if advance(steps, None):
                return

    for _ in range(IN_FLIGHT):
        start()
    while under_way:
        steps, handle = under_way.popleft()
        answer = yield handle
        if not advance(steps, answer):
            start()
