from itertools import combinations
from unittest.mock import patch

import pytest
import torch

from tests.helpers import answer_all, cut, exchange, lay_out
from wirebench.compressors import randomk
from wirebench.compressors.randomk import RandomK, draw
from wirebench.gradient.context import ExchangeContext


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
