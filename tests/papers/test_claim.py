"""A claim's verdict; what a few seeds let one say; published.toml, read whole or refused in one line."""

import math
import re
import statistics
from pathlib import Path

import pytest
from scipy import stats

from papers.claim import Claim, Verdict, together
from papers.estimate import Estimate
from papers.gs_sgd.variants import PUBLISHED
from papers.published import load
from papers.significance import compare, corrected, larger, paired, tau_of
from papers.study import Study, available
from wirebench.errors import UserError


def claim(*number: float, **more: object) -> Claim:
    given = {"id": "x", "text": "x", "where": "x", "unit": "x", "setting": "not stated", "tolerance": 0.05, **more}
    return Claim(number=number, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("holds", "number", "good", "bad"),
    [
        ("about", (2.0,), (1.9, 2.0, 2.1), (1.89, 2.11)),
        ("about", (2.0, 3.0), (1.9, 3.15), (1.89, 3.16)),
        ("at least", (2.0, 3.0), (1.9, 99.0), (1.89,)),
        ("at most", (2.0, 3.0), (0.0, 3.15), (3.16,)),
        ("one of", (3, 4), (3, 4, 3.1), (3.5, 5)),
    ],
)
def test_one_tolerance_for_all_claims(holds: str, number: tuple, good: tuple, bad: tuple) -> None:
    assert all(claim(*number, holds=holds).judge(value).good for value in good)
    assert all(claim(*number, holds=holds).judge(value).state == "not reproduced" for value in bad)


def test_what_was_not_measured_says_why() -> None:
    assert claim(2.0).judge(None).words == "not run here" == together({}).words
    assert claim(2.0, not_run="needs 96 GPUs").judge(None).words == "not run here: needs 96 GPUs"


def test_both_numbers_are_told_in_the_claims_unit() -> None:
    assert claim(2.0).judge(2.5).words == "not reproduced: 2.50x, not 2.00x"
    assert claim(0.144, unit="share, on average", no_effect=0.0).judge(0.28).words == (
        "direction reproduced: 28.0 %, not 14.4 %"
    )
    assert claim(100.0, unit="KB/s").judge(3.14159).words == "not reproduced: 3.14 KB/s, not 100 KB/s"
    assert claim(2.0).judge(3.0, expected=3.0).words == "reproduced"


def test_an_argument_against_the_figure_counts_where_it_is_missed() -> None:
    asked = claim(64.0, no_effect=1.0, contradicted="one bitmap alone bounds it to 32")
    assert asked.judge(21.3).words == "contradicted: 21.30x, not 64.00x; one bitmap alone bounds it to 32"
    assert asked.judge(63.0).words == "reproduced"


@pytest.mark.parametrize(
    ("number", "no_effect", "holds", "measured", "state"),
    [
        (0.8, 1.0, "about", 0.9, "direction reproduced"),
        (0.8, 1.0, "about", 0.5, "direction reproduced"),
        (0.8, 1.0, "about", 1.1, "not reproduced"),
        (0.8, 1.0, "at most", 0.9, "direction reproduced"),
        (1.0, 1.0, "at least", 1.0, "not decidable"),
        (1.0, 1.0, "at least", 1.01, "reproduced"),
        (1.0, 1.0, "at most", 0.9, "reproduced"),
        (1.0, 1.0, "at most", 1.2, "not reproduced"),
        (2.0, None, "about", 3.0, "not reproduced"),
    ],
)
def test_the_direction_is_the_claims_side_of_no_effect(
    number: float, no_effect: float | None, holds: str, measured: float, state: str
) -> None:
    assert claim(number, no_effect=no_effect, holds=holds).judge(measured).state == state


def between(value: float, low: float, high: float) -> Estimate:
    return Estimate(value, lambda level: (low, high))


@pytest.mark.parametrize(
    ("holds", "interval", "words"),
    [
        ("at most", (0.2, 1.4), "reproduced"),
        ("at most", (0.2, 1.6), "not decidable: between 0.2 and 1.6 points"),
        ("at most", (1.6, 2.0), "not reproduced: 1.8 points, not 1.5 points"),
        ("at least", (1.6, 2.0), "reproduced"),
        ("about", (1.4, 1.6), "not decidable: between 1.4 and 1.6 points"),
    ],
)
def test_an_estimate_bears_a_claim_out_with_its_whole_interval(
    holds: str, interval: tuple[float, float], words: str
) -> None:
    found = between(statistics.mean(interval), *interval)
    assert claim(1.5, unit="points", tolerance=0.0, holds=holds).judge(found).words == words


