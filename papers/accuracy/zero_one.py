"""What the constants of 0/1 Adam and 1-bit Adam let them send: in a run of the study, and in their authors' setting."""

from functools import lru_cache
from typing import NamedTuple

from papers.accuracy.curve import steps_of
from papers.accuracy.rows import Method
from wirebench.comm.base import ring_reduce_bytes
from wirebench.compressors.common.intervals import Intervals
from wirebench.record.notes import NotedRun

AUTHORS_STEPS, AUTHORS_DENSE = 152_000, 23_000
"""Steps of BERT-Large's first phase, and how many of these 1-bit Adam makes before it freezes the variance."""
AUTHORS = Intervals(kappa=16, freeze_step=12_500, double_every=32_678, longest=16)
"""Intervals of 0/1 Adam there: the variance is updated until the learning rate has risen."""
AUTHORS_BITS = 16
"""Bits of a dense step's value: they train in half precision."""
_CONSTANTS = Intervals._fields


class Rounds(NamedTuple):
    """Steps of a run that exchange: dense ones, and those that sum one bit."""

    dense: int
    onebit: int

    @property
    def all(self) -> int:
        """Both."""
        return self.dense + self.onebit


@lru_cache
def rounds_of(intervals: Intervals, steps: int) -> Rounds:
    """Return the rounds of a run of `steps` steps."""
    dense = intervals.dense_steps(steps - 1)
    ends = sum(begin + length - 1 == step for step in range(steps) for begin, length in (intervals.around(step),))
    return Rounds(dense, ends - dense)


def authors_bytes() -> float:
    """How many times as much 1-bit Adam sends as 0/1 Adam in the authors' setting, by the bits of a value."""
    mine = rounds_of(AUTHORS, AUTHORS_STEPS)
    theirs = AUTHORS_DENSE * AUTHORS_BITS + AUTHORS_STEPS - AUTHORS_DENSE
    return theirs / (mine.dense * AUTHORS_BITS + mine.onebit)


def authors_fewer_rounds() -> float:
    """Share of 1-bit Adam's rounds, one a step, that 0/1 Adam does without in the authors' setting."""
    return 1 - rounds_of(AUTHORS, AUTHORS_STEPS).all / AUTHORS_STEPS


def expected_bytes(ours: Method, rival: Method) -> float | None:
    """How many times as much the rival's run has to send by the constants of both; None where a record lacks them."""
    mine, theirs = _bytes(ours.runs[0]), _bytes(rival.runs[0])
    return theirs / mine if mine and theirs else None


def expected_fewer_rounds(ours: Method, rival: Method) -> float | None:
    """Share of the rival's rounds that this run's constants do without; None where a record lacks them."""
    mine, theirs = _rounds(ours.runs[0]), _rounds(rival.runs[0])
    return 1 - mine.all / theirs.all if mine and theirs else None


def _rounds(run: NotedRun) -> Rounds | None:
    constants = [run.has("config", "compressor", name) for name in _CONSTANTS]
    if None in constants or not steps_of(run):
        return None
    return rounds_of(Intervals(*constants), steps_of(run))


def _bytes(run: NotedRun) -> float | None:
    """Bytes of a run, by its own constants."""
    found, numel, size = _rounds(run), run.record["parameters"], run.record["world_size"]
    if found is None:
        return None
    # A sum of bits, too, sends as much as a ring: the others' shares, then the sum of a rank's own to all others.
    return found.dense * ring_reduce_bytes(4 * numel, size) + found.onebit * ring_reduce_bytes(numel // 8, size)
