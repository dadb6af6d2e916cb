"""How often a verdict errs, by the project's own `judge`; and intervals beside what their theorems give by hand."""

import functools
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest
from scipy import stats

from papers import estimate
from papers.claim import Claim, together
from papers.estimate import Estimate
from papers.runner import ROOT
from tests.papers.test_claim import claim as claim_of

NOISE = 0.02
EFFECTS = ("reproduced", "direction reproduced")
Draw = Callable[[random.Random, int, float], Mapping[str, Estimate]]
"""Estimates by setting, of so many repeats, with a true effect of that share."""


def times(random_: random.Random, count: int, middle: float, noise: float = NOISE) -> list[float]:
    return [middle * math.exp(random_.gauss(0.0, noise)) for _ in range(count)]


def turns(random_: random.Random, repeats: int, effect: float) -> Estimate:
    both = (times(random_, repeats, 1 + effect), times(random_, repeats, 1.0))
    found = estimate.ratio_of_turns(*({str(turn): each for turn, each in enumerate(those)} for those in both))
    assert found is not None
    return found


def speed(random_: random.Random, repeats: int, effect: float) -> dict[str, Estimate]:
    return {"": turns(random_, repeats, effect)}


def losses(random_: random.Random, repeats: int, effect: float) -> dict[str, Estimate]:
    return {"": estimate.ratio_of_means(times(random_, repeats, 1 + effect), times(random_, repeats, 1.0))}


def accuracy(random_: random.Random, repeats: int, effect: float) -> dict[str, Estimate]:
    """In points, of noise of two and effects of five."""
    ours, theirs = ([random_.gauss(90 + each, 100 * NOISE) for _ in range(repeats)] for each in (100 * effect, 0.0))
    return {"": estimate.difference(ours, theirs)}


def share(random_: random.Random, repeats: int, effect: float) -> dict[str, Estimate]:
    """Of the rival's time that is saved."""
    return {"": turns(random_, repeats, -effect).mapped(lambda ratio: 1 - ratio)}


def several(random_: random.Random, repeats: int, effect: float) -> dict[str, Estimate]:
    return {f"setting {each}": turns(random_, repeats, effect) for each in range(3)}


KINDS: dict[str, tuple[Draw, float, str]] = {
    "speed": (speed, 1.0, "x"), "ratio of losses": (losses, 1.0, "x"), "accuracy": (accuracy, 0.0, "points"),
    "share": (share, 0.0, "share"), "several settings": (several, 1.0, "x"),
}  # fmt: skip


claim = functools.partial(claim_of, tolerance=0.0)


def states(asked: Sequence[Claim], draw: Draw, repeats: int, effect: float, draws: int) -> list[Counter[str]]:
    """For each claim, which verdicts as many draws have."""
    random_, found = random.Random(repeats), [Counter[str]() for _ in asked]
    for _ in range(draws):
        estimates = draw(random_, repeats, effect)
        for each, counted in zip(asked, found, strict=True):
            counted[together(each.judge_each(estimates)).state] += 1
    return found


def of_effect(kind: str, least: float = 0.0) -> Claim:
    """That there is an effect of this size or more."""
    _, none, unit = KINDS[kind]
    return claim(none + (100 * least if unit == "points" else least), unit=unit, no_effect=none, holds="at least")


@pytest.mark.parametrize("repeats", [5, 7])
@pytest.mark.parametrize("kind", list(KINDS))
def test_no_effect_comes_out_as_one_in_at_most_5_percent(kind: str, repeats: int) -> None:
    [found] = states([of_effect(kind)], KINDS[kind][0], repeats, 0.0, 10_000)
    assert sum(found[state] for state in EFFECTS) <= 300


POWER = {
    ("speed", 5): 81, ("speed", 7): 96, ("ratio of losses", 5): 91, ("ratio of losses", 7): 98,
    ("accuracy", 5): 92, ("accuracy", 7): 99, ("share", 5): 85, ("share", 7): 97,
    ("several settings", 5): 53, ("several settings", 7): 90,
}  # fmt: skip
"""In percent, within what 2,000 draws tell; docs/studies.md states these."""


@pytest.mark.parametrize(("kind", "repeats"), list(POWER))
def test_an_effect_of_5_percent_is_seen_and_no_true_figure_is_missed(kind: str, repeats: int) -> None:
    """The second claim is of the true effect itself, at the end of what bears it out."""
    claims = of_effect(kind), of_effect(kind, 0.05)
    seen, true = states(claims, KINDS[kind][0], repeats, 0.05, 2000)
    assert seen["reproduced"] / 20 == pytest.approx(POWER[kind, repeats], abs=3)
    assert true["not reproduced"] <= 40
    row = f"| {kind} | {repeats} | {POWER[kind, repeats]} % |"
    assert row in (ROOT / "docs/studies.md").read_text(encoding="utf-8")


def cauchys(random_: random.Random) -> float:
    return random_.gauss(0, 1) / abs(random_.gauss(0, 1))


def one_sided(random_: random.Random) -> float:
    return random_.expovariate(1)


