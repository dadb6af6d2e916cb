"""Whether two sets of runs differ: a one-sided Welch test before anything is called better, worse or as good.

Welch, "The generalization of 'Student's' problem when several different population variances are involved", Biometrika
1947. As good is what two such tests tell apart from a difference of `margin` either way (Schuirmann's equivalence
test). A run is one seed; fewer than three say nothing.
"""

import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

from scipy import stats

LEVEL = 0.05
LEAST_RUNS = 3

Said = Literal["better", "worse", "as good", "not told apart", "too few seeds"]


class Comparison(NamedTuple):
    """What runs say of others.

    said        better, worse or as good at LEVEL, or that the runs do not tell
    difference  of the means, in the unit of the runs
    p           of the test that `said` rests on; None where there was none
    """

    said: Said
    difference: float
    p: float | None

    @property
    def words(self) -> str:
        """As a table says it."""
        if self.p is None:
            return self.said
        return f"{self.said} (p {f'= {self.p:.2g}' if self.p >= 0.001 else '< 0.001'})"


def compare(ours: Sequence[float], others: Sequence[float], margin: float) -> Comparison | None:
    """Whether `ours` are larger; None where one has no run. `margin` is a difference that does not matter."""
    if not ours or not others:
        return None
    difference = statistics.mean(ours) - statistics.mean(others)
    if min(len(ours), len(others)) < LEAST_RUNS:
        return Comparison("too few seeds", difference, None)
    alike = max(larger(ours, [each - margin for each in others]), larger([each + margin for each in others], ours))
    better, worse = larger(ours, others), larger(others, ours)
    if alike < LEVEL:
        return Comparison("as good", difference, alike)
    if min(better, worse) < LEVEL:
        return Comparison("better" if better < worse else "worse", difference, min(better, worse))
    return Comparison("not told apart", difference, min(better, worse))


def larger(ours: Sequence[float], others: Sequence[float]) -> float:
    """How probable such runs are, were the mean of `ours` not larger: Welch's one-sided p.

    Runs that are all alike have no spread to measure with: 0 where the means differ that way, else 1.
    """
    if len(set(ours)) == len(set(others)) == 1:
        return 0.0 if ours[0] > others[0] else 1.0
    return float(stats.ttest_ind(ours, others, equal_var=False, alternative="greater").pvalue)


def difference_between(ours: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """Between which the difference of the means lies: beyond either end Welch's one-sided test is below LEVEL."""
    difference = statistics.mean(ours) - statistics.mean(others)
    if len(set(ours)) == len(set(others)) == 1:
        return difference, difference
    tested = stats.ttest_ind(ours, others, equal_var=False)
    low, high = tested.confidence_interval(1 - 2 * LEVEL)
    return float(low), float(high)
