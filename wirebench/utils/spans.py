"""Sets of time: spans of a clock that do not overlap, in order."""

from collections.abc import Iterable

Span = tuple[float, float]
"""Begin and end, on any clock."""


def union(spans: Iterable[Span], bridge: float = 0.0) -> list[Span]:
    """All of them without overlaps, in order; a gap of at most `bridge` between two is filled."""
    made: list[Span] = []
    for begin, end in sorted(span for span in spans if span[1] > span[0]):
        if made and begin <= made[-1][1] + bridge:
            made[-1] = made[-1][0], max(made[-1][1], end)
        else:
            made.append((begin, end))
    return made


def minus(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """The time in `spans` and not in `others`; both are unions."""
    taken, made, place = list(others), list[Span](), 0
    for begin, end in spans:
        while place < len(taken) and taken[place][1] <= begin:
            place += 1
        at, number = begin, place
        while number < len(taken) and taken[number][0] < end:
            if taken[number][0] > at:
                made.append((at, taken[number][0]))
            at = max(at, taken[number][1])
            number += 1
        if at < end:
            made.append((at, end))
    return made


def both(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """The time that is in both unions."""
    first = list(spans)
    return minus(first, minus(first, others))


def length(spans: Iterable[Span]) -> float:
    """How long they are together."""
    return sum(end - begin for begin, end in spans)