@pytest.mark.parametrize("tail", [cauchys, one_sided])
def test_outliers_make_no_effect(tail: Callable[[random.Random], float]) -> None:
    """Of two alike the logarithm of the ratio is symmetric, whatever the noise."""
    random_, asked, effects = random.Random(0), of_effect("speed"), 0
    for _ in range(2000):
        both = ({str(turn): math.exp(NOISE * max(-99, min(99, tail(random_)))) for turn in range(5)} for _ in range(2))
        effects += asked.judge(estimate.ratio_of_turns(*both)).state in EFFECTS
    assert effects <= 0.05 * 2000


def test_the_interval_of_a_ratio_is_fiellers() -> None:
    """Every ratio that Welch's test of ours against the ratio times theirs does not refuse."""
    ours, theirs = [2.0, 2.1, 2.3], [1.0, 1.05, 0.98]
    found = estimate.ratio_of_means(ours, theirs)
    spread = [sum((each - sum(v) / 3) ** 2 for each in v) / 6 for v in (ours, theirs)]
    other = found.value**2 * spread[1]
    freedom = (spread[0] + other) ** 2 / (spread[0] ** 2 / 2 + other**2 / 2)
    for end in found.ends:
        gap = abs(sum(ours) / 3 - end * sum(theirs) / 3) / math.sqrt(spread[0] + end**2 * spread[1])
        assert gap == pytest.approx(stats.t.isf(0.025, freedom))
    assert estimate.ratio_of_means([1.0, 1.1, 0.9], [0.1, -0.1, 0.05]).ends == estimate.ANYTHING


def test_the_interval_of_a_difference_is_welchs() -> None:
    ours, theirs = [90.0, 91.0, 92.5], [88.0, 90.0, 90.5, 87.0]
    expected = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    assert estimate.difference(ours, theirs).ends == pytest.approx((expected.low, expected.high))


def test_turns_that_one_side_lacks_are_compared_without_pairs() -> None:
    ours, theirs = {"0": 2.0, "1": 2.2, "2": 2.1}, {"0": 1.0, "1": 1.1}
    found = estimate.ratio_of_turns(ours, theirs)
    logs = [[math.log(each) for each in those.values()] for those in (ours, theirs)]
    low, high = stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.95)
    assert found is not None and found.ends == pytest.approx((math.exp(low), math.exp(high)))


def test_a_few_repeats_have_no_interval() -> None:
    found = estimate.ratio_of_turns({"0": 1.2}, {"0": 1.0})
    assert found is not None and found.words() == "1.20x [too few repeats]"
    assert claim(1.0, no_effect=1.0, holds="at least").judge(found).state == "not decidable"
    assert estimate.ratio_of_turns({}, {"0": 1.0}) is None


def test_sums_and_ratios_of_estimates() -> None:
    """By hand: half the root of the sum of squares; on logarithms the root of it."""

    def within_tenth(value: float) -> Estimate:
        return Estimate(value, lambda level: (value / 1.1, value * 1.1))

    first, second = within_tenth(2.0), within_tenth(1.0)
    low, high = estimate.mean_of([first, second]).ends
    assert low == pytest.approx(1.5 - math.hypot(2 - 2 / 1.1, 1 - 1 / 1.1) / 2)
    assert high == pytest.approx(1.5 + math.hypot(0.2, 0.1) / 2)
    ratio = estimate.ratio_of(first, second)
    assert (ratio.value, *ratio.ends) == pytest.approx((2.0, *(2 * 1.1 ** (sign * math.sqrt(2)) for sign in (-1, 1))))


def test_holm_is_stricter_with_the_first_of_many() -> None:
    def down_to(p: float) -> Estimate:
        """Whose interval holds 0 from that level on."""
        return Estimate(1.0, lambda level: (1 - p / level, 2.0))

    sure, unsure = down_to(0.001), down_to(0.03)
    alone = {"unsure": unsure}
    assert estimate.surely(alone, lambda _, ends: ends[0] > 0) == {"unsure"}
    assert estimate.surely({**alone, "sure": sure}, lambda _, ends: ends[0] > 0) == {"sure", "unsure"}
    assert estimate.surely({**alone, "too": unsure}, lambda _, ends: ends[0] > 0) == set()


def test_what_never_happened_has_a_bound() -> None:
    assert estimate.most_of_none(360) == pytest.approx(0.0083, abs=1e-4)


def test_a_quantile_lies_between_values_that_few_are_beyond() -> None:
    found = estimate.quantile([float(each) for each in range(1, 101)], 0.95)
    low, high = (stats.binom.ppf(each, 100, 0.95) for each in (0.025, 0.975))
    assert (found.value, *found.ends) == (95.0, low, high + 1)
    assert estimate.quantile([1.0, 2.0], 0.95).ends[1] == math.inf


def test_one_of_several_settings_is_missed_by_chance() -> None:
    """Each of five by itself is beyond 95 %; of five that is not much."""
    alike = {f"{each}": estimate.mean([1.0, 1.0, 1.0, 1.0, 1.0]) for each in range(4)}
    doubtful: Sequence[float] = [0.99, 0.98, 0.97, 0.99, 0.999]
    asked = claim(1.0, holds="at least")
    assert asked.judge(estimate.mean(doubtful)).state == "not reproduced"
    assert asked.judge_each({**alike, "5": estimate.mean(doubtful)})["5"].state == "not decidable"
    surely = estimate.mean([each - 0.1 for each in doubtful])
    assert asked.judge_each({**alike, "5": surely})["5"].state == "not reproduced"
