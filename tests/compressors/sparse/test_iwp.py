import math
from itertools import pairwise

import pytest
import torch

from tests.helpers import CUDA, Log, answer_all, cut, lay_out
from wirebench.compressors.iwp import Iwp, drawn
from wirebench.compressors.sparse import importance as importance_module
from wirebench.compressors.sparse.importance import Chooser, Luck, Piece
from wirebench.compressors.sparse.mask_code import places
from wirebench.errors import UserError
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.flat import Layer
from wirebench.gradient.metrics import values
from wirebench.gradient.requests import Gather, Sum, payload

LAYERS = lay_out([(7, 9), (5, 4), (3, 3), (6, 11)])
NUMEL = LAYERS[-1].stop
CUTS = ([range(0, 4)], [range(0, 1), range(1, 3), range(3, 4)])
NEVER = 1e6  # a threshold


def exchange(
    ranks, grads, param=None, groups=CUTS[0], step=0, epoch=0, log: Log | None = None, measuring=False, layers=LAYERS
):
    """One step of all ranks; their common result."""
    size = len(ranks)
    worlds = [ExchangeContext(rank, size, step, epoch, measuring=measuring) for rank in range(size)]
    if grads[0].numel() != layers[-1].stop:
        layers, groups = (Layer("weight", 0, grads[0].numel(), 2),), [range(0, 1)]
    param = torch.ones_like(grads[0]) if param is None else param
    buckets = [cut(grad.clone(), layers, groups, param) for grad in grads]
    results = []
    for same in zip(*buckets, strict=True):
        answers = answer_all([r.exchange(b, w) for r, b, w in zip(ranks, same, worlds, strict=True)], log)
        assert all(torch.equal(answer.view(torch.int32), answers[0].view(torch.int32)) for answer in answers)
        results.append(answers[0].clone())
    return torch.cat(results)


def draws(seed, numel=NUMEL):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


# The masks of PAPERS.md, D4, by hand.
W = [1, -2, 0.5, 4, 0.1, -1, 10, 0.25, 2, -0.5]
V0 = [0.06, 0.05, 0.01, 0.1, 0.004, -0.02, 0.6, 0.02, 0.01, -0.03]
V2 = [0.01, 0.3, 0.02, 0.1, 0.006, 0.05, 0.1, 0.01, 0.11, 0.01]


def test_an_exchange_by_hand():
    step = next(s for s in range(100) if set(drawn(ExchangeContext(0, 3, s), 0, 2)) == {0, 2})
    log: Log = []
    ranks = [Iwp(rho=0.0, epsilon=0.0, momentum=0.0) for _ in range(3)]
    grads = [torch.tensor(V0), torch.full((10,), 0.5), torch.tensor(V2)]
    result = exchange(ranks, grads, torch.tensor(W), step=step, log=log)
    wanted = torch.zeros(10)
    wanted[[0, 1, 4, 6, 7, 8, 9]] = torch.tensor([0.19, 0.283333, 0.17, 0.4, 0.176667, 0.206667, 0.16])
    torch.testing.assert_close(result, wanted, rtol=0, atol=1e-6)
    assert ranks[1].state_dict()["residual"].nonzero().flatten().tolist() == [2, 3, 5]
    masks, sums = log
    assert [payload(request).tolist() for request in masks] == [[0, 1, 193, 2], [0], [0, 1, 18, 1]]
    assert all(isinstance(request, Gather) and request.values == 0 for request in masks)
    assert all(isinstance(request, Sum) and payload(request).numel() == 7 for request in sums)


MOMENTUM = 0.5  # a product without rounding, so that a fused multiply and add gives the same bits


def twin(states, grads, param, step, threshold, epsilon):
    """The plain twin: dense vectors, layer by layer, element by element. Updates `states`, (v, u) of each rank."""
    size, result = len(grads), torch.zeros(NUMEL)
    for (v, u), grad in zip(states, grads, strict=True):
        u.mul_(MOMENTUM).add_(grad)
        v.add_(u)
    for layer in LAYERS:
        place = range(layer.start, layer.stop)
        w = param[layer.start : layer.stop]
        least = max(epsilon * torch.linalg.vector_norm(w).item() / math.sqrt(w.numel()), 1e-8)
        bars = (threshold * w).abs().clamp(min=threshold * least)
        voters = range(size) if size <= 2 else drawn(ExchangeContext(0, size, step), layer.start, 2)
        for i, bar in zip(place, bars, strict=True):
            if any(states[voter][0][i].abs() > bar for voter in voters):
                result[i] = sum(v[i] for v, _ in states) / size
                for v, u in states:
                    v[i] = u[i] = 0
    return result


