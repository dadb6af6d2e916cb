"""A measurement with the interval in which its true value lies, at any level: what every verdict on repeats rests on.

Speeds are compared turn by turn on logarithms (Student's t). Where two runs do not differ, the logarithm of their
ratio is symmetric about 0 whatever the noise, so that outliers widen the interval and show no effect. Means of seeds
are compared by Welch's t, their ratios by Fieller's theorem ("Some problems in interval estimation", J. R. Stat.
Soc. B 1954), sums of estimates by the variance that their intervals show (Zou and Donner, Statistics in Medicine
2008), and many comparisons together by Holm (Scand. J. Statistics 1979).
"""

import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from papers.significance import LEVEL, variance_of_mean
from papers.significance import freedom as freedom_of

Ends = tuple[float, float]
ANYTHING = (-math.inf, math.inf)
Name = TypeVar("Name", bound=Hashable)


class Estimate(NamedTuple):
    """A number, and `between`: its interval that leaves out the true value in a share `level` of the cases."""

    value: float
    between: Callable[[float], Ends]

    @property
    def ends(self) -> Ends:
        """The interval of 95 %; without ends where there are too few repeats to tell."""
        return self.between(LEVEL)

    def mapped(self, form: Callable[[float], float]) -> "Estimate":
        """Estimate of `form` of the number; `form` is monotonic."""

        def between(level: float) -> Ends:
            low, high = sorted(map(form, self.between(level)))
            return low, high

        return Estimate(form(self.value), between)

    def words(self, form: str = "{:.2f}x", bracket: str = "{:.2f}") -> str:
        """The number, and in brackets the ends of its interval."""
        low, high = self.ends
        told = form.format(self.value)
        if not math.isfinite(low) or not math.isfinite(high):
            return f"{told} [too few repeats]"
        return f"{told} [{bracket.format(low)} to {bracket.format(high)}]"

    def percent(self, digits: int = 1) -> str:
        """A share in percent, and in brackets the ends of its interval."""
        return self.mapped(lambda share: 100 * share).words(f"{{:.{digits}f}} %", f"{{:.{digits}f}}")


def exact(value: float) -> Estimate:
    """Return an estimate without an interval, for a counted or computed value."""
    return Estimate(value, lambda level: (value, value))


def mean(values: Sequence[float]) -> Estimate:
    """Estimate the mean of the distribution that these were drawn from, by Student's t."""
    middle = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(middle, lambda level: ANYTHING)
    error = math.sqrt(variance_of_mean(values))
    return Estimate(middle, lambda level: _around(middle, error, len(values) - 1, level))


def ratio_of_turns(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Estimate | None:
    """Ours over theirs, both positive and by turn: geometric mean; None without any of one side.

    Turns that both have ran one after the other: what slows a machine down slows both. Where the two have no turn in
    common, or others as well, their logarithms are compared by Welch's test.
    """
    if not ours or not theirs:
        return None
    if ours.keys() == theirs.keys():
        logs = mean([math.log(ours[turn] / theirs[turn]) for turn in ours])
    else:
        logs = difference([math.log(each) for each in ours.values()], [math.log(each) for each in theirs.values()])
    return logs.mapped(_exp)


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Estimate the difference of means, ours less theirs, by Welch's t."""
    middle = statistics.fmean(ours) - statistics.fmean(theirs)
    if min(len(ours), len(theirs)) < 2:
        return Estimate(middle, lambda level: ANYTHING)
    first, second = variance_of_mean(ours), variance_of_mean(theirs)
    freedom = freedom_of(first, len(ours), second, len(theirs))
    return Estimate(middle, lambda level: _around(middle, math.sqrt(first + second), freedom, level))


def ratio_of_means(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Ours over theirs, by Fieller's theorem with Welch's degrees of freedom: every ratio that the test of
    `mean(ours) - ratio x mean(theirs)` does not refuse. Without ends where the rival's mean may be 0.
    """
    mine, rival = statistics.fmean(ours), statistics.fmean(theirs)
    ratio = mine / rival
    if min(len(ours), len(theirs)) < 2:
        return Estimate(ratio, lambda level: ANYTHING)
    first, second = variance_of_mean(ours), variance_of_mean(theirs)
    freedom = freedom_of(first, len(ours), ratio**2 * second, len(theirs))

    def between(level: float) -> Ends:
        t = _t(level, freedom) if first + second else 0.0
        a, b, c = rival**2 - t**2 * second, mine * rival, mine**2 - t**2 * first
        if a <= 0:
            return ANYTHING
        root = math.sqrt(max(b**2 - a * c, 0.0))
        return (b - root) / a, (b + root) / a

    return Estimate(ratio, between)


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of estimates of runs that have nothing to do with each other."""
    middle = statistics.fmean(each.value for each in estimates)

    def between(level: float) -> Ends:
        ends = [(each.value, *each.between(level)) for each in estimates]
        below = math.sqrt(sum((value - low) ** 2 for value, low, _ in ends)) / len(ends)
        above = math.sqrt(sum((high - value) ** 2 for value, _, high in ends)) / len(ends)
        return middle - below, middle + above

    return Estimate(middle, between)


def ratio_of(first: Estimate, second: Estimate) -> Estimate:
    """Estimate the ratio of two estimates, both positive."""
    logs = first.mapped(_log), second.mapped(lambda value: -_log(value))
    return mean_of(logs).mapped(lambda value: _exp(2 * value))


def quantile(values: Sequence[float], share: float) -> Estimate:
    """Quantile of the distribution that these values were drawn from, by order statistics: each end is a value that the
    quantile passes with a negligible probability.

    Without an end where there are too few of them.
    """
    ordered = [-math.inf, *sorted(values), math.inf]

    def between(level: float) -> Ends:
        # Imported where it is needed: it takes a second, and most of what reads estimates has no use for it.
        from scipy import stats

        low, high = (int(stats.binom.ppf(each, len(values), share)) for each in (level / 2, 1 - level / 2))
        return ordered[low], ordered[high + 1]

    return Estimate(ordered[max(1, math.ceil(share * len(values)))], between)


def most_of_none(trials: int) -> float:
    """The largest share of all trials in which something may happen that did not in these: one-sided, at LEVEL."""
    return 1 - LEVEL ** (1 / trials)


def surely(family: Mapping[Name, Estimate], says: Callable[[Name, Ends], bool]) -> set[Name]:
    """The estimates whose interval decides although they are many: by Holm, one of them is wrong in LEVEL of the cases.

    says  whether an interval decides; a wider one of the same estimate decides no more than a narrower one
    """
    found: set[Name] = set()
    while True:
        rest = family.keys() - found
        more = {name for name in rest if says(name, family[name].between(LEVEL / len(rest)))}
        if not more:
            return found
        found |= more


def _around(middle: float, error: float, freedom: float, level: float) -> Ends:
    if not error:
        return middle, middle
    half = _t(level, freedom) * error
    return middle - half, middle + half


def _t(level: float, freedom: float) -> float:
    """Beyond which Student's t is in a share `level` of the cases, either side."""
    from scipy import special

    return float(special.stdtrit(freedom, 1 - level / 2))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
