import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import Log, exchange, lay_out, whole_numbers
from wirebench.compressors.signsgd import SignSGD
from wirebench.gradient.requests import Gather, Sum, handed_over

VOTE: dict[str, Any] = {"form": "vote", "feedback": False}


def ranks(size: int, **options) -> list[SignSGD]:
    return [SignSGD(**options) for _ in range(size)]


def signs(x: Tensor) -> Tensor:
    """1 and -1; a zero is plus."""
    return torch.where(x < 0, -1.0, 1.0)


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_equals_the_plain_twin(size, feedback):
    layers = lay_out([(4, 6), (3,), (40, 2)])
    bounds = [(layer.start, layer.stop) for layer in layers]
    mine, residuals = ranks(size, feedback=feedback), [torch.zeros(107) for _ in range(size)]
    for seed in range(4):
        grads = [grad * 1.1 for grad in whole_numbers(size, seed, 107, most=4)]
        wanted = torch.zeros(107)
        for residual, grad in zip(residuals, grads, strict=True):
            v = residual + grad
            sent = torch.cat([v[a:b].abs().mean() * signs(v[a:b]) for a, b in bounds])
            residual.copy_((v - sent) * feedback)
            wanted += sent / size
        log: Log = []
        for result in exchange(mine, grads, layers, step=seed, log=log):
            torch.testing.assert_close(result, wanted)
        assert sum(each.nbytes for each in handed_over(log[0][0])) == 4 * math.ceil(107 / 32) + 4 * len(layers)
    for rank, residual in zip(mine, residuals, strict=True):
        if feedback:
            torch.testing.assert_close(rank.state_dict()["residual"], residual)
        else:
            assert not rank.state_dict()


def test_a_vote_by_hand():
    grads = [torch.tensor([5.0, -1.0, 2.0]), torch.tensor([-1.0, -1.0, 2.0]), torch.tensor([-1.0, -4.0, -1.0])]
    scale = (8 / 3 + 4 / 3 + 2) / 3
    for result in exchange(ranks(3, **VOTE), grads):
        torch.testing.assert_close(result, torch.tensor([-scale, -scale, scale]))
    for result in exchange(ranks(3, scale="one", **VOTE), grads):
        assert result.tolist() == [-1.0, -1.0, 1.0]


@pytest.mark.parametrize("size", [1, 2, 5, 6, 7, 8, 9, 12, 15, 16, 33])
def test_a_vote_counts_every_rank_gathered_or_summed(size):
    grads = [grad + 0.5 for grad in whole_numbers(size, 0, 301, most=4)]
    log: Log = []
    results = exchange(ranks(size, scale="one", **VOTE), grads, log=log)
    wanted = torch.stack([signs(grad) for grad in grads]).sum(0).sign()
    assert all(torch.equal(result, wanted) for result in results)
    summed = size == 7 or size > 8
    assert [type(each[0]) for each in log] == ([Sum, Sum] if summed else [Gather])
    words = math.ceil(301 / (32 // math.ceil(math.log2(size + 1)) if summed else 32))
    assert sum(t.nbytes for each in log for t in handed_over(each[0])) == 4 * words + 4
    assert SignSGD(**VOTE).wire_bytes(301, size) == 4 * words + 4


@pytest.mark.parametrize("size", [2, 3, 7, 8, 9, 10])
def test_a_zero_votes_both_ways_in_turn(size):
    layers = lay_out([(3, 1)])
    grads = [torch.tensor([1.0, 0.0, -1.0])] * size
    total = torch.zeros(3)
    for step in range(2):
        total += exchange(ranks(size, scale="one", **VOTE), grads, layers, step=step)[0]
    assert total.tolist() == [2.0, 0.0, -2.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("options", [VOTE, {"scale": "one", **VOTE}, {"scale": "one", "feedback": False}])
def test_what_is_not_finite_reaches_all_ranks_also_where_only_signs_travel(options, bad):
    for size in (2, 9):
        grads = [torch.ones(6) for _ in range(size)]
        grads[1][4] = bad
        assert not any(result.isfinite().any() for result in exchange(ranks(size, **options), grads))
