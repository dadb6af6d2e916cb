"""DGC: what it adds to top-k."""

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
