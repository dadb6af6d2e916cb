import functools
import math

import pytest
import torch

from tests.compressors.sparse.test_iwp import draws as draws_of
from tests.compressors.sparse.test_iwp import exchange as iwp_exchange
from tests.helpers import lay_out
from wirebench.compressors.iwp import Iwp
from wirebench.compressors.sparse.importance import Chooser, least_divisors
from wirebench.compressors.sparse.importance_thresholds import Thresholds, due, equation_4, note, typical_ratio

SCHEDULE, EPOCHS = (0.005, 0.01, 0.05, 0.1), (5, 30, 60)


def thresholds(mode, threshold=0.05, schedule=SCHEDULE, epochs=EPOCHS, beta=0.25, limit=4.0):
    return Thresholds(mode, threshold, schedule, epochs, beta, limit)


@pytest.mark.parametrize(
    ("ratio", "threshold"),
    [(0.2, 0.048), (0.5, 0.045), (0.9, 0.041), (1.0, 0.04), (1.1, 0.061), (2, 0.07), (4, 0.09)],
)
def test_equation_4(ratio, threshold):
    assert equation_4(ratio, typical=1.0, alpha=0.05, beta=0.01) == pytest.approx(threshold, abs=1e-12)


def test_one_threshold_for_the_run_or_one_for_an_epoch():
    assert [thresholds("fixed").base(epoch) for epoch in (0, 5, 99)] == [0.05] * 3
    for mode in ("schedule", "layerwise"):
        wanted = {0: 0.005, 4: 0.005, 5: 0.01, 29: 0.01, 30: 0.05, 59: 0.05, 60: 0.1, 1000: 0.1}
        assert {epoch: thresholds(mode).base(epoch) for epoch in wanted} == wanted
    assert thresholds("schedule", schedule=[0.3], epochs=[]).base(7) == 0.3


@pytest.mark.parametrize(
    ("ratio", "threshold"),
    [(0.0, 0.05), (2.0, 0.0375), (2.1, 0.05 + 0.0125 * 2.1 / 2), (100.0, 0.2), (math.inf, 0.05), (math.nan, 0.05)],
)
def test_a_layers_threshold_lies_around_that_of_the_epoch(ratio, threshold):
    # C = 2: beta_e = 0.25 * 0.05 / 2.
    assert thresholds("layerwise").adapted(30, ratio, typical=2.0) == pytest.approx(threshold, abs=1e-12)


def test_a_threshold_falls_no_lower_than_its_limit():
    assert thresholds("layerwise", beta=3.0).adapted(30, 1.9, typical=2.0) == pytest.approx(0.05 / 4)


def test_an_epoch_without_known_ratios_has_the_threshold_of_the_schedule():
    shared: dict[str, torch.Tensor] = {}
    typical = typical_ratio(shared, 0, 3)
    assert math.isnan(typical)
    assert thresholds("layerwise").adapted(0, 7.0, typical) == 0.005


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
        threshold = thresholds("layerwise", schedule=[2.0], epochs=[]).adapted(1, importance_ratio(v, w), typical)
        importance = v.abs() / w.abs().clamp(min=0.01 * w.square().mean().sqrt().item())
        sure = (importance / threshold - 1).abs() > 1e-4
        assert torch.equal((result[piece] != 0)[sure], (importance > threshold)[sure])
        found.add(round(threshold, 6))
    assert len(found) == 3


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
