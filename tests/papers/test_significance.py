"""Better, worse and as good: what a few seeds let one say."""

import pytest
from scipy import stats

from papers.significance import compare, corrected, larger


def test_the_p_is_welchs_by_hand():
    """t = (90 - 88) / sqrt(1 / 3 + 4 / 3); the degrees of freedom are Welch and Satterthwaite's."""
    ours, others = [89.0, 90.0, 91.0], [86.0, 88.0, 90.0]
    a, b = 1 / 3, 4 / 3
    freedom = (a + b) ** 2 / (a**2 / 2 + b**2 / 2)
    assert larger(ours, others) == pytest.approx(stats.t.sf(2 / (a + b) ** 0.5, freedom))


@pytest.mark.parametrize(
    ("ours", "others", "said"),
    [
        ([90.0, 90.1, 89.9], [86.0, 86.2, 85.9], "better"),
        ([86.0, 86.2, 85.9], [90.0, 90.1, 89.9], "worse"),
        ([90.0, 90.1, 89.9], [90.1, 90.0, 90.0], "as good"),
        ([90.0, 92.0, 88.0], [90.1, 87.5, 91.5], "not told apart"),
        ([90.0, 90.0, 90.0], [90.0, 90.0, 90.0], "as good"),
        ([90.0, 91.0], [80.0, 80.1, 80.2], "too few seeds"),
    ],
)
def test_what_is_said(ours, others, said):
    found = compare(ours, others, 0.5)
    assert found is not None and found.said == said
    assert found.difference == pytest.approx(sum(ours) / len(ours) - sum(others) / len(others))


def test_without_runs_nothing_is_said():
    assert compare([], [90.0], 0.5) is None


def test_a_difference_within_the_margin_is_as_good_although_it_is_certain():
    found = compare([90.01, 90.0, 90.02], [90.2, 90.21, 90.19], 0.5)
    assert found is not None and found.said == "as good"


def test_of_a_family_that_they_differ_and_that_they_are_alike_is_corrected_apart():
    """What is as good stays so beside many that differ, and a p that is shown is of what is said."""
    alike = compare([90.01, 90.0, 90.02], [90.2, 90.21, 90.19], 0.5)
    apart = compare([90.0, 92.0, 88.0], [90.1, 87.5, 91.5], 0.5)
    found = corrected([alike, apart, None, compare([90.0, 91.0], [80.0, 80.1, 80.2], 0.5)])
    assert [each and each.said for each in found] == ["as good", "not told apart", None, "too few seeds"]
    assert apart is not None and found[1] is not None and found[1].p == pytest.approx(apart.differs)
    assert alike is not None and found[0] is not None and found[0].p == pytest.approx(2 * (alike.alike or 0))
    close = [compare([90.0 + step, 90.1 + step, 89.9 + step], [90.0, 90.1, 89.9], 0.01) for step in (0.25, 0.26)]
    assert [each and each.said for each in close] == ["better", "better"]
    assert {each and each.said for each in corrected([*close, *[apart] * 30])} == {"not told apart"}