@pytest.mark.parametrize("groups", CUTS)
@pytest.mark.parametrize(("size", "masks"), [(1, "bits"), (2, "smaller"), (3, "bits"), (5, "delta")])
def test_equals_the_twin_bit_for_bit(size, masks, groups):
    ranks = [
        Iwp(threshold=1.5, rho=0.0, epsilon=0.3, masks=masks, momentum=MOMENTUM, masking=True) for _ in range(size)
    ]
    states = [(torch.zeros(NUMEL), torch.zeros(NUMEL)) for _ in range(size)]
    shares = []
    for step in range(6):
        grads, param = [draws(100 * step + rank) for rank in range(size)], draws(7 + step)
        wanted = twin(states, grads, param, step, threshold=1.5, epsilon=0.3)
        assert torch.equal(exchange(ranks, grads, param, groups, step), wanted)
        for rank, (v, u) in zip(ranks, states, strict=True):
            assert torch.equal(rank.state_dict()["residual"], v)
            assert torch.equal(rank.state_dict()["velocity"], u)
        shares.append((wanted != 0).float().mean().item())
    assert min(shares) > 0.1 and max(shares) < 0.9


@pytest.mark.parametrize("masking", [True, False])
def test_a_threshold_of_zero_is_dense_sgd_without_momentum_or_with_if_momentum_is_not_masked(masking):
    ranks = [Iwp(threshold=0.0, rho=0.0, masking=masking) for _ in range(3)]
    momentum = torch.zeros(NUMEL)
    for step in range(5):
        grads = [draws(10 * step + rank) for rank in range(3)]
        mean = torch.stack(grads).mean(0)
        momentum = 0.9 * momentum + mean
        result = exchange(ranks, grads, draws(5), step=step)
        torch.testing.assert_close(result, mean if masking else momentum, rtol=1e-5, atol=1e-6)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("threshold", [NEVER, 1.0])
@pytest.mark.parametrize("owner", range(5))
def test_what_is_not_finite_reaches_all_also_from_a_rank_that_chooses_nothing(owner, threshold, bad):
    ranks = [Iwp(threshold=threshold, voters=1, rho=0.05) for _ in range(5)]
    grads = [draws(rank) for rank in range(5)]
    exchange(ranks, grads, step=0)
    grads[owner][11] = bad
    assert not exchange(ranks, grads, step=1)[11].isfinite()


def test_a_sum_that_overflows_is_no_mistake():
    ranks = [Iwp(threshold=0.0, voters=1, momentum=0.0) for _ in range(3)]
    grads = [torch.full((NUMEL,), scale) for scale in (1e37, -1e37, 2.0)]
    assert exchange(ranks, grads).isfinite().all()


def test_a_weight_of_zero_is_infinitely_important_unless_it_counts_as_more():
    grad, param = torch.full((4,), 0.1), torch.tensor([0.0, 10.0, 10.0, 0.0])
    grad[3] = 0
    for epsilon, wanted in ((0.0, [0.1, 0, 0, 0]), (0.01, [0.1, 0, 0, 0]), (0.5, [0, 0, 0, 0])):
        result = exchange([Iwp(threshold=0.05, rho=0.0, epsilon=epsilon, momentum=0.0)], [grad], param)
        assert result.tolist() == pytest.approx(wanted)
    assert exchange([Iwp(momentum=0.0)], [grad], torch.zeros(4)).tolist() == pytest.approx([0.1] * 3 + [0])


# Luck.


def chosen_by_luck(numel, rho, seed, share=0.5, block=0):
    """Flags of equal coordinates, whose importance is a `share` of the threshold."""
    v = torch.full((numel,), share)
    chooser, pieces = Chooser(v, block or numel), [Piece(0, numel, torch.ones(numel), 1.0, 0.0)]
    luck = Luck(rho, torch.Generator().manual_seed(seed), chooser.blocks(pieces), chooser.block)
    flags = torch.zeros(numel, dtype=torch.bool)
    flags[places(chooser.mask(v, pieces, luck))] = True
    return flags


@pytest.mark.parametrize(("rho", "share"), [(1.0, 0.5), (1.0, 0.1), (0.05, 0.5), (0.07, 0.9), (0.4, 0.5), (0.001, 0.8)])
def test_luck_comes_as_often_as_it_should(rho, share):
    # 4 standard errors of independent draws: fails in 6 of 100,000 seeds.
    numel = 1_000_000
    found = chosen_by_luck(numel, rho, seed=1, share=share, block=4096).double().mean().item()
    p = rho * share
    assert abs(found - p) < 4 * math.sqrt(p * (1 - p) / numel)


