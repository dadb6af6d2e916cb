"""Thresholds: estimated for a number of entries, and those of importance."""

import functools
import math
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.compressors.sparse.test_iwp import draws as draws_of
from tests.compressors.sparse.test_iwp import exchange as iwp_exchange
from tests.compressors.twins import hard_vectors, laplace, ranking, top_k_reference
from tests.helpers import lay_out
from wirebench.compressors.iwp import Iwp
from wirebench.compressors.sparse import selection, thresholds
from wirebench.compressors.sparse.importance import Chooser, least_divisors
from wirebench.compressors.sparse.importance_thresholds import Thresholds, due, equation_4, note, typical_ratio
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


SCHEDULE, EPOCHS = (0.005, 0.01, 0.05, 0.1), (5, 30, 60)


def thresholds_of(mode, threshold=0.05, schedule=SCHEDULE, epochs=EPOCHS, beta=0.25, limit=4.0):
    return Thresholds(mode, threshold, schedule, epochs, beta, limit)


@pytest.mark.parametrize(
    ("ratio", "threshold"),
    [(0.2, 0.048), (0.5, 0.045), (0.9, 0.041), (1.0, 0.04), (1.1, 0.061), (2, 0.07), (4, 0.09)],
)
def test_equation_4(ratio, threshold):
    assert equation_4(ratio, typical=1.0, alpha=0.05, beta=0.01) == pytest.approx(threshold, abs=1e-12)


def test_one_threshold_for_the_run_or_one_for_an_epoch():
    assert [thresholds_of("fixed").base(epoch) for epoch in (0, 5, 99)] == [0.05] * 3
    for mode in ("schedule", "layerwise"):
        wanted = {0: 0.005, 4: 0.005, 5: 0.01, 29: 0.01, 30: 0.05, 59: 0.05, 60: 0.1, 1000: 0.1}
        assert {epoch: thresholds_of(mode).base(epoch) for epoch in wanted} == wanted
    assert thresholds_of("schedule", schedule=[0.3], epochs=[]).base(7) == 0.3


@pytest.mark.parametrize(
    ("ratio", "threshold"),
    [(0.0, 0.05), (2.0, 0.0375), (2.1, 0.05 + 0.0125 * 2.1 / 2), (100.0, 0.2), (math.inf, 0.05), (math.nan, 0.05)],
)
def test_a_layers_threshold_lies_around_that_of_the_epoch(ratio, threshold):
    # C = 2: beta_e = 0.25 * 0.05 / 2.
    assert thresholds_of("layerwise").adapted(30, ratio, typical=2.0) == pytest.approx(threshold, abs=1e-12)


def test_a_threshold_falls_no_lower_than_its_limit():
    assert thresholds_of("layerwise", beta=3.0).adapted(30, 1.9, typical=2.0) == pytest.approx(0.05 / 4)


def test_an_epoch_without_known_ratios_has_the_threshold_of_the_schedule():
    shared: dict[str, torch.Tensor] = {}
    typical = typical_ratio(shared, 0, 3)
    assert math.isnan(typical)
    assert thresholds_of("layerwise").adapted(0, 7.0, typical) == 0.005


def test_the_typical_ratio_is_the_median_of_the_epoch_before():
    shared: dict[str, torch.Tensor] = {}
    typical_ratio(shared, 0, 5)
    assert due(shared, [0, 2, 4], 0, 5) == [0, 2, 4]
    for layer, ratios in ((0, [1.0, 2.0]), (2, [9.0]), (4, [4.0, math.nan, math.inf]), (3, [math.nan])):
        note(shared, layer, ratios, 0, 5)
    assert due(shared, [0, 1, 2], 0, 5) == [1]
    assert math.isnan(typical_ratio(shared, 0, 5))  # as it was when the epoch began
    assert typical_ratio(shared, 1, 5) == 4.0  # of 1.5, 9, 4
    note(shared, 2, [100.0], 1, 5)
    note(shared, 4, [50.0], 1, 5)
    assert typical_ratio(shared, 1, 5) == 4.0
    assert due(shared, [0, 2, 4], 1, 5) == [0]
    assert typical_ratio(shared, 3, 5) == 50.0


LAYERS = lay_out([(40, 50), (30, 30), (20, 100)])
NUMEL = LAYERS[-1].stop
CUTS = ([range(0, 3)], [range(0, 1), range(1, 2), range(2, 3)])
exchange = functools.partial(iwp_exchange, layers=LAYERS)
draws = functools.partial(draws_of, numel=NUMEL)