@pytest.mark.parametrize(
    ("records", "beyond"),
    [
        (
            {"parameters": 2e6, "rounds": 200.0},
            "2,000,000 parameters, and the claim is of 60,000,000 parameters and more",
        ),
        ({"parameters": 6e7, "rounds": 14.0}, "14 rounds, and the claim is of 100 rounds and more"),
        ({"parameters": 6e7}, "an unknown number of rounds, and the claim is of 100 rounds and more"),
        ({"parameters": 6e7, "rounds": 100.0, "steps": 1.0}, ""),
    ],
)
def test_a_claim_says_where_it_holds(records: dict[str, float | None], beyond: str) -> None:
    assert claim(1.0, least={"parameters": 60e6, "rounds": 100}).outside(records) == beyond


def test_a_claim_about_several_settings_names_those_where_it_fails() -> None:
    good, bad, direction = (claim(2.0, no_effect=1.0).judge(each) for each in (2.0, 0.5, 3.0))
    assert together({"a": good, "b": good}).words == "reproduced"
    assert together({"a": good, "b": bad, "c": direction}).words == "not reproduced (b, c)"
    assert together({"a": good, "c": direction}).words == "direction reproduced (c)"
    assert together({"a": bad}).words == "not reproduced: 0.50x, not 2.00x"


def test_what_was_run_and_gave_no_number_is_not_what_was_not_run() -> None:
    good, unrun, diverged = claim(2.0).judge(2.0), claim(2.0).judge(None), Verdict("not decidable", why="diverged")
    assert together({"a": diverged, "b": diverged}).words == "not decidable (a, b)"
    assert together({"a": good, "b": unrun, "c": diverged}).words == "not decidable (c)"
    assert together({"a": good, "b": unrun}).words == "reproduced"
    assert together({"a": unrun, "b": unrun}).words == "not run here"


@pytest.mark.parametrize(
    ("claimed", "measured", "low", "high", "stated", "open_", "why"),
    [
        (1.06, 0.94, 0.93, 0.95, "not reproduced", "not decidable", "0.94x, not 1.06x"),
        (1.06, 0.96, 0.94, 0.99, "not decidable", "not decidable", "between 0.94x and 0.99x"),
        (1.06, 1.09, 1.07, 1.11, "reproduced", "direction reproduced", ""),
        (1.06, 1.09, 0.91, 1.29, "not decidable", "not decidable", "between 0.91x and 1.29x"),
        (1.06, 1.50, 1.45, 1.55, "direction reproduced", "direction reproduced", "1.50x, not 1.06x"),
        (1.20, 1.12, 1.04, 1.20, "reproduced", "direction reproduced", ""),
        (1.20, 1.07, 1.02, 1.12, "direction reproduced", "direction reproduced", "1.07x, not 1.20x"),
        (3.12, 1.02, 0.90, 1.10, "not reproduced", "not decidable", "1.02x, not 3.12x"),
        (1.23, 1.00, 1.00, 1.00, "not reproduced", "not decidable", "1.00x, not 1.23x"),
    ],
)
def test_what_a_ratio_says_of_a_claim(
    claimed: float, measured: float, low: float, high: float, stated: str, open_: str, why: str
) -> None:
    """What the source leaves open makes a hit as undecided as a miss."""
    found, keys = between(measured, low, high), {"tolerance": 0.1, "no_effect": 1.0}
    assert claim(claimed, **keys).judge(found)[::2] == (stated, why)
    told = claim(claimed, unstated="no k", **keys).judge(found)
    assert told[::2] == (open_, f"{why}; no k" if why else "no k")


def test_gs_sgds_ratios_are_those_of_its_throughputs() -> None:
    rates = PUBLISHED.tables["images_per_second"]
    ratios = [each for each in PUBLISHED.claims.values() if {"rival", "model"} <= each.about.keys()]
    assert [each.number[0] for each in ratios] == [1.29, 1.06, 3.12, 1.23]
    for each in ratios:
        model = rates[each.about["model"]]
        assert each.number[0] == round(model["gs_sgd"] / model[each.about["rival"]], 2)
        assert each.judge(0.5).words.endswith("; the paper states neither k nor the sketch's size")
    for each in PUBLISHED.claims.values():
        if rival := each.about.get("mean_over"):
            mean = statistics.mean(rates[model]["gs_sgd"] / rates[model][rival] for model in ("ResNet-20", "VGG-16"))
            assert each.number[0] == pytest.approx(mean, rel=0.005)
    for rival in ("gtopk", "sketched_sgd"):
        both = sorted(round(rates[model]["gs_sgd"] / rates[model][rival], 1) for model in ("ResNet-20", "VGG-16"))
        assert list(PUBLISHED.claims[f"range_over_{rival}"].number) == both


