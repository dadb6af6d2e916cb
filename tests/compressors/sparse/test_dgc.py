"""DGC: what it adds to top-k."""

import pytest
import torch

from tests.helpers import answer_all, whole
from wirebench.compressors.dgc import Dgc
from wirebench.gradient.context import ExchangeContext


def send(rank: Dgc, grad: torch.Tensor, step: int = 0) -> torch.Tensor:
    (result,) = answer_all([rank.exchange(whole(grad.clone()), ExchangeContext(0, 1, step))])
    return result.clone()


def test_momentum_grows_where_nothing_is_sent_and_is_cleared_where_it_was():
    rank, grad = Dgc(0.5, momentum=0.9), torch.tensor([4.0, 1.0])
    assert send(rank, grad).tolist() == [4.0, 0.0]
    assert send(rank, grad).tolist() == [4.0, 0.0]  # 4, not 4 + 0.9 * 4
    state = rank.state_dict()
    torch.testing.assert_close(state["residual"], torch.tensor([0.0, 2.9]))
    torch.testing.assert_close(state["velocity"], torch.tensor([0.0, 1.9]))


def test_without_masking_momentum_goes_on():
    rank, grad = Dgc(0.5, momentum=0.9, masking=False), torch.tensor([4.0, 1.0])
    assert send(rank, grad).tolist() == [4.0, 0.0]
    torch.testing.assert_close(send(rank, grad), torch.tensor([4.0 + 0.9 * 4.0, 0.0]))


@pytest.mark.parametrize("density", [0.01, 0.001])
def test_what_the_sample_lets_through_is_thinned_by_magnitude(density):
    numel = 200_000
    grad = torch.randn(numel, generator=torch.Generator().manual_seed(5)) ** 3
    k = int(numel * density)
    for step in range(3):
        result = send(Dgc(density, momentum=0.0), grad, step)
        chosen = result.nonzero().flatten()
        assert 0.8 * k <= chosen.numel() <= k
        # Not the first k by place: what was left out is no larger than what was sent.
        left = grad.clone()
        left[chosen] = 0
        if chosen.numel() == k:
            assert (left.abs() > result[chosen].abs().min()).sum() == 0
