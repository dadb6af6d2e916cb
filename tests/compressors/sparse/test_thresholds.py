import math
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.compressors.twins import hard_vectors, laplace, ranking, top_k_reference
from wirebench.compressors.sparse import selection, thresholds
from wirebench.compressors.sparse.thresholds import LARGEST, Rule, above, choose, floor_of
from wirebench.gradient.context import ExchangeContext

NAN, INF = math.nan, math.inf
WORLD = ExchangeContext(0, 1)
RULES: tuple[Rule, ...] = ("exact", "sampled", "gaussian", "sidco")
LARGE = 12_003

values = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 1e-45, -1e-45, 1e-38, 3e38, -3e38, INF, -INF, NAN])
floats = st.one_of(values, st.floats(width=32))
limits = st.one_of(st.sampled_from([0.0, 1e-45, 0.5, 1.0, 1e38, LARGEST, INF, NAN]), st.floats(0, 3))


@contextmanager
def small_parts():
    """Few elements make many rows and parts, and none are too few for an estimate."""
    with patch.multiple(thresholds, SMALL=0, ROW_BITS=2, IN_ROWS={"cpu"}), patch.object(selection, "PART", 16):
        yield


def is_above(value: float, limit: float) -> bool:
    return not math.isfinite(value) or abs(value) > limit


def fp32(number: float) -> float:
    return torch.tensor(number, dtype=torch.float32).item()


@given(st.lists(floats, max_size=70), limits, st.sampled_from([0.0, 0.05, 1.0]))
def test_above_finds_what_is_larger_and_what_is_not_finite(numbers, limit, share):
    x = torch.tensor(numbers, dtype=torch.float32)
    with small_parts():
        found = above(x, limit, share)
    assert found.dtype == torch.int64
    assert found.tolist() == [i for i, value in enumerate(x.tolist()) if is_above(value, fp32(limit))]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("in_rows", ["cpu", "cuda"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.9])
@pytest.mark.parametrize("limit", [0.0, 0.01, 2.0, 3.0, 4.0, 9.0])
@pytest.mark.parametrize("numel", [LARGE, 2 * selection.PART + 5])
def test_above_in_all_densities(limit, share, numel, in_rows, monkeypatch):
    monkeypatch.setattr(thresholds, "IN_ROWS", {in_rows})
    x = torch.randn(numel, generator=torch.Generator().manual_seed(1))
    assert torch.equal(above(x, limit, share), torch.nonzero(x.abs() > limit).squeeze(1))


@pytest.mark.parametrize("in_rows", ["cpu", "cuda"])
def test_peaks_answer_again(in_rows, monkeypatch):
    monkeypatch.setattr(thresholds, "IN_ROWS", {in_rows})
    x = torch.randn(LARGE, generator=torch.Generator().manual_seed(1))
    peaks = thresholds.Peaks(x)
    for limit in (3.0, 1.0, 3.5):
        assert torch.equal(peaks.above(limit), torch.nonzero(x.abs() > limit).squeeze(1))


@given(st.lists(floats, max_size=40), st.integers(1, 45))
def test_the_floor_is_just_below_the_kth_largest(numbers, k):
    x = torch.tensor(numbers, dtype=torch.float32)
    floor, nonzeros = floor_of(x, k), int(torch.count_nonzero(x))
    found = above(x, floor).tolist()
    assert 0 <= floor <= LARGEST
    if nonzeros < k:
        assert floor == 0.0
        assert len(found) == nonzeros
        return
    assert set(ranking(x)[:k]) <= set(found)
    least = abs(x.tolist()[ranking(x)[k - 1]])
    if math.isfinite(least):  # and no more than what is as large
        assert all(not abs(x.tolist()[i]) < least for i in found)


