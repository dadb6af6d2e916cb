"""A backward pass whose gradients are handled by the cores that compress.

If one machine plays all hosts, making a gradient and copying it into its bucket is the processor's work, as compressing
the bucket before is. While a rank does both, each of them has half of the rank's share of the cores. So compressing
takes longer. The backward pass takes longer, too, once that half no longer suffices to keep up with computation. If the
cores also compute the backward pass, all work done at the same time lengthens it (beside_computing).
"""

from collections.abc import Generator, Sequence
from math import inf
from typing import NamedTuple

from wirebench.exchange.pipeline import Passes
from wirebench.gradient.schedule import Duration
from wirebench.simulation.stages import Work

ROUNDING = 1e-9
"""Rounding error of sums of seconds, as a share of them: work of which less is left is done."""


class _Task(NamedTuple):
    """What a thread does next: `work` seconds of work, or a wait until a time; inf: until the other thread advances."""

    work: float = 0.0
    until: float = 0.0


Thread = Generator[_Task, float, None]
"""Yields tasks, and is sent the time at which each is done."""


def handled(passes: Passes, handling: Sequence[float]) -> Passes:
    """The passes with the processor's work on gradients, which has the rank's share of the cores to itself.

    handling  seconds for each layer's gradient, in backward order: one half overlaps with the layer's computation, the
              other follows
    """
    ready, now = [], 0.0
    for computed, seconds in zip(passes.ready, handling, strict=True):
        now = max(now + seconds / 2, computed) + seconds / 2
        ready.append(now)
    return passes._replace(ready=tuple(ready), backward=max(passes.backward, now))


def share(
    passes: Passes,
    groups: Sequence[range],
    durations: Sequence[Duration],
    works: Sequence[Work],
    handling: Sequence[float],
    together: float,
) -> tuple[Passes, list[Duration]]:
    """The passes, and the exchanges of buckets that start beside them, as long as they take beside one another.

    passes     of a step in which gradients cost nothing; durations: of each bucket's exchange with nothing beside it
    works      seconds of each exchange's `seconds` in which the processor works: before its messages, and after them
    handling   seconds of the processor for each layer's gradient, as in handled()
    together   share of their speed that both have while both work
    """
    if together == 1 or not any(handling) or not any(map(any, works)):
        return handled(passes, handling), list(durations)
    ready: list[float] = []
    spans: list[tuple[float, float]] = []
    _run([_computing(passes, handling, ready), _exchanging(groups, durations, works, ready, spans)], together)
    taken = [Duration(end - begin, each.copy_seconds) for (begin, end), each in zip(spans, durations, strict=True)]
    return passes._replace(ready=tuple(ready), backward=max(passes.backward, ready[-1])), taken


def beside_computing(
    passes: Passes, groups: Sequence[range], durations: Sequence[Duration], works: Sequence[Work], together: float
) -> tuple[Passes, list[Duration]]:
    """The same where the cores that compress also compute: the whole backward pass is their work.

    passes  of a step that exchanges nothing; making gradients is part of them
    """
    ready: list[float] = []
    spans: list[tuple[float, float]] = []
    _run([_working(passes, ready), _exchanging(groups, durations, works, ready, spans)], together)
    taken = [Duration(end - begin, each.copy_seconds) for (begin, end), each in zip(spans, durations, strict=True)]
    # What is computed after the last gradient is beside messages alone.
    return passes._replace(ready=tuple(ready), backward=passes.backward + ready[-1] - passes.ready[-1]), taken


def _working(passes: Passes, ready: list[float]) -> Thread:
    """The backward pass as work, from its start; `ready` gets the times of its gradients."""
    before = 0.0
    for computed in passes.ready:
        ready.append((yield _Task(work=computed - before)))
        before = computed


def _computing(passes: Passes, handling: Sequence[float], ready: list[float]) -> Thread:
    """The backward pass, from its start; `ready` gets the times at which gradients lie in their buckets."""
    for computed, seconds in zip(passes.ready, handling, strict=True):
        yield _Task(work=seconds / 2)
        yield _Task(until=computed)
        ready.append((yield _Task(work=seconds / 2)))


def _exchanging(
    groups: Sequence[range],
    durations: Sequence[Duration],
    works: Sequence[Work],
    ready: list[float],
    spans: list[tuple[float, float]],
) -> Thread:
    """The exchanges, one after the other; `spans` gets their begin and their end."""
    now = 0.0
    for group, duration, work in zip(groups, durations, works, strict=True):
        while len(ready) < group.stop:
            now = yield _Task(until=inf)
        begin = now
        now = yield _Task(work=work.before)
        now = yield _Task(until=now + duration.seconds - sum(work))
        now = yield _Task(work=work.after)
        spans.append((begin, now))


def _run(threads: Sequence[Thread], together: float) -> None:
    """All of them to their end, on cores where two that work at the same time have `together` of their speed each."""
    running, now = [_Running(thread) for thread in threads], 0.0
    while any(not each.done for each in running):
        speed = together if sum(each.works for each in running) > 1 else 1.0
        passed = min(each.left(now, speed) for each in running)
        now += passed
        for each in running:
            each.advance(now, passed * speed)


class _Running:
    """A thread with its task."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self._task: _Task | None = next(thread, None)

    @property
    def done(self) -> bool:
        """Whether it has come to its end."""
        return self._task is None

    @property
    def works(self) -> bool:
        """Whether it needs a core."""
        return self._task is not None and self._task.work > 0

    def left(self, now: float, speed: float) -> float:
        """Seconds until its task is done, at this speed; inf if it waits for the other thread."""
        if self._task is None:
            return inf
        return self._task.work / speed if self._task.work > 0 else max(0.0, self._task.until - now)

    def advance(self, now: float, worked: float) -> None:
        """Advance to the time `now`, after `worked` seconds of work."""
        if self._task is None:
            return
        if self._task.work > worked * (1 + ROUNDING):
            self._task = self._task._replace(work=self._task.work - worked)
        elif self._task.until <= now or self._task.until == inf:
            try:
                self._task = self._thread.send(now)
            except StopIteration:
                self._task = None
