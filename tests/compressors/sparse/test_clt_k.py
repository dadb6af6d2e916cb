import pytest
import torch

from tests.compressors.twins import top_k_reference
from tests.helpers import Log, exchange
from wirebench.compressors import clt_k
from wirebench.compressors.clt_k import CltK
from wirebench.compressors.sparse.places import values_at
from wirebench.gradient.requests import Gather, Sum, payload


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_the_filter_is_the_papers(beta):
    """m + g is sent at the leader's places; m <- (1 - beta) m + beta (m + g - sent). The residual is m / beta."""
    size, rng = 3, torch.Generator().manual_seed(5)
    ranks, memories = [CltK(0.1, beta) for _ in range(size)], [torch.zeros(200, dtype=torch.float64)] * size
    for step in range(12):
        grads = [torch.randn(200, generator=rng) for _ in range(size)]
        offered = [memory + grad for memory, grad in zip(memories, grads, strict=True)]
        places = top_k_reference(offered[step % size].float(), 20)
        sent = [torch.zeros_like(each).index_copy(0, places, each[places]) for each in offered]
        memories = [(1 - beta) * m + beta * (o - s) for m, o, s in zip(memories, offered, sent, strict=True)]
        for result in exchange(ranks, grads, step=step):
            torch.testing.assert_close(result.double(), sum(sent) / size, rtol=1e-5, atol=1e-6)
        for rank, memory in zip(ranks, memories, strict=True):
            torch.testing.assert_close(rank.state_dict()["residual"].double(), memory / beta, rtol=1e-5, atol=1e-5)


def test_the_leaders_places_are_summed_and_then_the_values():
    log: Log = []
    rank = CltK(0.25)
    exchange([rank, CltK(0.25)], [torch.tensor([0, 1, 0, 0, 0, 0, 0, 2.0]), torch.ones(8)], log=log)
    places, values = log
    assert all(isinstance(request, Sum) for requests in log for request in requests)
    assert [payload(request).tolist() for request in places] == [[1, 7], [0, 0]]
    assert [request.values for request in places] == [0, 0]
    assert [payload(request).tolist() for request in values] == [[1.0, 2.0], [1.0, 1.0]]
    assert payload(places[0]).nbytes + payload(values[0]).nbytes == rank.wire_bytes(8, 2) == 16


def test_only_the_leader_need_not_look_at_all_it_has(monkeypatch):
    """Its largest, which it sends, show what is not finite; the others' are elsewhere."""
    told = []

    def noting(*given):
        told.append(given[4])
        return values_at(*given)

    monkeypatch.setattr(clt_k, "values_at", noting)
    exchange([CltK(0.25) for _ in range(3)], [torch.ones(8)] * 3, step=4)
    assert told == [False, True, False]


def test_codes_whose_length_only_the_leader_knows_are_gathered():
    log: Log = []
    exchange([CltK(0.25, indices="delta") for _ in range(3)], [torch.ones(8)] * 3, step=2, log=log)
    assert all(isinstance(request, Gather) for request in log[0])
    assert [payload(request).numel() for request in log[0]] == [0, 0, 8]


@pytest.mark.parametrize("indices", ["int32", "bitmap", "delta"])
def test_a_leader_with_less_to_say_than_usual(indices):
    grads = [torch.tensor([0.0, 0, 5, 0, 0, 0, 0, 0]), torch.arange(1.0, 9)]
    for result in exchange([CltK(0.5, indices=indices) for _ in grads], grads):
        assert result.tolist() == [0.0, 0, 4, 0, 0, 0, 0, 0]


def test_large_numbers_are_finite():
    (result, _) = exchange([CltK(0.01), CltK(0.01)], [torch.full((1000,), 1.5e38), torch.full((1000,), -1.5e38)])
    assert not result.any()
    (result, _) = exchange([CltK(0.01), CltK(0.01)], [torch.full((1000,), 1.5e38), torch.full((1000,), 1.5e38)])
    assert result.count_nonzero() == 10
    assert result.isfinite().all()


def test_the_leaders_choice_may_be_estimated():
    grad = torch.randn(100_000, generator=torch.Generator().manual_seed(1))
    (result,) = exchange([CltK(0.01, selection="sidco")], [grad])
    assert 500 <= result.count_nonzero() <= 1000
    assert result[result != 0].abs().min() >= grad[result == 0].abs().max()
