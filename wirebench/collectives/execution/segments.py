"""Large sums are cut into segments, several of which are under way at once.

While a rank adds the data of one segment, another segment's messages are on the wire; and a round need not wait until
the slowest rank has finished the one before. Every segment is a separate all-reduce with its own plan. So the cut
changes only the order in which ranks own items, which is the same on every rank and engine.

Segments start together, or in turn, some rounds apart. Plans whose rounds leave links idle start them in turn: plans in
which the ranks of each machine talk among themselves, or all data flows one way.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirebench.collectives.plan import Plan
from wirebench.topology.tree import Topology

SEGMENT_BYTES = 2 << 20
IN_FLIGHT = 3
LEAST_SEGMENT_BYTES = 1 << 20
LEAST_MESSAGE_BYTES = 128 << 10
IN_TURN = 16
"""Segments of a large enough sum, if they start in turn: many, since the first and the last share the wire with no
other segment."""
WORTHWHILE = 0.95
"""Less than a twentieth of the time is not worth more rounds at once."""

Steps = Generator[Any, Any, None]


class Segment(NamedTuple):
    """Items [start, stop) of a sum, and the plan for them; None where the engine has its own."""

    start: int
    stop: int
    plan: Plan | None


class Segments(NamedTuple):
    """A sum, cut. `apart`: rounds of one segment before the next starts; 0: side by side, IN_FLIGHT of them."""

    parts: tuple[Segment, ...]
    apart: int

    @property
    def plans(self) -> list[Plan]:
        """The plan of every segment; none for the engine's own collective."""
        return [part.plan for part in self.parts if part.plan is not None]


def segments(plan_of: Callable[[int], Plan | None], topology: Topology, items: int, item_bytes: int) -> Segments:
    """A sum of `items` items cut into segments; at least one. `plan_of`: the plan for a number of items."""
    whole = plan_of(items)
    if whole is None:
        return Segments((Segment(0, items, whole),), 0)
    # A ring sends P-th parts of a segment: for messages of the same length its segments have to be longer.
    shares = 1 if _is_uncut(whole, items) else topology.size
    # The finest cut there is. Most sums are short and stay whole, and need not be asked how far apart they start.
    if len(cut(items, item_bytes, shares, in_turn=True)) == 1:
        return Segments((Segment(0, items, whole),), 0)
    apart = rounds_apart(whole, topology)
    bounds = cut(items, item_bytes, shares, apart > 0)
    # Lengths differ by one item at most: two plans for all segments.
    plans = {length: plan_of(length) for length in {stop - start for start, stop in bounds}}
    return Segments(tuple(Segment(start, stop, plans[stop - start]) for start, stop in bounds), apart)


def rounds_apart(plan: Plan, topology: Topology) -> int:
    """How many rounds one segment is ahead of the next; 0, side by side, where no round leaves a link idle.

    Else such that all links together are busy for the shortest time, the network never idle while rounds stay within
    the machines, and no more rounds under way at once than that takes: of several, each gets a share of a link that
    has little to do with what it still has to send. BlueConnect and FlexReduce: the number of rounds with messages
    between machines, so that one segment at a time uses the network. A tree: fewer, since half of its rounds go up and
    half go down.
    """
    carried = _carried(plan, topology)
    crosses = carried.max(axis=1) > 0
    if not crosses.any():
        return 0
    # Time is counted in items on the busiest link. One round after the other takes one_by_one; no order can beat
    # at_best, what the busiest link has to carry in all. Where these are nearly the same, as in a ring, it never idles.
    one_by_one, at_best = carried.max(axis=1).sum(), carried.sum(axis=0).max()
    if crosses.all() and at_best > WORTHWHILE * one_by_one:
        return 0
    # Segments advance in step, one round each. So at any time those rounds are under way, each of another segment,
    # whose numbers differ by multiples of `apart`; their items share the links. A distance at which some such group
    # has no message between machines would leave the network idle, and is left out.
    busy = {
        apart: sum(carried[first::apart].sum(axis=0).max() for first in range(apart))
        for apart in range(1, len(carried))
        if all(crosses[first::apart].any() for first in range(apart))
    }
    # The largest distance that is about as good as the best: fewer rounds at once, so more of a link for each.
    return max(apart for apart, items in busy.items() if WORTHWHILE * items <= min(busy.values()))


