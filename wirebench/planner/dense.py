"""What dense training reaches in a time: a method that takes as long has to be better than that."""

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

ALIKE = 0.02
"""Times that differ by no more are the same."""
LEAST_RUNS = 3
"""Seeds that training in larger batches needs, to count."""


class DenseRuns(NamedTuple):
    """A form of dense training, with several seeds.

    steps         that are counted, each of `accumulation` forward and backward passes
    losses        at the end, one a seed
    larger        whether it had larger batches; else it is the whole training, or one on fewer tokens
    whole         whether it is the training on all tokens
    """

    label: str
    steps: int
    accumulation: int
    losses: tuple[float, ...]
    larger: bool
    whole: bool

    def seconds(self, step: float, alone: float) -> float:
        """Seconds of the run. step: seconds of a dense step; alone: of its computing, which a larger batch repeats."""
        return self.steps * (step + (self.accumulation - 1) * alone)


class BestDense(NamedTuple):
    """Losses of the best dense training in a time, which one that is, and whether it took no longer."""

    losses: list[float]
    name: str
    within: bool


def reached(forms: Sequence[DenseRuns], step: float, dense_step: float, alone: float) -> tuple[float, bool]:
    """The best loss of these forms in as much time as a method's whole training takes, over the whole dense run's.

    step, dense_step  seconds of the method's step, and of a dense one; alone: of the dense one's computation
    False: every dense run takes longer, so a method's loss over this one is an upper bound.
    """
    whole = next(each for each in forms if each.whole)
    best = best_dense(whole.steps * step, [(each.seconds(dense_step, alone), each) for each in forms])
    assert best is not None, "the whole dense run is among them"
    return statistics.mean(best.losses) / statistics.mean(whole.losses), best.within


def best_dense(took: float, timed: Sequence[tuple[float, DenseRuns]]) -> BestDense | None:
    """Of these forms of dense training, with the seconds of their runs; None where a time or a loss lacks."""
    timed = sorted(timed, key=lambda each: each[0])
    tokens = [each for each in timed if not each[1].larger]
    if not tokens:
        return None
    no_longer = (1 + ALIKE) * took
    if no_longer >= tokens[-1][0] and not tokens[-1][1].whole:
        return None  # the whole dense run has no time: what it comes to by then is not known
    larger = [
        (list(each.losses), each.label)
        for seconds, each in timed
        if each.larger and seconds <= no_longer and len(each.losses) >= LEAST_RUNS
    ]
    theirs, name = min([_loss_on_tokens(no_longer, tokens), *larger], key=lambda each: statistics.mean(each[0]))
    in_larger = {each.label for _, each in timed if each.larger}
    return BestDense(theirs, name, no_longer >= tokens[0][0] or name in in_larger)


def _loss_on_tokens(took: float, timed: Sequence[tuple[float, DenseRuns]]) -> tuple[list[float], str]:
    """What dense training comes to in a time, for each seed, and in words on how many tokens that is.

    Between two runs the seeds lie around the point on the line as they do around the mean of the wider run, or of the
    one with fewer seeds: a line through two runs would have the spread of neither.
    """
    shortest, longest = timed[0], timed[-1]
    if took < shortest[0]:
        return list(shortest[1].losses), f"{shortest[1].label}, which takes longer"
    if took >= longest[0]:
        return list(longest[1].losses), longest[1].label
    (low, shorter), (high, longer) = next(pair for pair in pairwise(timed) if pair[0][0] <= took < pair[1][0])
    share = math.log(took / low) / math.log(high / low)
    ends = shorter.losses, longer.losses
    wide = max(ends, key=lambda each: (-len(each), statistics.pstdev(each)))
    shift = (1 - share) * statistics.mean(ends[0]) + share * statistics.mean(ends[1]) - statistics.mean(wide)
    return [loss + shift for loss in wide], f"between {shorter.label} and {longer.label}"