def importance_ratio(v, w):
    importance = (v.abs() / w.abs().clamp(min=0.01 * w.square().mean().sqrt().item())).double()
    return (importance.var(correction=0) / importance.mean()).item()


@pytest.mark.parametrize("groups", CUTS)
def test_layers_get_thresholds_of_their_own(groups):
    rank, param = Iwp("layerwise", schedule=(0.5, 2.0), schedule_epochs=(1,), rho=0.0, momentum=0.0), draws(0)
    first = 0.1 * draws(1) * torch.repeat_interleave(torch.tensor([1.0, 5.0, 0.2]), torch.tensor([2000, 900, 2000]))
    pieces = [slice(layer.start, layer.stop) for layer in LAYERS]
    typical = sorted(importance_ratio(first[piece], param[piece]) for piece in pieces)[1]
    residual = first.clone()
    residual[exchange([rank], [first], param, groups, step=0, epoch=0) != 0] = 0
    residual += draws(2)
    result = exchange([rank], [draws(2)], param, groups, step=1, epoch=1)
    found = set()
    for piece in pieces:
        v, w = residual[piece], param[piece]
        threshold = thresholds_of("layerwise", schedule=[2.0], epochs=[]).adapted(1, importance_ratio(v, w), typical)
        importance = v.abs() / w.abs().clamp(min=0.01 * w.square().mean().sqrt().item())
        sure = (importance / threshold - 1).abs() > 1e-4
        assert torch.equal((result[piece] != 0)[sure], (importance > threshold)[sure])
        found.add(round(threshold, 6))
    assert len(found) == 3


def test_a_schedules_threshold_is_that_of_the_epoch():
    make = functools.partial(Iwp, rho=0.0, momentum=0.0)
    for epoch, threshold in ((2, 0.5), (3, 2.0)):
        found, wanted = (
            exchange([rank], [draws(1)], draws(0), CUTS[0], step=0, epoch=epoch)
            for rank in (make("schedule", schedule=(0.5, 2.0), schedule_epochs=(3,)), make("fixed", threshold))
        )
        assert torch.equal(found, wanted) and found.any()


@pytest.mark.parametrize("draw", ["layer", "bucket"])
def test_all_ranks_know_the_same_ratios_however_buckets_are_cut(draw):
    tables = []
    for groups in CUTS:
        ranks = [Iwp("layerwise", draw=draw, rho=0.0) for _ in range(4)]
        for step in range(6):
            exchange(ranks, [draws(10 * step + r) for r in range(4)], draws(99), groups, step, epoch=step // 2)
        states = [{k: v for k, v in r.state_dict().items() if k.startswith("shared.")} for r in ranks]
        assert len(states[0]) == 2
        for state in states[1:]:
            assert all(torch.equal(state[name], tensor) for name, tensor in states[0].items())
        assert states[0]["shared.importance_ratios"][1].tolist() == [2.0] * 3
        tables.append(states[0])
    if draw == "layer":
        assert all(torch.equal(tables[1][name], tensor) for name, tensor in tables[0].items())


def test_weights_count_as_no_less_than_a_share_of_their_layers_size():
    w = torch.tensor([3.0, 0.0, 0.0, 4.0])
    assert least_divisors([w, torch.zeros(5), w * math.nan], 0.01) == pytest.approx([0.025, 1e-8, 1e-8])
    assert least_divisors([w], 0.0) == [0.0]


def test_moments_of_the_importance():
    v, w = draws(3), draws(4)
    chooser = Chooser(v, 1000)  # several blocks
    moments = chooser.moments(v, w, 0.05)
    importance = v.double().abs() / w.double().abs().clamp(min=0.05)
    assert moments.mean == pytest.approx(importance.mean().item(), rel=1e-5)
    assert moments.variance == pytest.approx(importance.var(correction=0).item(), rel=1e-5)
    assert moments.ratio == pytest.approx(moments.variance / moments.mean)
    assert math.isnan(chooser.moments(v * 0, w, 0.05).ratio)


def test_the_defaults_may_be_named_in_every_mode():
    for mode in ("fixed", "schedule", "layerwise"):
        Iwp(mode, 0.05, [0.005, 0.01, 0.05, 0.1], [5, 30, 60], 0.25, 4.0)
