import math

import pytest
import torch

from tests.helpers import Log, exchange, lay_out
from wirebench.compressors.bits.blocks import Run
from wirebench.compressors.terngrad import TernGrad
from wirebench.gradient.requests import Sum


def ranks(size: int, **options) -> list[TernGrad]:
    return [TernGrad(**options) for _ in range(size)]


def test_all_workers_share_the_largest_scale_of_a_layer():
    layers = lay_out([(2, 4), (8, 1)])
    grads = [torch.full((16,), 0.25), torch.tensor([4.0, 1.0] * 4 + [-1.0, 0.5] * 4)]
    seen: set[float] = set()
    for step in range(50):
        (result, _) = exchange(ranks(2, clip_factor=0), grads, layers, step=step)
        assert set((result[:8] / 4 * 2).tolist()) <= {0.0, 1.0, 2.0}
        assert set((result[8:] * 2).tolist()) <= {-1.0, 0.0, 1.0, 2.0}
        assert result[:8:2].min() >= 2.0, "the second rank's peaks are sent always"
        seen |= set(result[:8].tolist())
    assert seen == {0.0, 2.0, 4.0}


def test_clipping_by_hand():
    """Of 99 ones and a hundred the root mean square is 10.05: the peak is cut to 2.5 of it, and still always sent."""
    grad = torch.ones(100)
    grad[50] = -100.0
    limit = 2.5 * math.sqrt((99 + 1e4) / 100)
    (result,) = exchange(ranks(1), [grad])
    assert result[50].item() == pytest.approx(-limit)
    assert result.abs()[result != 0].tolist() == pytest.approx([limit] * int(result.count_nonzero()))
    (unclipped,) = exchange(ranks(1, clip_factor=0), [grad])
    assert unclipped[50].item() == -100.0


@pytest.mark.slow
def test_every_worker_clips_to_its_own_deviation_before_the_scale_is_shared():
    """The first worker's peak, 100, is cut to its 25.1, though the shared scale is 103: it says 25.1 on average."""
    grads = [torch.ones(100), torch.full((100,), 10.0)]
    grads[0][50], grads[1][0] = -100.0, 400.0
    own, shared = (2.5 * float(grad.square().mean().sqrt()) for grad in grads)
    sums = [2 * exchange(ranks(2), grads, step=step)[0][50].item() / shared for step in range(1000)]
    shares = 10 / shared, own / shared
    variance = sum(share * (1 - share) for share in shares)
    assert abs(sum(sums) / len(sums) - (shares[0] - shares[1])) <= 4.5 * (variance / len(sums)) ** 0.5


@pytest.mark.parametrize("clip_factor", [0.0, 2.5])
def test_scales_of_layers_longer_than_a_block(clip_factor):
    """Peaks anywhere, below the limit of their layer and above it."""
    rng = torch.Generator().manual_seed(1)
    layers = [torch.rand(numel, generator=rng) - 0.5 for numel in (300_000, 5, 140_000, 200_000)]
    layers[2][139_999], layers[3][7] = -4.0, 3.0
    grad = torch.cat(layers)
    scales = TernGrad(clip_factor)._scales(grad, tuple(Run(layer.numel(), 1) for layer in layers))
    for layer, scale in zip(layers, scales.tolist(), strict=True):
        peak, limit = layer.abs().max().item(), 2.5 * layer.square().mean().sqrt().item()
        assert scale == pytest.approx(min(peak, limit) if clip_factor else peak)


def test_gradients_whose_squares_vanish_are_sent_too():
    grad = torch.full((10,), 1e-30)
    (result,) = exchange(ranks(1), [grad])
    assert torch.equal(result, grad)


@pytest.mark.parametrize("form", ["sum", "gather"])
def test_unbiased_with_the_variance_of_bernoulli_draws(form):
    """Mean and variance within 4.5 standard errors, for each of six shares of s."""
    each, s = 40_000, 2.0
    shares = torch.tensor([0.0, 0.01, 0.3, 0.5, 0.95, 1.0])
    grad = torch.cat([shares, -shares]).repeat_interleave(each) * s
    for size in (1, 3):
        (result, *_) = exchange(ranks(size, clip_factor=0, form=form), [grad] * size)
        for values, share in zip(result.view(12, each), torch.cat([shares, -shares]).tolist(), strict=True):
            one = s * s * abs(share) * (1 - abs(share))
            fourth_of_one = s * s * one * (1 - 3 * abs(share) * (1 - abs(share)))
            variance = one / size
            assert abs(values.mean() - s * share) <= 4.5 * (variance / each) ** 0.5 + 1e-6
            # The standard error of a variance follows from the fourth moment, here of the mean of `size` draws.
            fourth = (size * fourth_of_one + 3 * size * (size - 1) * one**2) / size**4
            assert abs(values.var() - variance) <= 4.5 * ((fourth - variance**2) / each) ** 0.5 + 5 * one / each


def test_ranks_and_steps_draw_apart():
    grad = torch.full((1000,), 0.5)
    grad[0] = 1.0
    log: Log = []
    (now, _), (later, _) = (exchange(ranks(2, clip_factor=0), [grad, grad], log=log, step=step) for step in (0, 1))
    first, second = log[1]
    assert isinstance(first, Sum)
    assert isinstance(second, Sum)
    assert not torch.equal(first.tensor, second.tensor)
    assert not torch.equal(later, now)


def test_both_forms_are_the_same_to_the_bit():
    grads = [torch.randn(500, generator=torch.Generator().manual_seed(r)) for r in range(5)]
    layers = lay_out([(20, 10), (7,), (293, 1)])
    summed, gathered = (exchange(ranks(5, form=form), grads, layers) for form in ("sum", "gather"))
    assert torch.equal(summed[0], gathered[0])
    assert all(torch.equal(other, summed[0]) for other in summed + gathered)


@pytest.mark.parametrize("size", [127, 128])
def test_many_ranks_are_summed_without_overflow(size):
    grad = torch.tensor([1.0, -1.0, 0.0] * 40)
    for result in exchange(ranks(size), [grad] * size):
        torch.testing.assert_close(result, grad)
