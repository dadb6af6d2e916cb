"""Whether two sets of runs differ: a one-sided Welch test before anything is called better, worse or as good.

Welch, "The generalization of 'Student's' problem when several different population variances are involved", Biometrika
1947. Where either side is possible, each has half of the level, so that runs that do not differ are called different
in LEVEL of the cases. In a family of comparisons, such as all comparisons of a table, this holds for all of them
together (Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statistics 1979).
Where runs of the same seed belong together, Student's test of their differences takes the place of Welch's.
As good: two such tests exclude a difference of `margin` either way (Schuirmann's equivalence test); the method may
still be better or worse by less than that. A run is one seed; fewer than three are not compared.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

LEVEL = 0.05
LEAST_RUNS = 3

Said = Literal["better", "worse", "as good", "not told apart", "too few seeds"]


class Comparison(NamedTuple):
    """What runs say of others.

    said        better, worse or as good at LEVEL, or that the runs do not tell
    difference  of the means, in the unit of the runs
    p           of the test that `said` rests on, of a difference for both sides; None where there was none
    within      of what is as good: better or worse, by less than the margin; "" where that is not told
    differs     p of a difference for both sides; alike: p of one beyond the margin
    """

    said: Said
    difference: float
    p: float | None
    within: str = ""
    differs: float | None = None
    alike: float | None = None

    @property
    def words(self) -> str:
        """The comparison as a table cell."""
        if self.p is None:
            return self.said
        within = f", a little {self.within}" if self.within else ""
        digits = 2 if (self.p < LEVEL) == (float(f"{self.p:.2g}") < LEVEL) else 3
        return f"{self.said}{within} (p {f'= {self.p:.{digits}g}' if self.p >= 0.001 else '< 0.001'})"


def compare(ours: Sequence[float], others: Sequence[float], margin: float) -> Comparison | None:
    """Whether `ours` are larger; None where one has no run. `margin` is a difference that does not matter."""
    if not ours or not others:
        return None
    difference = statistics.mean(ours) - statistics.mean(others)
    if min(len(ours), len(others)) < LEAST_RUNS:
        return Comparison("too few seeds", difference, None)
    alike = max(larger(ours, [each - margin for each in others]), larger([each + margin for each in others], ours))
    better, worse = larger(ours, others), larger(others, ours)
    either = min(2 * min(better, worse), 1.0)
    return _said(difference, "better" if better < worse else "worse", either, alike)


def paired(gains: Sequence[float], margin: float) -> Comparison | None:
    """Whether runs are better than others of the same seeds, by what each gains; None without any.

    Student's t. Where runs of a seed have the same start and the same data, what a seed is worth cancels.
    """
    if not gains:
        return None
    gain = statistics.fmean(gains)
    if len(gains) < LEAST_RUNS:
        return Comparison("too few seeds", gain, None)
    alike = max(_positive([margin - each for each in gains]), _positive([margin + each for each in gains]))
    better, worse = _positive(gains), _positive([-each for each in gains])
    return _said(gain, "better" if better < worse else "worse", min(2 * min(better, worse), 1.0), alike)


def _positive(values: Sequence[float]) -> float:
    """How probable such values are, were their mean not positive: Student's one-sided p."""
    middle, variance = statistics.fmean(values), variance_of_mean(values)
    if not variance:
        return 0.0 if middle > 0 else 1.0
    from scipy import special  # imported where it is needed, as in estimate.py

    return float(special.stdtr(len(values) - 1, -middle / math.sqrt(variance)))


def _said(difference: float, side: Said, differs: float, alike: float) -> Comparison:
    """Return the comparison, given the p of both tests."""
    if alike < LEVEL:
        return Comparison("as good", difference, alike, side if differs < LEVEL else "", differs, alike)
    return Comparison(side if differs < LEVEL else "not told apart", difference, differs, "", differs, alike)


def corrected(family: Sequence[Comparison | None]) -> list[Comparison | None]:
    """The comparisons with the p that each has as one of them all, and what they say by it; None stays.

    That they differ, and that they are as good, are two families: each is corrected for itself.
    """
    tested = [each for each in family if each is not None and each.p is not None]
    differ = iter(holm([each.differs for each in tested if each.differs is not None]))
    alike = iter(holm([each.alike for each in tested if each.alike is not None]))
    return [
        each if each is None or each.p is None
        else _said(each.difference, "better" if each.difference > 0 else "worse", next(differ), next(alike))
        for each in family
    ]  # fmt: skip


def holm(values: Sequence[float]) -> list[float]:
    """Each p, as large as it has to be for a family of them; in the same order."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found, least = [0.0] * len(values), 0.0
    for place, index in enumerate(order):
        least = max(least, min(1.0, (len(values) - place) * values[index]))
        found[index] = least
    return found


def tau_of(order: Sequence[float], other: Sequence[float]) -> float:
    """Kendall's tau of two orders of the same; NaN where one is none."""
    if min(len(set(order)), len(set(other))) <= 1:
        return math.nan
    from scipy import stats  # imported where it is needed, as in estimate.py

    return float(stats.kendalltau(order, other).statistic)


def larger(ours: Sequence[float], others: Sequence[float]) -> float:
    """How probable such runs are, were the mean of `ours` not larger: Welch's one-sided p.

    Runs that are all alike have no spread to measure with: 0 where the means differ that way, else 1.
    """
    if len(set(ours)) == len(set(others)) == 1:
        return 0.0 if ours[0] > others[0] else 1.0
    first, second = variance_of_mean(ours), variance_of_mean(others)
    t = (statistics.fmean(ours) - statistics.fmean(others)) / math.sqrt(first + second)
    from scipy import special  # imported where it is needed, as in estimate.py

    return float(special.stdtr(freedom(first, len(ours), second, len(others)), -t))


def variance_of_mean(values: Sequence[float]) -> float:
    """Variance of the mean of at least two values, in floats: `statistics` uses fractions and is 100 times as slow."""
    middle = statistics.fmean(values)
    return math.fsum((each - middle) ** 2 for each in values) / (len(values) - 1) / len(values)


def freedom(first: float, of_first: int, second: float, of_second: int) -> float:
    """Welch's and Satterthwaite's degrees of freedom, of two means with these variances, from `of_first` and
    `of_second` values.
    """
    if not first + second:
        return float(of_first + of_second - 2)
    return (first + second) ** 2 / (first**2 / (of_first - 1) + second**2 / (of_second - 1))