def check(x: Tensor, k: int, rule: Rule) -> Tensor:
    """What every rule promises."""
    before = x.clone()
    found = choose(x, k, rule, WORLD)
    assert torch.equal(x.view(torch.int32), before.view(torch.int32)), "the input was changed"
    assert found.dtype == torch.int64
    assert found.tolist() == sorted(set(found.tolist()))
    nonzeros = int(torch.count_nonzero(x))
    assert min(nonzeros, math.ceil(thresholds.FEWEST * k)) <= found.numel() <= min(nonzeros, k)
    order = keys(x)
    others = torch.ones(x.numel(), dtype=torch.bool)
    others[found] = False
    if found.numel() and others.any():
        assert order[found].min() >= order[others].max(), "a larger one was left out"
    return found


def keys(x: Tensor) -> Tensor:
    """Numbers that order as magnitudes do, with NaN above infinity."""
    big = torch.where(x.isnan(), torch.tensor(INF, dtype=torch.float64), x.double().abs())
    return torch.where(x.isinf(), torch.tensor(1e300, dtype=torch.float64), big)


@given(st.lists(floats, min_size=1, max_size=80), st.integers(1, 90), st.sampled_from(RULES))
def test_the_largest_are_chosen_of_whatever_numbers(numbers, k, rule):
    with small_parts():
        check(torch.tensor(numbers, dtype=torch.float32), k, rule)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", hard_vectors(LARGE))
def test_hard_vectors(name, rule):
    x = hard_vectors(LARGE)[name]
    for k in (1, 60, LARGE // 4, LARGE - 1, 2 * LARGE):
        check(x, k, rule)


@pytest.mark.parametrize("rule", RULES)
def test_up_to_a_few_thousand_the_choice_is_exact(rule):
    x = torch.randn(thresholds.SMALL, generator=torch.Generator().manual_seed(2))
    assert torch.equal(choose(x, 40, rule, WORLD), top_k_reference(x, 40))


# Of the distribution that an estimate assumes it hits k: a count of k draws alone deviates by 1 / sqrt(500) = 4.5 %,
# a sample's threshold by up to 1 / sqrt(30) more. Thinned to k, what is too many does not show, so the raw count is
# taken. Seeds are fixed; the bounds are three deviations.
@pytest.mark.parametrize(
    ("rule", "draw", "bound"),
    [
        ("sampled", lambda: torch.randn(500_000, generator=torch.Generator().manual_seed(1)), 0.55),
        ("gaussian", lambda: torch.randn(500_000, generator=torch.Generator().manual_seed(1)), 0.14),
        ("sidco", lambda: laplace(500_000, 1), 0.25),
    ],
)
def test_estimates_hit_the_count_where_their_assumption_holds(rule, draw, bound):
    x, k = draw(), 500
    raw = thresholds._ESTIMATES[rule](x, k, WORLD, 0).numel()
    assert abs(raw / k - 1) < bound


def test_sidco_fits_stage_by_stage():
    """One stage alone, exact for an exponential, would find next to nothing of a normal vector."""
    x, k = torch.randn(500_000, generator=torch.Generator().manual_seed(1)), 500
    one_stage = -x.abs().mean().item() * math.log(k / x.numel())
    assert above(x, one_stage).numel() < k / 4
    assert 0.75 * k < thresholds._ESTIMATES["sidco"](x, k, WORLD, 0).numel() < 2 * k


def test_samples_are_large_enough_and_begin_anywhere():
    x = torch.arange(1_000_000.0)
    starts, strides = set(), set()
    for step in range(20):
        sample = thresholds._sample(x, 0.001, 2, ExchangeContext(0, 1, step), 5)
        starts.add(sample[0].item())
        strides |= set(sample.diff().tolist())
        assert sample.numel() >= 10_000
    assert strides == {97.0}
    assert len(starts) > 10
    assert thresholds._sample(x, 0.001, 512, WORLD, 5).numel() >= 512_000
    assert torch.equal(thresholds._sample(x[:9000], 0.001, 512, WORLD, 5), x[:9000])


def test_all_ranks_sample_alike_and_each_bucket_for_itself():
    x = torch.arange(1_000_000.0)
    of_ranks = [thresholds._sample(x, 0.001, 2, ExchangeContext(rank, 2), 5) for rank in range(2)]
    assert torch.equal(*of_ranks)
    assert len({thresholds._sample(x, 0.001, 2, WORLD, key)[0].item() for key in range(9)}) > 3
