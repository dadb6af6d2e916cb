import math

import pytest
import torch

from tests.helpers import Log, exchange
from wirebench.compressors.threshold import Threshold
from wirebench.gradient.requests import Gather, payload


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


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_above_any_threshold(bad):
    grads = [torch.zeros(10), torch.zeros(10)]
    grads[1][7] = bad
    for result in exchange([Threshold(3e38), Threshold(3e38)], grads):
        assert result.isfinite().tolist() == [place != 7 for place in range(10)]


def test_measures_the_share_that_is_sent():
    rank = Threshold(1.0)
    exchange([rank], [torch.tensor([0.0, 2.0, -3.0, 0.5])], measuring=True)
    assert rank.measures.names == ["density"]
    assert rank.measures.take().tolist() == [[2.0], [4.0]]