def test_luck_comes_to_the_coordinates_of_a_block_one_by_one():
    # With rho = 1 neighbours are drawn apart: of 400,000 pairs the share that is chosen together, 4 standard errors.
    flags = chosen_by_luck(400_001, 1.0, seed=3)
    together = (flags[1:] & flags[:-1]).double().mean().item()
    assert abs(together - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 400_000 * 1.5)


def test_what_is_important_needs_no_luck_and_what_is_zero_has_none():
    for rho in (0.05, 1.0):
        assert chosen_by_luck(1000, rho, seed=0, share=1.001).all()
        assert not chosen_by_luck(1000, rho, seed=0, share=0.0).any()


def test_each_voter_and_each_step_has_luck_of_its_own():
    log: Log = []
    grad = torch.full((4000,), 0.5)
    for step in (0, 1):
        exchange([Iwp(threshold=1.0, rho=1.0, momentum=0.0) for _ in range(2)], [grad, grad], step=step, log=log)
    masks = [payload(request)[2:] for requests in log[::2] for request in requests]
    counts = [places(a & b).numel() for i, a in enumerate(masks) for b in masks[:i]]
    assert all(abs(count - 1000) < 5 * math.sqrt(1000) for count in counts)  # a quarter, as of independent masks


def test_masks_do_not_depend_on_blocks(monkeypatch):
    grads, param = [draws(1, 5000)], draws(2, 5000)
    wanted = exchange([Iwp(threshold=0.5, rho=0.0)], grads, param)
    monkeypatch.setitem(importance_module._BLOCK, "cpu", 64)
    assert torch.equal(exchange([Iwp(threshold=0.5, rho=0.0)], grads, param), wanted)


# Voters.


def test_all_ranks_draw_the_same_voters_others_for_each_layer_and_step():
    for step in range(5):
        for place in (0, 216):
            first, *others = [drawn(ExchangeContext(rank, 9, step, seed=4), place, 3) for rank in range(9)]
            assert all(other == first for other in others)
            assert len(set(first)) == 3
    found = {
        (seed, step, place): tuple(drawn(ExchangeContext(0, 50, step, seed=seed), place, 3))
        for seed in range(3)
        for step in range(3)
        for place in (0, 1, 7, 216)
    }
    assert len(set(found.values())) == len(found)


def test_all_ranks_vote_equally_often():
    # 4 standard errors for each of 6 ranks: fails in 4 of 10,000 seeds.
    times = 3000
    votes = torch.zeros(6)
    for step in range(times):
        votes[drawn(ExchangeContext(0, 6, step), 0, 2)] += 1
    assert (votes / times - 1 / 3).abs().max() < 4 * math.sqrt(2 / 9 / times)


@pytest.mark.parametrize(("draw", "most"), [("layer", 4), ("bucket", 1)])
def test_layers_have_voters_of_their_own_or_the_buckets(draw, most):
    log: Log = []
    ranks, counts = [Iwp(voters=1, draw=draw) for _ in range(8)], []
    for step in range(20):
        exchange(ranks, [draws(rank) for rank in range(8)], step=step, log=log)
        counts.append(sum(payload(request).numel() > 1 for request in log[2 * step]))
    assert max(counts) in range(most - 1, most + 1)
    assert min(counts) >= 1


# What is asked of the network, and what is measured.


def test_where_nothing_is_chosen_nothing_is_summed():
    log: Log = []
    assert not exchange([Iwp(threshold=NEVER) for _ in range(3)], [draws(rank) for rank in range(3)], log=log).any()
    assert len(log) == 1


def test_bytes_are_a_64th_of_the_values_and_the_share_of_the_masks():
    numel = 64_000
    assert Iwp().wire_bytes(numel, 1) == 4 * 1000 + 8002
    assert Iwp().wire_bytes(numel, 2) == 4 * 1000 + 8002
    assert Iwp(voters=3).wire_bytes(numel, 12) == 4 * 1000 + 2001
    assert Iwp(masks="delta").wire_bytes(numel, 2) < 4 * 1000 + 1200


def measured(ranks):
    return values(ranks[0].measures.names, sum(rank.measures.take() for rank in ranks))


def test_density_and_masks_are_measured():
    numel, size = 64_000, 4
    ranks = [Iwp(threshold=10.0, rho=0.0, momentum=0.0) for _ in range(size)]
    grads = [draws(rank, numel) for rank in range(size)]
    result = exchange(ranks, grads, draws(9, numel), measuring=True)
    found = measured(ranks)
    share = (result != 0).double().mean().item()
    assert found["density"] == pytest.approx(share)
    assert found["mask_bytes"] == 2 * (numel / 8 + 2) + 2
    assert found["ratio_with_masks"] == pytest.approx(1 / (share + 2 / 32), rel=1e-3)
    voters = drawn(ExchangeContext(0, size, 0), 0, 2)
    importance = [(grads[v].abs() / draws(9, numel).abs().clamp(min=0.01)).double() for v in voters]
    assert found["importance_mean/weight"] == pytest.approx(sum(i.mean().item() for i in importance) / 2, rel=1e-2)
    assert found["importance_var/weight"] == pytest.approx(sum(i.var().item() for i in importance) / 2, rel=5e-2)