def _carried(plan: Plan, topology: Topology) -> NDArray[np.int64]:
    """Items that each round brings onto the links of each machine; columns: out of the machines, then into them."""
    machine_of = {rank: number for number, ranks in enumerate(topology.machines) for rank in ranks}
    rounds = (*plan.reduce, *plan.copy)
    carried = np.zeros((len(rounds), 2 * len(topology.machines)), dtype=np.int64)
    for row, transfers in zip(carried, rounds, strict=True):
        for transfer in transfers:
            src, dst = machine_of[transfer.src], machine_of[transfer.dst]
            if src != dst:
                row[src] += transfer.stop - transfer.start
                row[len(topology.machines) + dst] += transfer.stop - transfer.start
    return carried


def _is_uncut(plan: Plan, items: int) -> bool:
    """Whether every message is a whole segment, as in a tree and a star."""
    return all(transfer.stop - transfer.start == items for transfers in plan.reduce for transfer in transfers)


def cut(items: int, item_bytes: int, shares: int, in_turn: bool = False) -> list[tuple[int, int]]:
    """Bounds (start, stop) of the segments of a sum of `items` items, of which plans make `shares`; at least one.

    Segments of SEGMENT_BYTES, or shorter ones if fewer than IN_FLIGHT would result (IN_TURN, if they start in turn).
    They never have less than LEAST_SEGMENT_BYTES, nor than LEAST_MESSAGE_BYTES for every share: below that a message's
    own cost exceeds the gain from overlap. Segments that start in turn may be half as long. Plans that make no shares
    have few messages: there they may be a quarter as long, and their number doubles.
    """
    num_bytes = items * item_bytes
    # Counts are whole divisions of the same numbers on every rank, and bounds whole items: all ranks cut alike.
    least = max(LEAST_SEGMENT_BYTES, shares * LEAST_MESSAGE_BYTES)
    finer = 2 if shares == 1 else 1
    enough, most = (finer * IN_TURN, 2 * finer * num_bytes // least) if in_turn else (IN_FLIGHT, num_bytes // least)
    count = max(1, min(most, max(enough, num_bytes // SEGMENT_BYTES)))
    bounds = [items * number // count for number in range(count + 1)]
    return list(pairwise(bounds))


def in_flight(steps_of_segments: Iterable[Steps], apart: int = 0) -> Steps:
    """Advance generators of handles, several with a round under way; yields the handle that has waited longest.

    A generator's next round begins as soon as it receives the answer of its last one. With `apart` = 0 up to IN_FLIGHT
    generators start at once, and the next one starts when one has ended. Otherwise the next one starts when the newest
    has done `apart` rounds, before the newest continues; or when the newest has ended.
    The order is the same on every rank, so that the messages of a pair of ranks meet.
    """
    waiting = iter(steps_of_segments)
    # A queue: of what is under way the oldest round is waited for first, and its segment's next round joins at the end.
    # It depends on nothing but the rounds' numbers, never on which messages happen to be there.
    under_way: deque[tuple[Steps, Any, int]] = deque()

    def advance(steps: Steps, answer: Any, begun: int) -> bool:
        try:
            under_way.append((steps, steps.send(answer), begun + 1))
        except StopIteration:
            return False
        return True

    def start() -> None:
        # A loop, since a segment may have no round, as in the all-gather of a plan that needs none.
        while (steps := next(waiting, None)) is not None and not advance(steps, None, 0):
            pass

    for _ in range(1 if apart else IN_FLIGHT):
        start()
    while under_way:
        steps, handle, begun = under_way.popleft()
        answer = yield handle
        if begun == apart:
            # First, so that what it receives is asked for before the older one's data fill the way to the same rank.
            start()
        ended = not advance(steps, answer, begun)
        # One that has done `apart` rounds has started its successor above.
        if ended and (begun < apart or not apart):
            start()
