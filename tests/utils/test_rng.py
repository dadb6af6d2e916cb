"""Draws depend on their key alone, and what ranks share they draw alike."""

import torch

from wirebench.gradient.context import ExchangeContext
from wirebench.utils.rng import generator, seed_of


def draw(rng: torch.Generator) -> list[float]:
    return torch.rand(4, generator=rng).tolist()


def test_a_seed_is_the_same_on_every_machine():
    assert seed_of("order", 1, 2) == 7687777085736185544
    assert 0 <= seed_of() < 2**63


def test_keys_of_other_kinds_or_cuts_are_other_keys():
    keys = [(1, 2), (12,), ("1", 2), (2, 1), ("a", "b"), ("ab",), ()]
    assert len({seed_of(*key) for key in keys}) == len(keys)


def test_a_generator_starts_anew_with_its_key():
    assert draw(generator("a", 3)) == draw(generator("a", 3))
    assert draw(generator("a", 3)) != draw(generator("a", 4))


def test_ranks_share_a_draw_and_steps_do_not():
    first, second = (ExchangeContext(rank, 2, step=5, epoch=1, seed=9) for rank in (0, 1))
    assert draw(first.shared_rng("rows", 0)) == draw(second.shared_rng("rows", 0))
    assert draw(first.shared_rng("rows", 0)) != draw(first.shared_rng("rows", 1))
    for other in (ExchangeContext(0, 2, step=6, seed=9), ExchangeContext(0, 2, step=5, seed=8)):
        assert draw(first.shared_rng("rows", 0)) != draw(other.shared_rng("rows", 0))