def test_importance_is_measured_of_every_layer_and_left_out_where_it_is_infinite():
    ranks = [Iwp(epsilon=0.0) for _ in range(5)]
    param = torch.ones(NUMEL)
    param[LAYERS[1].start] = 0
    exchange(ranks, [draws(rank) for rank in range(5)], param, CUTS[1], measuring=True)
    assert len({tuple(rank.measures.names) for rank in ranks}) == 1
    found = measured(ranks)
    names = {f"importance_{what}/{layer.name}" for what in ("mean", "var") for layer in LAYERS}
    assert names - set(found) == {"importance_mean/layer1", "importance_var/layer1"}


@pytest.mark.parametrize("block", [1 << 18, 64])
def test_the_distribution_of_importance_is_measured_of_layers_that_are_named(block, monkeypatch):
    monkeypatch.setitem(importance_module._BLOCK, "cpu", block)
    numel, size = 640, 3
    ranks = [Iwp(threshold=10.0, momentum=0.0, voters=1, histograms=["weight"]) for _ in range(size)]
    grads, param = [10 ** (2 * draws(rank, numel)) for rank in range(size)], draws(9, numel)
    grads[0][0] = grads[1][0] = grads[2][0] = 0.0
    exchange(ranks, grads, param, measuring=True)
    assert len({tuple(rank.measures.names) for rank in ranks}) == 1
    found = measured(ranks)
    shares = {name.rpartition("/")[2]: share for name, share in found.items() if name.startswith("importance_share/")}
    assert len(shares) == len(importance_module.LOWS)
    [voter] = drawn(ExchangeContext(0, size, 0), 0, 1)
    least = 0.01 * param.square().mean().sqrt()
    importance = (grads[voter].abs() / param.abs().clamp(min=least)).double()
    lows = [*importance_module.LOWS, math.inf]
    counts = [int(((importance >= low) & (importance < high)).sum()) for low, high in pairwise(lows)]
    assert [numel * share for share in shares.values()] == pytest.approx(counts, abs=1.01)
    assert sum(counts) == numel and sum(shares.values()) == pytest.approx(1) and counts[0] >= 1
    exchange(ranks, grads, param, step=1)
    assert not ranks[0].measures.names, "of readings alone"
    for rank in ranks:
        rank.histograms = frozenset(["weigth"])
    with pytest.raises(UserError, match=r"compressor\.histograms: no layer 'weigth' is compressed; did you mean"):
        exchange(ranks, grads, param, measuring=True)


@pytest.mark.parametrize("groups", CUTS)
def test_waiting_is_measured_in_steps(groups):
    ranks = [Iwp(threshold=2.0, rho=0.0, waiting=True) for _ in range(3)]
    ages = torch.zeros(NUMEL)
    for step in range(5, 11):
        result = exchange(ranks, [draws(10 * step + r) for r in range(3)], draws(9), groups, step, measuring=True)
        ages = torch.where(result != 0, 0.0, ages + 1)
        found = measured(ranks)
        assert found["waiting_mean"] == pytest.approx(ages.mean().item())
        assert found["waiting_max"] == ages.max().item()
    assert ages.min() == 0 and ages.max() > 1
    assert all(torch.equal(r.own["last_sent"], ranks[0].own["last_sent"]) for r in ranks)


def test_the_largest_and_smallest_options_still_work():
    """With the largest weights too, whose mean square is a number."""
    rank = Iwp(threshold=1e6, epsilon=1e6, rho=1e-9)
    assert exchange([rank], [draws(0)], torch.full((NUMEL,), 1e18)).isfinite().all()
    assert rank.state_dict()["residual"].any()


@pytest.mark.gpu
@CUDA
@pytest.mark.parametrize("masks", ["bits", "delta"])
def test_cuda_sends_what_the_cpu_sends(masks):
    results = []
    for device in ("cpu", "cuda"):
        ranks = [Iwp(threshold=1.5, rho=0.0, masks=masks, waiting=True) for _ in range(3)]
        grads = [draws(rank).to(device) for rank in range(3)]
        steps = [exchange(ranks, grads, draws(9).to(device), CUTS[1], step, measuring=True) for step in range(3)]
        results.append(torch.stack(steps).cpu())
    torch.testing.assert_close(results[1], results[0])