@pytest.mark.parametrize("name", available())
def test_every_study_says_what_it_claims_and_where(name: str) -> None:
    found = Study(name).published
    assert found.about and all(found.source.values())
    assert all(each.text and each.where and each.setting and each.unit for each in found.claims.values())


CLAIM = """[[claims]]
id = "c"
text = "t"
where = "w"
number = 1.5
unit = "x"
setting = "not stated"
tolerance = 0.1
"""
WHOLE = f"""about = "x"
[source]
authors = "a"
title = "t"
published = "p"
{CLAIM}"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('about = "x"', "about = ", "not valid TOML"),
        ('authors = "a"', "", "source.authors: needs a string, got None"),
        ('where = "w"', "", "claims[c].where: needs a string, got None"),
        ("number = 1.5", 'number = "much"', "claims[c].number: needs a number or a list of a number, got 'much'"),
        ("number = 1.5", "number = []", "claims[c].number: needs one number above 0, or both ends of a range, got []"),
        ("number = 1.5", "number = -1.5", "claims[c].number: needs one number above 0"),
        ("number = 1.5", "number = [0.4, 0.3]", "both ends of a range, got [0.4, 0.3]"),
        ("tolerance = 0.1", "tolerance = 1.5", "claims[c].tolerance: lies in [0, 1), got 1.5"),
        ("[[claims]]", f"{CLAIM}[[claims]]", "two have the id 'c'"),
        ("tolerance = 0.1", "tolerence = 0.1", "claims[c]: tolerence: no such key; did you mean 'tolerance'?"),
        ("tolerance = 0.1", 'tolerance = 0.1\nholds = "maybe"', "claims[c].holds: needs one of about, at least"),
        ("tolerance = 0.1", "tolerance = 0.1\nleast = { params = 1 }", "least: params: no such key; did you mean"),
        ("tolerance = 0.1", "tolerance = 0.1\nleast = { steps = 'x' }", "least.steps: needs a number, got 'x'"),
        ("tolerance = 0.1", "tolerance = 0.1\nleast = { steps = 0 }", "least.steps: needs a number above 0, got 0"),
        ("tolerance = 0.1", "tolerance = 0.1\n[[excluded]]\ntext = 't'", "excluded[0].where: needs a string, got None"),
        ("tolerance = 0.1", "tolerance = 0.1\n[tables.t]\nunit = 's'", "tables.t.where: needs a string, got None"),
    ],
)
def test_a_mistake_in_published_toml_is_named(old: str, new: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "published.toml").write_text(WHOLE)
    assert load(tmp_path).claims["c"].number == (1.5,)
    (tmp_path / "published.toml").write_text(WHOLE.replace(old, new))
    with pytest.raises(UserError, match=re.escape(said)):
        load(tmp_path)


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
        ([90.01, 90.0, 90.02], [90.2, 90.21, 90.19], "as good"),
    ],
)
def test_what_is_said(ours, others, said):
    """The last two differ for certain, by less than the margin."""
    assert compare([], others, 0.5) is None
    found = compare(ours, others, 0.5)
    assert found is not None and found.said == said
    assert found.difference == pytest.approx(sum(ours) / len(ours) - sum(others) / len(others))


def test_kendalls_tau_of_two_orders():
    assert tau_of([1.0, 2.0, 3.0], [1.0, 3.0, 2.0]) == pytest.approx(1 / 3)
    assert math.isnan(tau_of([1.0, 2.0], [1.0, 1.0]))


@pytest.mark.parametrize("gains", [[0.1, 0.3, 0.2], [-0.1, -0.35, -0.2, -0.3], [0.01, -0.02, 0.005]])
def test_runs_of_the_same_seeds_are_compared_by_students_t(gains: list[float]) -> None:
    found = paired(gains, 0.05)
    assert found is not None and found.difference == pytest.approx(statistics.mean(gains))
    assert found.differs == pytest.approx(stats.ttest_1samp(gains, 0.0).pvalue)
    sides = (
        stats.ttest_1samp(gains, edge, alternative=side).pvalue for edge, side in ((0.05, "less"), (-0.05, "greater"))
    )
    assert found.alike == pytest.approx(max(sides))
    few = paired(gains[:2], 0.05)
    assert paired([], 0.05) is None and few is not None and few.said == "too few seeds"
    same = paired([0.0] * 3, 0.05)
    assert same is not None and (same.said, same.differs) == ("as good", 1.0)


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
