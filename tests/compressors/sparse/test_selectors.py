"""topk, randomk and threshold: what each selects and sends, and what stays in the residual."""

from itertools import combinations
from unittest.mock import patch

import pytest
import torch

from tests.helpers import Log, answer_all, cut, exchange, lay_out, whole
from wirebench.compressors import randomk
from wirebench.compressors.randomk import RandomK, draw
from wirebench.compressors.threshold import Threshold
from wirebench.compressors.topk import TopK
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.requests import Gather, payload


def test_the_result_is_written_into_the_gradient():
    grad = torch.tensor([1.0, 2.0])
    (result,) = answer_all([TopK(0.5).exchange(whole(grad), ExchangeContext(0, 1))])
    assert result.data_ptr() == grad.data_ptr()
    assert grad.tolist() == [0.0, 2.0]


def test_the_message_is_places_in_the_bucket_and_values():
    layers, rank = lay_out([(4, 1), (2, 5)]), TopK(0.2)
    log: Log = []
    _, second = cut(torch.arange(14.0), layers, [range(0, 1), range(1, 2)])
    answer_all([rank.exchange(second, ExchangeContext(0, 1))], log)
    ((request,),) = log
    assert isinstance(request, Gather)
    assert request.values == 2 * 4
    message = payload(request)
    assert message.dtype == torch.uint8
    assert message[:8].view(torch.int32).tolist() == [8, 9]
    assert message[8:].view(torch.float32).tolist() == [12.0, 13.0]
    assert message.nbytes == rank.wire_bytes(10, 1) == 16


def test_zeros_are_not_sent():
    log: Log = []
    exchange([TopK(0.5), TopK(0.5)], [torch.zeros(8), torch.tensor([0.0, 1.0] + [0.0] * 6)], log=log)
    ((first, second),) = log
    assert (first.values, payload(first).numel()) == (0, 0)
    assert (second.values, payload(second).numel()) == (4, 8)


def test_places_beyond_what_a_float_can_count_are_exact():
    numel = 2**24 + 3
    grad = torch.zeros(numel)
    grad[numel - 2 :] = torch.tensor([1.0, 2.0])
    (result,) = exchange([TopK(1e-9)], [grad])
    assert result.nonzero().flatten().tolist() == [numel - 1]


def rng(seed):
    return torch.Generator().manual_seed(seed)


# 9 degrees of freedom: a uniform draw exceeds 27.9 in one of 1000 seeds.
@pytest.mark.slow
@pytest.mark.parametrize(("crowded", "count"), [(1.0, 2), (0.0, 2), (1.0, 3), (0.0, 3)])
def test_every_set_of_places_is_equally_likely(crowded, count):
    """By sorting and by flags; three of five are the two that are left out."""
    draws, generator = 4000, rng(3)
    seen = dict.fromkeys(combinations(range(5), count), 0)
    with patch.object(randomk, "CROWDED", crowded):
        for _ in range(draws):
            seen[tuple(draw(5, count, generator).tolist())] += 1
    expected = draws / len(seen)
    assert sum((n - expected) ** 2 / expected for n in seen.values()) < 27.9


@pytest.mark.parametrize(
    ("numel", "count"),
    [(1, 1), (2, 1), (5, 5), (1000, 1), (1000, 20), (1000, 500), (1000, 501), (1000, 999), (2**31 - 1, 3000)],
)
def test_so_many_different_places_in_order(numel, count):
    for seed in range(5):
        found = draw(numel, count, rng(seed))
        assert found.dtype == torch.int64
        assert found.numel() == count
        assert (found.diff() > 0).all()
        assert 0 <= found[0] <= found[-1] < numel


def test_draws_are_new_for_every_step_and_bucket_and_seed():
    layers = lay_out([(100, 1), (100, 1)])
    seen = set()
    for seed in (0, 1):
        for step in range(3):
            for bucket in cut(torch.ones(200), layers, [range(0, 1), range(1, 2)]):
                (result,) = answer_all([RandomK(0.05).exchange(bucket, ExchangeContext(0, 1, step, seed=seed))])
                seen.add(tuple(result.nonzero().flatten().tolist()))
    assert len(seen) == 12


@pytest.mark.slow
def test_without_memory_the_estimate_is_unbiased_and_nothing_is_kept():
    grad, rank, steps = torch.arange(-10.0, 10.0), RandomK(0.25, error_feedback=False), 4000
    mean = sum(exchange([rank, rank], [grad, 3 * grad], step=step)[0] for step in range(steps)) / steps
    # A place is drawn 1000 times, give or take sqrt(750) = 2.7 %; 4.5 of these for 20 places.
    torch.testing.assert_close(mean, 2 * grad, rtol=0.125, atol=0)
    assert rank.state_dict() == {}


def test_unscaled_values_travel_without_memory():
    """Multiplied by d / k only afterwards: 60000 fits fp16, and 100 times that does not."""
    (result,) = exchange([RandomK(0.01, error_feedback=False, values="fp16")], [torch.full((100,), 60000.0)])
    assert result.sum() == 6_000_000 - 100 * (60000 - torch.tensor(60000.0).half().item())


def test_a_rank_may_send_nothing_and_all_may():
    log: Log = []
    small, large = torch.full((10,), 0.5), torch.full((10,), 2.0)
    exchange([Threshold(1.0), Threshold(1.0)], [small, large], log=log)
    (result, _) = exchange([Threshold(1.0), Threshold(1.0)], [small, small], log=log)
    assert not result.any()
    assert [[payload(request).numel() for request in requests] for requests in log] == [[0, 80], [0, 0]]
    assert all(isinstance(request, Gather) for requests in log for request in requests)
    assert [request.values for request in log[0]] == [0, 40]


def test_zero_sends_all_that_is_not_zero():
    log: Log = []
    grad = torch.tensor([0.0, 1e-45, -1e-30, 0.0, 1.0])
    (result,) = exchange([Threshold(0.0)], [grad], log=log)
    assert torch.equal(result, grad)
    assert log[0][0].values == 3 * 4


def test_how_much_was_sent_before_changes_nothing():
    """It only says how to look for the entries."""
    grads = [
        torch.randn(9000, generator=torch.Generator().manual_seed(seed)) * scale for seed, scale in enumerate((9, 1, 9))
    ]
    rank = Threshold(2.0)
    for grad in grads:
        fresh = Threshold(2.0)
        if rank.state_dict():
            fresh.load_state_dict(rank.state_dict())
        expected = exchange([fresh], [grad])[0].clone()
        assert torch.equal(exchange([rank], [grad])[0], expected)


def test_measures_the_share_that_is_sent():
    rank = Threshold(1.0)
    exchange([rank], [torch.tensor([0.0, 2.0, -3.0, 0.5])], measuring=True)
    assert rank.measures.names == ["density"]
    assert rank.measures.take().tolist() == [[2.0], [4.0]]
