"""gTop-k: the paper's merge, what it loses, and where that goes."""

import pytest
import torch
from torch import Tensor

from tests.helpers import LocalEngine, answer_all, whole
from wirebench.compressors.gtopk import GTopK
from wirebench.gradient.context import ExchangeContext


def step(ranks: list[GTopK], grads: list[Tensor], collective: str = "tree", measuring: bool = False) -> Tensor:
    """One exchange of all ranks; the result that they share, times their number.

    collective  "": no engine, but the plain answers of tests.helpers
    """
    size = len(ranks)
    exchanges = [
        r.exchange(whole(g.clone()), ExchangeContext(i, size, measuring=measuring))
        for i, (r, g) in enumerate(zip(ranks, grads, strict=True))
    ]
    results = LocalEngine(size, collective).answer_all(exchanges) if collective else answer_all(exchanges)
    assert all(torch.equal(result, results[0]) for result in results)
    return results[0] * size


def at(place: int, value: float) -> Tensor:
    return torch.zeros(4).index_fill_(0, torch.tensor([place]), value)


def lost(ranks: list[GTopK]) -> list[tuple[Tensor, Tensor]]:
    return [rank.lost for rank in ranks if rank.lost is not None]


def residuals(ranks: list[GTopK]) -> list[list[float]]:
    return [rank.state_dict()["residual"].tolist() for rank in ranks]


def test_it_is_not_the_top_k_of_the_sum():
    # Local top-1 {0:5}, {1:6}, {0:4}, {2:3}: round 1 gives {1:6}, {0:4}, the root {1:6}; the sums are 9, 6, 3.
    ranks = [GTopK(0.25) for _ in range(4)]
    total = step(ranks, [at(0, 5.0), at(1, 6.0), at(0, 4.0), at(2, 3.0)], measuring=True)
    assert total.tolist() == [0.0, 6.0, 0.0, 0.0]
    assert residuals(ranks) == [[5.0, 0, 0, 0], [0, 0, 0, 0], [4.0, 0, 0, 0], [0, 0, 3.0, 0]]
    assert not any(places.numel() for places, _ in lost(ranks))


@pytest.mark.parametrize("conserve", [False, True])
def test_a_partial_sum_that_was_dropped_on_the_way_is_lost_unless_it_is_conserved(conserve):
    ranks = [GTopK(0.25, conserve=conserve) for _ in range(4)]
    total = step(ranks, [at(0, 5.0), at(1, 6.0), at(0, 7.0), at(2, 3.0)], measuring=True)
    assert total.tolist() == [7.0, 0.0, 0.0, 0.0]
    # Rank 0 merged {0:5} with {1:6} and dropped the 5, but place 0 survived through rank 2.
    assert [each.tolist() for each in lost(ranks)[0]] == [[0], [5.0]]
    assert residuals(ranks) == [[5.0 if conserve else 0.0, 0, 0, 0], [0, 6.0, 0, 0], [0, 0, 0, 0], [0, 0, 3.0, 0]]
    assert [rank.measures.names for rank in ranks] == [["lost_mass", "lost_share"]] * 4
    mass = 0.0 if conserve else 5.0
    assert torch.stack([rank.measures.take() for rank in ranks]).sum(0).tolist() == [[mass, mass], [4.0, 21.0]]


COLLECTIVES = ("native", "ring", "tree", "star", "flexreduce", "recursive_doubling", "halving_doubling", "hierarchical")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("collective", ["", *COLLECTIVES])
@pytest.mark.parametrize("conserve", [False, True])
def test_given_minus_sent_minus_residual_is_what_is_logged_as_lost(collective, conserve):
    lost_at_all = 0.0
    for size in range(1, 10):
        rng = torch.Generator().manual_seed(size)
        ranks = [GTopK(0.1, conserve=conserve) for _ in range(size)]
        given, sent, logged = torch.zeros(60), torch.zeros(60), torch.zeros(60)
        for _ in range(6):
            grads = [torch.randint(-9, 10, (60,), generator=rng).float() for _ in range(size)]
            given += torch.stack(grads).sum(0)
            sent += step(ranks, grads, collective, measuring=True)
            for places, values in lost(ranks):
                logged.index_put_((places,), values, accumulate=True)
            held = torch.stack([rank.state_dict()["residual"] for rank in ranks]).sum(0)
            gone = torch.zeros(60) if conserve else logged
            torch.testing.assert_close(given - sent - held, gone, rtol=0, atol=1e-4)
        lost_at_all += logged.abs().sum().item()
    assert lost_at_all > 0
