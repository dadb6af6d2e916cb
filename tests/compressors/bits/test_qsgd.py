import pytest
import torch

from tests.helpers import Log, exchange
from wirebench.compressors.qsgd import QSGD
from wirebench.gradient.requests import Gather


def ranks(size: int, **options) -> list[QSGD]:
    return [QSGD(**options) for _ in range(size)]


def test_the_euclidean_norm_by_hand():
    """Of (3, 4) it is 5, and with one level an element is -5, 0 or 5: 3 in three of five steps."""
    grad, sums = torch.tensor([3.0, -4.0]), torch.zeros(2)
    for step in range(500):
        (result,) = exchange(ranks(1, bits=2, norm="l2"), [grad], step=step)
        assert result[0] in (0.0, 5.0)
        assert result[1] in (0.0, -5.0)
        sums += result
    # 4.5 standard errors of 500 draws.
    error = 4.5 * 5 * (torch.tensor([0.6 * 0.4, 0.8 * 0.2]) / 500).sqrt()
    assert ((sums / 500 - grad).abs() < error).all()


@pytest.mark.parametrize(("bits", "levels"), [(2, 1), (4, 7), (4, 3), (8, 127), (8, 100)])
def test_unbiased_with_the_variance_of_its_rounding(bits, levels):
    """Mean and variance within 4.5 standard errors, of several places between two levels."""
    each, norm = 20_000, 3.0
    step = norm / levels
    places = torch.tensor([0.0, 0.02, 0.25, 0.5, 0.9]) + (levels - 1)
    values = torch.cat([places, -places]) * step
    # One element of each chunk is its peak.
    grad = torch.cat([torch.full((each, 1), norm), values.repeat(each, 1)], dim=1).flatten()
    (result,) = exchange(ranks(1, bits=bits, levels=levels, chunk=11), [grad])
    got = result.view(each, 11)
    torch.testing.assert_close(got[:, 0], torch.full((each,), norm))
    for column, value in zip(got[:, 1:].T, values.tolist(), strict=True):
        part = abs(value) * levels / norm % 1
        variance = step**2 * part * (1 - part)
        # 2^-17 levels is what the draws' own grid may cost.
        assert abs(column.double().mean() - value) <= 4.5 * (variance / each) ** 0.5 + step / 2**17
        # The standard error of a variance: what the share of ones does to part (1 - part), to second order.
        error = step**2 * (abs(1 - 2 * part) * (part * (1 - part) / each) ** 0.5 + 5 / each)
        assert abs(column.double().var() - variance) <= 4.5 * error


def test_the_average_is_that_of_the_decoded_messages():
    log: Log = []
    rng = torch.Generator().manual_seed(1)
    grads = [torch.randn(50, generator=rng) for _ in range(5)]
    results = exchange(ranks(5, chunk=16, bits=8), grads, log=log)
    assert all(torch.equal(result, results[0]) for result in results)
    total = torch.zeros(50)
    for request in log[0]:
        assert isinstance(request, Gather)
        norms, words = request.tensor.split([4, 13])
        levels = []
        for shift in (0, 8, 16, 24):
            # The field's byte as a signed number; what is above it without what it borrowed.
            levels.append((words >> shift) << 24 >> 24)
            words = words - (levels[-1] << shift)
        q = torch.cat(levels)[:50].float()
        total += q * norms.view(torch.float32).repeat_interleave(16)[:50] / 127
    torch.testing.assert_close(results[0], total / 5)
    torch.testing.assert_close(results[0], torch.stack(grads).mean(0), rtol=0, atol=0.03)
