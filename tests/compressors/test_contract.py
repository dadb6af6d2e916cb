"""What every compressor promises, held against all that `available()` names, bare and inside the wrappers.

Gradients are small whole numbers, so that every sum is exact in fp32, fp16 and bf16 alike.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import compressors
from compressors.base import Compressor
from tests.helpers import LocalEngine, cut, lay_out
from wirebench.layout import Layer
from wirebench.world import World

COLLECTIVES = ("native", "ring", "tree")
SIZES = range(1, 10)
LAYERS = lay_out([(3, 2, 4), (5,), (7, 3), (2,), (11, 2), (1,)])
NUMEL = LAYERS[-1].stop
CUTS = ([range(0, 6)], [range(0, 2), range(2, 3), range(3, 4), range(4, 6)], [range(0, 3), range(3, 6)])
DENSE_BELOW = 22  # leaves the first and the fifth layer to the compressor
WARMUP = (0.5, 0.25)

# How much a method still holds back, from its state, as a flat vector; without an entry: its residual.
HELD: dict[str, Callable[[Mapping[str, Tensor]], Tensor]] = {}


def variants() -> list[Any]:
    """(name, arguments of build) of every compressor and of every wrapper that fits around it."""
    found = []
    for name in compressors.available():
        has_density = "density" in compressors.PLUGINS.options(name)
        options: dict[str, Any] = {"density": 0.1} if has_density else {}
        wrappings: dict[str, dict[str, Any]] = {"bare": {}, "dense_below": {"dense_below": DENSE_BELOW}}
        if has_density:
            wrappings["warmup"] = {"warmup": WARMUP}
            wrappings["both"] = {"warmup": WARMUP, "dense_below": DENSE_BELOW}
        found += [pytest.param((name, options | w), id=f"{name}-{label}") for label, w in wrappings.items()]
    return found


Variant = tuple[str, dict[str, Any]]
every_variant = pytest.mark.parametrize("variant", variants())


class Ranks:
    """The compressors of all ranks of a world, advanced together."""

    def __init__(self, variant: Variant, size: int, collective: str = "native", layers: tuple[Layer, ...] = LAYERS):
        self.name, self.arguments = variant
        self.layers, self.engine, self.step_number = layers, LocalEngine(size, collective), 0
        self.ranks: list[Compressor] = [compressors.build(self.name, **self.arguments) for _ in range(size)]

    def step(self, grads: Sequence[Tensor], groups: Sequence[range]) -> list[Tensor]:
        """Exchange copies of the ranks' flat gradients, cut into `groups` of layers; every rank's flat result."""
        size, epoch = len(self.ranks), self.step_number // 2
        worlds = [World(rank, size, self.step_number, epoch) for rank in range(size)]
        buckets = [cut(grad.clone(), self.layers, groups) for grad in grads]
        results: list[list[Tensor]] = [[] for _ in grads]
        for same in zip(*buckets, strict=True):
            exchanges = [c.exchange(b, w) for c, b, w in zip(self.ranks, same, worlds, strict=True)]
            for mine, bucket, answer in zip(results, same, self.engine.answer_all(exchanges), strict=True):
                assert answer.shape == bucket.grad.shape
                assert answer.dtype == bucket.grad.dtype
                mine.append(answer.clone())
        self.step_number += 1
        return [torch.cat(mine) for mine in results]

    def held(self) -> Tensor:
        """Sum over ranks of what is held back, in the places of the flat gradient."""
        total = torch.zeros(self.layers[-1].stop, dtype=torch.float64)
        for state in (rank.state_dict() for rank in self.ranks):
            if state:
                assert self.name in HELD or set(state) == {"residual"}, f"HELD must say what {sorted(state)} hold"
                flat = HELD.get(self.name, lambda s: s["residual"])(state)
                total[self._compressed()] += flat
        return total

    def _compressed(self) -> Tensor:
        limit = self.arguments.get("dense_below", 0)
        kept = [layer.ndim > 1 and layer.numel >= limit if limit else True for layer in self.layers]
        return torch.repeat_interleave(torch.tensor(kept), torch.tensor([layer.numel for layer in self.layers]))


def whole_numbers(size: int, seed: int, numel: int = NUMEL) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randint(-8, 9, (numel,), generator=rng).float() for _ in range(size)]


def same_bits(results: Sequence[Tensor]) -> Tensor:
    """The result that all ranks share."""
    for other in results[1:]:
        assert torch.equal(other.view(torch.int32), results[0].view(torch.int32)), "the ranks' results differ"
    return results[0]


def assert_conserves(ranks: Ranks, steps: Sequence[tuple[Sequence[Tensor], Sequence[range]]]) -> None:
    """After every step: what was applied, times the number of ranks, and what is held back are all that was given."""
    given = torch.zeros(ranks.layers[-1].stop, dtype=torch.float64)
    applied = torch.zeros_like(given)
    for grads, groups in steps:
        total = same_bits(ranks.step(grads, groups)).double() * len(grads)
        assert (total - total.round()).abs().max() < 1e-4
        applied += total.round()
        given += torch.stack(list(grads)).double().sum(0)
        assert torch.equal(applied + ranks.held(), given)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("collective", COLLECTIVES)
@every_variant
def test_nothing_is_lost_and_all_ranks_agree_also_when_buckets_are_cut_anew(variant, collective, size):
    steps = [(whole_numbers(size, seed), CUTS[seed % len(CUTS)]) for seed in range(5)]
    assert_conserves(Ranks(variant, size, collective), steps)


@pytest.mark.parametrize("collective", COLLECTIVES)
@every_variant
def test_zeros_give_zeros(variant, collective):
    ranks = Ranks(variant, 3, collective)
    for groups in CUTS:
        assert not same_bits(ranks.step([torch.zeros(NUMEL)] * 3, groups)).any()


@every_variant
def test_ranks_may_have_nothing_to_say(variant):
    grads = [torch.zeros(NUMEL), *whole_numbers(1, 1), torch.zeros(NUMEL)]
    assert_conserves(Ranks(variant, 3, "tree"), [(grads, CUTS[1])] * 3)


@pytest.mark.parametrize("shape", [(1,), (1, 1)])
@every_variant
def test_a_single_element_is_sent_at_once(variant, shape):
    ranks = Ranks(variant, 4, layers=lay_out([shape]))
    assert_conserves(ranks, [(whole_numbers(4, seed, numel=1), [range(0, 1)]) for seed in range(3)])
    assert not ranks.held().any()


@every_variant
def test_ties_lose_nothing(variant):
    grads = [torch.full((NUMEL,), 2.0), torch.full((NUMEL,), -2.0), torch.full((NUMEL,), 2.0)]
    assert_conserves(Ranks(variant, 3), [(grads, groups) for groups in CUTS])


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("size", [1, 3, 8])
@every_variant
def test_keeping_everything_is_the_dense_average(variant, size, collective):
    name, arguments = variant
    everything = {"density": 1.0} if "density" in arguments else {}
    ranks = Ranks((name, arguments | everything | {"warmup": ()}), size, collective)
    dense = Ranks(("none", {}), size, collective)
    for seed in range(2):
        grads = whole_numbers(size, seed)
        assert torch.equal(same_bits(ranks.step(grads, CUTS[1])), same_bits(dense.step(grads, CUTS[1])))


@every_variant
def test_a_restored_run_goes_on_bit_for_bit(variant):
    first = Ranks(variant, 3)
    for seed in range(3):
        first.step(whole_numbers(3, seed), CUTS[0])
    saved = [{key: value.clone() for key, value in rank.state_dict().items()} for rank in first.ranks]
    second = Ranks(variant, 3)
    second.step_number = first.step_number
    for rank, state in zip(second.ranks, saved, strict=True):
        rank.load_state_dict(state)
    for seed in range(3, 6):
        grads = [grad * 1.1 for grad in whole_numbers(3, seed)]
        wanted = same_bits(first.step(grads, CUTS[2]))
        assert torch.equal(same_bits(second.step(grads, CUTS[2])), wanted)


@every_variant
def test_an_unused_compressor_can_be_saved_and_restored(variant):
    name, arguments = variant
    compressors.build(name, **arguments).load_state_dict(compressors.build(name, **arguments).state_dict())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 25, 60, NUMEL - 1])
@every_variant
def test_what_is_not_finite_reaches_all_ranks_at_once(variant, place, bad):
    ranks = Ranks(variant, 3)
    ranks.step(whole_numbers(3, 1), CUTS[1])
    grads = whole_numbers(3, 2)
    grads[1][place] = bad
    results = ranks.step(grads, CUTS[1])
    assert not any(result[place].isfinite() for result in results)


@every_variant
def test_bytes_are_estimated_without_data(variant):
    name, arguments = variant
    estimates = [compressors.build(name, **arguments).wire_bytes(numel, 4) for numel in (1, 1000, 1_000_000)]
    assert estimates == sorted(estimates)
    assert estimates[0] > 0


@every_variant
def test_the_server_counts_no_more_values_than_were_handed_over(variant):
    ranks = Ranks(variant, 3)
    ranks.step(whole_numbers(3, 1), CUTS[1])
    for served in ranks.engine.servers[0].log:
        assert 0 < served.value_bytes <= served.payload_bytes
