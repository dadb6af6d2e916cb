import math

import pytest
import torch
from torch import Tensor

from tests.helpers import Log, answer_all, whole
from wirebench import compressors
from wirebench.compressors.qsgd import QSGD
from wirebench.errors import UserError
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.requests import Gather, payload


def exchange(ranks, grads, log: Log | None = None, step: int = 0) -> list[Tensor]:
    """One step of all ranks on one-layer models; the results."""
    worlds = [ExchangeContext(rank, len(ranks), step) for rank in range(len(ranks))]
    return answer_all([r.exchange(whole(g.clone()), w) for r, g, w in zip(ranks, grads, worlds, strict=True)], log)


def ranks(size: int, **options) -> list[QSGD]:
    return [QSGD(**options) for _ in range(size)]


def test_levels_arrive_as_they_are():
    """A chunk with the peak 14 has levels of 2, one with 0.5 levels of 1/14."""
    grad = torch.tensor([14.0, -4.0, 0.0, 2.0, 0.5, -0.5, 0.0, 0.0])
    for result in exchange(ranks(3, chunk=4), [grad] * 3):
        torch.testing.assert_close(result, grad)


def test_ranks_have_norms_of_their_own():
    first, second = torch.tensor([7.0, 1.0, -3.0]), torch.tensor([0.07, -0.02, 0.0])
    for result in exchange(ranks(2), [first, second]):
        torch.testing.assert_close(result, (first + second) / 2)


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
    results = exchange(ranks(5, chunk=16, bits=8), grads, log)
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


@pytest.mark.parametrize(("bits", "chunk"), [(2, 64), (4, 512), (8, 1000)])
@pytest.mark.parametrize("numel", [1, 511, 512, 10_000])
def test_the_message_is_as_short_as_stated(bits, chunk, numel):
    log: Log = []
    exchange(ranks(2, bits=bits, chunk=chunk), [torch.ones(numel)] * 2, log)
    ((request, _),) = log
    assert isinstance(request, Gather)
    words = math.ceil(numel * bits / 32)
    assert payload(request).nbytes == 4 * words + 4 * math.ceil(numel / chunk)
    assert payload(request).nbytes == QSGD(bits=bits, chunk=chunk).wire_bytes(numel, 2)
    assert request.values == words


@pytest.mark.parametrize("norm", ["max", "l2"])
def test_chunks_of_zeros_stay_zeros(norm):
    grad = torch.cat([torch.zeros(512), torch.ones(3), torch.zeros(509), torch.zeros(5)])
    (result,) = exchange(ranks(1, norm=norm), [grad])
    assert result.isfinite().all()
    assert not result[grad == 0].any()


def test_a_chunk_that_is_not_finite_spoils_the_result_everywhere():
    log: Log = []
    grads = [torch.ones(40), torch.ones(40)]
    grads[1][17] = math.inf
    for result in exchange(ranks(2, chunk=8), grads, log):
        assert not result[16:24].isfinite().any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 4, "levels": 8}, r"levels lies in \[1, 7\] with 4 bits, or is 0 for all of them, got 8"),
        ({"levels": -1}, r"levels lies in \[1, 7\]"),
        ({"chunk": 0}, "chunk is a number of elements, at least 1, got 0"),
        ({"bits": 3}, "bits: needs one of 2, 4, 8"),
        ({"norm": "l1"}, "norm: needs one of max, l2"),
    ],
)
def test_wrong_options_are_the_users_mistake(options, message):
    with pytest.raises(UserError, match=message):
        compressors.build("qsgd", **options)
