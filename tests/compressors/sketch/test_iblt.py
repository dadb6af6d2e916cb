"""iblt against topk, whose average it sends in another way."""

import functools

import pytest
import torch

from tests import helpers
from tests.helpers import exchange
from wirebench.compressors.iblt import Iblt
from wirebench.compressors.topk import TopK
from wirebench.gradient.metrics import values

NUMEL = 2000
whole_numbers = functools.partial(helpers.whole_numbers, numel=NUMEL, most=99)


def stalled(rank):
    names = rank.measures.names
    return values(names, rank.measures.take())["stalled"]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_the_average_is_top_ks(size):
    ours, theirs = ([make(density=0.02) for _ in range(size)] for make in (lambda **o: Iblt(room=5.0, **o), TopK))
    for step in range(4):
        grads = whole_numbers(size, step)
        wanted = exchange(theirs, grads, step=step)[0]
        for rank, result in zip(ours, exchange(ours, grads, measuring=True, step=step), strict=True):
            assert torch.equal(result, wanted)
            assert stalled(rank) == 0
        for rank, other in zip(ours, theirs, strict=True):
            assert torch.equal(rank.state_dict()["residual"], other.state_dict()["residual"])


def test_where_peeling_stalls_what_was_read_is_sent_and_nothing_is_lost():
    """A table for 1 k entries, of four ranks that offer almost 4 k."""
    ranks, given, applied = [Iblt(density=0.05, room=1.0) for _ in range(4)], torch.zeros(NUMEL), torch.zeros(NUMEL)
    for step in range(5):
        grads = whole_numbers(4, step)
        given += sum(grads)
        results = exchange(ranks, grads, measuring=True, step=step)
        assert all(torch.equal(result, results[0]) for result in results)
        assert all(stalled(rank) == 1 for rank in ranks)
        assert 50 <= results[0].count_nonzero() <= 150
        applied += results[0] * 4
        assert torch.equal(applied + sum(rank.state_dict()["residual"] for rank in ranks), given)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_the_table_has_room_for_what_so_many_ranks_choose(size):
    """Of choices that have so much in common as was measured of gradients: U / k entries of P k."""
    shared = {1: 1.0, 2: 1.8, 4: 3.4, 8: 5.9, 16: 10.1}[size]
    k = 200
    places = torch.arange(int(shared * k))
    ranks = [Iblt(density=0.01) for _ in range(size)]
    grads = []
    for rank in range(size):
        grad = torch.zeros(100 * k)
        grad[(places[:k] * 7 + rank * (places.numel() - k) // max(size - 1, 1) * 7)] = 1.0
        grads.append(grad)
    union = torch.stack(grads).sum(0).count_nonzero()
    assert union <= places.numel()
    result = exchange(ranks, grads, measuring=True)[0]
    assert stalled(ranks[0]) == 0 and result.count_nonzero() == union
