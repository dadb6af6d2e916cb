"""What every compressor promises, held against all that `available()` names, bare and inside the wrappers.

Gradients are small whole numbers, so that every sum is exact in fp32, fp16 and bf16 alike. What is asked of a method
depends on its `keeps` (gradient/contract.py): what is not sent is kept exactly, kept up to rounding, or not at all.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import helpers, own
from tests.helpers import LocalEngine, cut, lay_out
from wirebench import compressors
from wirebench.errors import UserError
from wirebench.gradient.conformance import exchange
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Method
from wirebench.gradient.flat import Layer
from wirebench.training.train_state import rank_states
from wirebench.utils.tensor_tree import pack, unpack

LAYERS = lay_out([(3, 2, 4), (5,), (7, 3), (2,), (11, 2), (1,)])
NUMEL = LAYERS[-1].stop
whole_numbers = functools.partial(helpers.whole_numbers, numel=NUMEL)
CUTS = ([range(0, 6)], [range(0, 2), range(2, 3), range(3, 4), range(4, 6)], [range(0, 3), range(3, 6)])
DENSE_BELOW = 22  # leaves the first and the fifth layer to the compressor
WARMUP = (0.5, 0.25)

# How much a method still holds back, from its state, as a flat vector; without an entry: its residual.
HELD: dict[str, Callable[[Mapping[str, Tensor]], Tensor]] = {
    "oktopk": lambda state: state["residual"],  # beside its thresholds
    "iwp": lambda state: state["residual"],  # beside the steps in which coordinates were last sent
}

# Beside density = 0.1 and no momentum: what makes a method do its work on a model as small as this one.
OPTIONS: dict[str, dict[str, Any]] = {
    "fetch_sgd": {"rows": 3, "columns": 12},
    "gs_sgd": {"rows": 3, "columns": 12},
    "sketched_sgd": {"rows": 3, "columns": 12},
    "iblt": {"room": 1.5},
    "acp_sgd": {"rank": 1},
    "powersgd": {"min_compression_rate": 1.0},
    "threshold": {"threshold": 7.0},
    "demo": {"chunk": 4, "k": 3},
    "zero_one_adam": {"kappa": 1, "freeze_step": 3, "double_every": 2, "longest": 4},
}
# Further forms of a method, which must hold to the same contract.
FORMS: dict[str, list[dict[str, Any]]] = {
    "chunk_topk": [{"beta": 1.0, "chunk": 16, "k": 2}],
    "quantised_sum": [
        {"form": "int8", "chunk": 8},
        {"form": "fp8", "group": 2},
        {"form": "mxfp6", "rotate": 4},
        {"form": "nvfp4", "group": 2, "within": "bf16"},
        {"form": "bf16", "feedback": False, "rounding": "stochastic"},
    ],
    "int8": [{"sum_bits": 16, "rounding": "nearest", "chunk": 7}, {"feedback": False}],
    "onebit": [{"values_per": "layer"}],
    "qsgd": [{"bits": 2, "norm": "l2", "chunk": 7}, {"bits": 8}],
    "signsgd": [{"form": "vote", "feedback": False}, {"feedback": False, "scale": "one"}],
    "terngrad": [{"form": "gather", "clip_factor": 0.0}],
    "clt_k": [{"indices": "delta", "values": "fp16"}, {"indices": "bitmap"}, {"beta": 0.5}],
    "fetch_sgd": [{"clear": "subtract", "hash": "reference"}],
    "gs_sgd": [
        {"fill": "estimate", "p2": 2, "hash": "reference"},
        {"reseed": True},
        {"broadcast": "indices"},
        {"fill": "estimate", "p1": 1.0, "p2": 2, "reseed": True},
        {"broadcast": "indices", "indices": "delta", "fill": "estimate"},
    ],
    "iblt": [{"room": 0.3}],
    "gtopk": [{"conserve": True}, {"values": "fp16", "indices": "delta", "conserve": True}],
    "acp_sgd": [{"rank": 2, "start_step": 1}],
    "powersgd": [{"rank": 2, "start_step": 1}, {"warm_start": False}, {"error_feedback": False}],
    "oktopk": [
        {"reevaluate_every": 2, "rebalance_every": 3, "indices": "delta"},
        {"values": "fp16", "indices": "bitmap", "dense_steps": 1},
    ],
    "randomk": [{"error_feedback": False}, {"values": "fp16"}],
    "threshold": [{"values": "bf16", "indices": "delta"}],
    "iwp": [
        {"mode": "layerwise", "masks": "delta", "waiting": True},
        {"masks": "smaller", "draw": "bucket", "voters": 1},
    ],
    "dion": [{"rank_fraction": 1.0}, {"orthonormal": True}],
    "topk": [{"values": "fp16", "indices": "delta"}, {"values": "bf16", "indices": "bitmap"}],
}


def forms() -> list[tuple[str, dict[str, Any]]]:
    """(name, options) of every compressor in each of its forms, or of one's own."""
    found = []
    for name in own.names("compressor", compressors.available()):
        known = compressors.PLUGINS.options(name)
        usual = {key: value for key, value in {"density": 0.1, "momentum": 0.0}.items() if key in known}
        usual |= OPTIONS.get(name, {}) | own.options("compressor")
        found += [(name, usual | form) for form in [{}, *FORMS.get(name, [])]]
    return found


def variants() -> list[Any]:
    """(name, arguments of build) of every compressor, bare and in all wrappers that fit around it.

    A further form in wrappers is slow.
    """
    found = []
    for name, options in forms():
        wrapping: dict[str, Any] = {}
        if not compressors.class_of(name).makes_update:  # an optimizer in itself updates all layers, or none
            wrapping["dense_below"] = DENSE_BELOW
        if "density" in options:
            wrapping["warmup"] = WARMUP
        words = "-".join([name, *(f"{k}={v}" for k, v in options.items() if (k, v) != ("density", 0.1))])
        found.append(pytest.param((name, options), id=f"{words}-bare"))
        if wrapping:
            marks = [] if (name, options) in BARE else [pytest.mark.slow]
            found.append(pytest.param((name, options | wrapping), id=f"{words}-wrapped", marks=marks))
    return found


def _rarely(variant: Any) -> Any:
    """The parameters, slow for a further form and in wrappers: for what a method's first form shows as well."""
    marks = [] if variant.values[0] in BARE else [pytest.mark.slow]
    return pytest.param(variant.values[0], id=variant.id, marks=marks)


def in_worlds() -> list[Any]:
    """(variant, collective, sizes): for a bare first form some sizes by day and all others slow, one for the others.

    A compressor does not learn which collective serves it, and these have tests of their own.
    """
    found = []
    for variant in variants():
        given = variant.values[0]
        sizes = {"native": {1, 2}, "tree": {5}} if given in BARE else {"tree": {3}}
        for collective, these in sizes.items():
            name = f"{variant.id}-{collective}"
            found.append(pytest.param(given, collective, these, id=name, marks=variant.marks))
        others = set(range(1, 10)) if given in BARE else {2, 8}
        found.append(pytest.param(given, "tree", others, id=f"{variant.id}-others", marks=pytest.mark.slow))
    return found


def keeps(variant: "Variant") -> str:
    """What becomes of what a method does not send."""
    name, arguments = variant
    return compressors.build(name, **arguments).keeps


Variant = tuple[str, dict[str, Any]]
BARE: list[Variant] = list({name: (name, options) for name, options in reversed(forms())}.values())
"""Every compressor in its first form, without wrappers."""
every_variant = pytest.mark.parametrize("variant", variants())
every_first_form = pytest.mark.parametrize("variant", [_rarely(each) for each in variants()])
in_every_world = pytest.mark.parametrize(("variant", "collective", "sizes"), in_worlds())


def with_momentum() -> list[Any]:
    """Every compressor that may apply a momentum, with one."""
    applies = [(name, options | {"momentum": 0.9}) for name, options in BARE if "momentum" in options]
    return [pytest.param(variant, id=f"{variant[0]}-momentum") for variant in applies]


class Ranks:
    """The compressors of all ranks of a world, advanced together."""

    def __init__(
        self,
        variant: Variant,
        size: int,
        collective: str = "native",
        layers: tuple[Layer, ...] = LAYERS,
        dtype: torch.dtype = torch.float32,
    ):
        self.variant, self.dtype = variant, dtype
        self.name, self.arguments = variant
        self.layers, self.engine, self.step_number = layers, LocalEngine(size, collective), 0
        self.ranks: list[Method] = [compressors.build(self.name, **self.arguments) for _ in range(size)]

    def step(self, grads: Sequence[Tensor], groups: Sequence[range], in_halves: bool = False) -> list[Tensor]:
        """Exchange copies of the ranks' flat gradients, cut into `groups` of layers; every rank's flat result.

        in_halves  several buckets are under way at once, as with `dear`
        """
        size, epoch = len(self.ranks), self.step_number // 2
        measuring = self.step_number % 2 == 1
        worlds = [ExchangeContext(rank, size, self.step_number, epoch, measuring=measuring) for rank in range(size)]
        copies = [grad.to(self.dtype, copy=True) for grad in grads]
        buckets = list(zip(*(cut(grad, self.layers, groups) for grad in copies), strict=True))
        exchanges = [
            [exchange(c, b, w) for c, b, w in zip(self.ranks, same, worlds, strict=True)] for same in buckets
        ]  # fmt: skip
        answers = (
            self.engine.answer_in_halves(exchanges) if in_halves else [self.engine.answer_all(e) for e in exchanges]
        )
        for same, of_bucket in zip(buckets, answers, strict=True):
            for bucket, answer in zip(same, of_bucket, strict=True):
                given, got = (f"{tuple(t.shape)}, {t.dtype}" for t in (bucket.grad, answer))
                assert given == got, f"exchange() returned {got}; the average is shaped like bucket.grad: {given}"
        self.step_number += 1
        return [torch.cat(mine) for mine in zip(*answers, strict=True)]

    def held(self) -> Tensor:
        """Sum over ranks of what is held back, in the places of the flat gradient."""
        total = torch.zeros(self.layers[-1].stop, dtype=torch.float64)
        for state in (rank.state_dict() for rank in self.ranks):
            own = {name for name in state if not name.startswith("shared.")}
            if own:
                assert self.name in HELD or own == {"residual"}, (
                    f"{self.name} saves {sorted(own)}; HELD in this file says how much of the gradient that holds back"
                )
                flat = HELD.get(self.name, lambda s: s["residual"])(state)
                total[: flat.numel()] += flat
        assert not total[~self._compressed()].any(), (
            f"{self.name} holds back something of layers that go dense, at places outside of bucket.layers"
        )
        return total

    def _compressed(self) -> Tensor:
        limit = self.arguments.get("dense_below", 0)
        kept = [layer.ndim > 1 and layer.numel >= limit if limit else True for layer in self.layers]
        return torch.repeat_interleave(torch.tensor(kept), torch.tensor([layer.numel for layer in self.layers]))


def kept(exchange: Exchange) -> Exchange:
    """The exchange with a copy of its result, which may be a tensor that the next one overwrites."""
    return (yield from exchange).clone()


def places(found: Tensor) -> str:
    """Where a mask is true, for a message."""
    return f" at places {found.nonzero().flatten().tolist()[:8]} of {found.numel()}" if found.any() else ""


def lost(ranks: Ranks, off: Tensor) -> str:
    """What to say where the sum of what was applied and what is held is `off` what was given."""
    return (
        f"{ranks.name} says keeps = {keeps(ranks.variant)!r}: the averages, times the number of ranks, and what is "
        f"held back make up what was given; they are off by up to {off.abs().max():.3g}{places(off.abs() > 1e-4)}. "
        "Add every gradient to self.memory.slice(bucket) and take from there what was sent, and no more; or say "
        "another `keeps`"
    )


def same_bits(results: Sequence[Tensor]) -> Tensor:
    """The result that all ranks share."""
    for other in results[1:]:
        assert torch.equal(other.view(torch.uint8), results[0].view(torch.uint8)), (
            f"the ranks' results differ{places(other != results[0])}: make them of the answers to requests and of "
            "world.shared_rng, which are the same on all ranks, and of nothing that is a rank's own"
        )
    return results[0]


def assert_conserves(ranks: Ranks, steps: Sequence[tuple[Sequence[Tensor], Sequence[range]]]) -> None:
    """After every step: what was applied, times the number of ranks, and what is held back are all that was given.

    Of methods that keep nothing, that the ranks agree on something finite.
    """
    given = torch.zeros(ranks.layers[-1].stop, dtype=torch.float64)
    applied = torch.zeros_like(given)
    for grads, groups in steps:
        total = same_bits(ranks.step(grads, groups)).double() * len(grads)
        assert total.isfinite().all(), f"of finite gradients the average is not{places(~total.isfinite())}"
        given += torch.stack(list(grads)).double().sum(0)
        if keeps(ranks.variant) == "exactly":
            assert (total - total.round()).abs().max() < (1e-4 if ranks.dtype == torch.float32 else 0.2), (
                f"sums of whole numbers are not whole{places((total - total.round()).abs() >= 1e-4)}: divide the sum "
                "by world.size once, at the end; a method that rounds values says keeps = 'rounded'"
            )
            applied += total.round()
            assert torch.equal(applied + ranks.held(), given), lost(ranks, applied + ranks.held() - given)
        elif keeps(ranks.variant) == "rounded":
            applied += total
            # An average of bfloat16 is rounded to a 256th, which no residual keeps.
            atol = 1e-3 if ranks.dtype == torch.float32 else float(given.abs().max()) / 64
            close = torch.isclose(applied + ranks.held(), given, rtol=1e-4, atol=atol)
            assert close.all(), lost(ranks, applied + ranks.held() - given)


@in_every_world
def test_nothing_is_lost_and_all_ranks_agree_also_when_buckets_are_cut_anew(variant, collective, sizes):
    for size in sizes:
        steps = [(whole_numbers(size, seed), CUTS[seed % len(CUTS)]) for seed in range(5)]
        assert_conserves(Ranks(variant, size, collective), steps)


@pytest.mark.parametrize(
    "variant", [v for v in variants() if v.id.endswith("bare") and keeps(v.values[0]) in ("exactly", "rounded")]
)
def test_what_is_rounded_is_not_lost(variant):
    """Of fractions, also where values travel in a narrow format; what a sum in that format rounds is lost."""
    size = 1 if variant[0] in ("randomk", "clt_k") and "values" in variant[1] else 3
    ranks = Ranks(variant, size)
    given, applied = (torch.zeros(NUMEL, dtype=torch.float64) for _ in range(2))
    for seed in range(4):
        grads = [4 * grad for grad in helpers.normal(size, seed, NUMEL)]
        given += torch.stack(grads).double().sum(0)
        applied += size * same_bits(ranks.step(grads, CUTS[seed % len(CUTS)])).double()
        off = applied + ranks.held() - given
        assert off.abs().max() < 1e-4, lost(ranks, off)


@every_first_form
def test_zeros_give_zeros(variant):
    ranks = Ranks(variant, 3)
    for groups in CUTS:
        average = same_bits(ranks.step([torch.zeros(NUMEL)] * 3, groups))
        assert not average.any(), f"gradients of zeros give something else{places(average != 0)}"


@every_first_form
def test_ranks_may_have_nothing_to_say(variant):
    grads = [torch.zeros(NUMEL), *whole_numbers(1, 1), torch.zeros(NUMEL)]
    assert_conserves(Ranks(variant, 3, "tree"), [(grads, CUTS[1])] * 3)


@pytest.mark.parametrize("shape", [(1,), pytest.param((1, 1), marks=pytest.mark.slow)])
@every_first_form
def test_a_single_element_is_sent_at_once(variant, shape):
    ranks = Ranks(variant, 4, layers=lay_out([shape]))
    assert_conserves(ranks, [(whole_numbers(4, seed, numel=1), [range(0, 1)]) for seed in range(3)])
    if "density" in variant[1]:
        assert not ranks.held().any(), "of a bucket of one element nothing was sent: send at least one, at any density"


@every_first_form
def test_ties_lose_nothing(variant):
    grads = [torch.full((NUMEL,), 2.0), torch.full((NUMEL,), -2.0), torch.full((NUMEL,), 2.0)]
    assert_conserves(Ranks(variant, 3), [(grads, groups) for groups in CUTS])


@pytest.mark.parametrize(
    "variant", [v for v in variants() if "density" in v.values[0][1] and "warmup" not in v.values[0][1]]
)
def test_keeping_everything_is_the_dense_average(variant):
    name, arguments = variant
    for size in (1, 3):
        ranks = Ranks((name, arguments | {"density": 1.0}), size)
        dense = Ranks(("none", {}), size)
        for seed in range(2):
            grads = whole_numbers(size, seed)
            mine, wanted = same_bits(ranks.step(grads, CUTS[1])), same_bits(dense.step(grads, CUTS[1]))
            assert torch.equal(mine, wanted), (
                f"with density = 1 it is not the dense average{places(mine != wanted)}: everything is sent then"
            )


@every_variant
def test_a_restored_run_goes_on_bit_for_bit(variant):
    first = Ranks(variant, 2)
    for seed in range(3):
        first.step(whole_numbers(2, seed), CUTS[0])
    saved = [{key: value.clone() for key, value in rank.state_dict().items()} for rank in first.ranks]
    second = Ranks(variant, 2)
    second.step_number = first.step_number
    for rank, state in zip(second.ranks, saved, strict=True):
        rank.load_state_dict(state)
    for seed in range(3, 5):
        grads = [grad * 1.1 for grad in whole_numbers(2, seed)]
        wanted = same_bits(first.step(grads, CUTS[2]))
        mine = same_bits(second.step(grads, CUTS[2]))
        assert torch.equal(mine, wanted), (
            f"a run that was restored gives something else{places(mine != wanted)}: all that exchange() remembers from "
            "step to step belongs to self.memory, self.shared or self.own, which state_dict() saves"
        )


HANDED_ON = (
    "when the number of ranks changes, what is held back has another part in the average than before: what a rank "
    "holds back belongs to self.memory, which take_over() hands on; what all share to self.shared; the rest to self.own"
)


def handed_on(before: Ranks, size: int) -> Ranks:
    """The world of `size` ranks that goes on where another one stood, as a run that is resumed does."""
    after = Ranks(before.variant, size)
    after.step_number = before.step_number
    files = [pack(rank.state_dict()) for rank in before.ranks]
    for rank, parts in zip(after.ranks, rank_states(files, size), strict=True):
        rank.take_over([unpack(file) for file in parts.states], parts.joins, parts.weight)
        assert not any(name.startswith("own.") for name in rank.state_dict()), HANDED_ON
    return after


def in_averages(ranks: Ranks) -> tuple[dict[str, Tensor], dict[str, float]]:
    """By name what the ranks remember, as it will be in averages, and the sum of its magnitudes.

    What each rank keeps is summed over ranks and then divided by their number, as is a sum that all ranks keep.
    """
    size, states = len(ranks.ranks), [rank.state_dict() for rank in ranks.ranks]
    found: dict[str, Tensor] = {}
    masses: dict[str, float] = {}
    for name in {name for state in states for name in state if not name.startswith("own.")}:
        kept = torch.stack([state[name].double() for state in states if name in state])
        if name.startswith("shared."):
            assert len(kept) == size and all(torch.equal(each, kept[0]) for each in kept), HANDED_ON
            kept = kept[:1] if keeps(ranks.variant) == "sketched" else kept
        found[name], masses[name] = kept.sum(0) / size, float(kept.abs().sum()) / size
    return found, masses


@pytest.mark.parametrize("variant", [*map(_rarely, variants()), *with_momentum()])
def test_what_four_ranks_remember_is_handed_on_to_three_and_back(variant):
    """Residuals, velocities and moments: nothing of their part in the update is lost, and all ranks go on alike."""
    world = Ranks(variant, 4)
    for seed in range(3):
        world.step(whole_numbers(4, seed), CUTS[0])
    for size in (3, 4):
        for rank in world.ranks:  # some methods send all of so small a model, in these steps
            for tensor in rank.memory.state_dict().values():
                tensor.add_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(size)))
        before, masses = in_averages(world)
        world = handed_on(world, size)
        now, _ = in_averages(world)
        assert before.keys() == now.keys(), HANDED_ON
        for name, tensor in before.items():
            off = float((now[name] - tensor).abs().sum())
            assert off <= 1e-6 * masses[name], f"{name} is off by {off:.3g} of {masses[name]:.3g}; {HANDED_ON}"
        same_bits(world.step(whole_numbers(size, 7 + size), CUTS[0]))


@every_first_form
def test_an_unused_compressor_can_be_saved_and_restored(variant):
    name, arguments = variant
    compressors.build(name, **arguments).load_state_dict(compressors.build(name, **arguments).state_dict())


BAD = (float("nan"), float("inf"), -float("inf"))
PLACES = (0, 25, 60, NUMEL - 1)
EVERYWHERE = [
    # By day within a layer and at the end, with another value each; the rest where there is time.
    pytest.param(place, bad, marks=[] if number % 2 and which == number // 2 else pytest.mark.slow)
    for number, place in enumerate(PLACES)
    for which, bad in enumerate(BAD)
]


@pytest.mark.parametrize(("place", "bad"), EVERYWHERE)
@every_first_form
def test_what_is_not_finite_reaches_all_ranks_at_once(variant, place, bad):
    ranks = Ranks(variant, 3)
    ranks.step(whole_numbers(3, 1), CUTS[1])
    grads, who = whole_numbers(3, 2), place % 3
    grads[who][place] = bad
    results = ranks.step(grads, CUTS[1])
    deaf = [rank for rank, result in enumerate(results) if result[place].isfinite()]
    assert not deaf, (
        f"rank {deaf[0]} is finite at place {place} where rank {who} was given {bad} in this step: add an alarm, a "
        "number that all ranks sum, as mine/cyclic of CONTRIBUTING.md does"
    )


@every_first_form
def test_the_same_draws_give_the_same_result(variant):
    first, second = Ranks(variant, 3), Ranks(variant, 3)
    for seed in range(3):
        grads = [grad * 1.1 for grad in whole_numbers(3, seed)]
        wanted = same_bits(first.step(grads, CUTS[1]))
        mine = same_bits(second.step(grads, CUTS[1]))
        assert torch.equal(mine, wanted), (
            f"a second run gives something else{places(mine != wanted)}: draw from world.shared_rng(key), or from a "
            "generator that is seeded with world.seed, world.step and world.rank, never from torch's own"
        )


@every_first_form
def test_several_buckets_may_be_under_way_at_once(variant):
    """As with `dear`, which leaves every exchange of a step at its first sum: the results are those of `fused`."""
    one_by_one, in_halves = Ranks(variant, 3, "tree"), Ranks(variant, 3, "tree")
    for seed in range(4):
        grads = [grad * 1.1 for grad in whole_numbers(3, seed)]
        wanted = same_bits(one_by_one.step(grads, CUTS[seed % 2 + 1]))
        assert torch.equal(same_bits(in_halves.step(grads, CUTS[seed % 2 + 1], in_halves=True)), wanted)


@every_first_form
def test_measures_are_taken_when_asked_for_and_under_the_same_names(variant):
    ranks = Ranks(variant, 3)
    for seed in range(2):
        ranks.step(whole_numbers(3, seed), CUTS[1])
        names = {tuple(rank.measures.names) for rank in ranks.ranks}
        assert len(names) == 1, f"all ranks take the same measures in the same order; they took {sorted(names)}"
        if not seed:
            assert names == {()}, f"{names} were measured although world.measuring was false"
    for rank in ranks.ranks:
        names_of_rank = rank.measures.names
        assert rank.measures.take().isfinite().all(), f"one of {names_of_rank} is not finite"


@every_first_form
def test_bytes_are_estimated_without_data(variant):
    name, arguments = variant
    estimates = [compressors.build(name, **arguments).wire_bytes(numel, 4) for numel in (1, 1000, 1_000_000)]
    told = f"wire_bytes() of 1, 1000 and a million elements is {estimates}"
    assert estimates == sorted(estimates), f"{told}: more elements are not fewer bytes"
    assert estimates[0] > 0, f"{told}: even one element costs a byte or more"


@every_first_form
def test_the_server_counts_no_more_values_than_were_handed_over(variant):
    ranks = Ranks(variant, 3)
    ranks.step(whole_numbers(3, 1), CUTS[1])
    log = ranks.engine.servers[0].log
    for served in log:
        assert 0 <= served.value_bytes <= served.payload_bytes, (
            f"a {served.kind} hands over {served.payload_bytes} bytes, {served.value_bytes} of them values: `values` "
            "of a request counts its elements that are values of the gradient, without indices, scales and alarms"
        )
    assert sum(served.value_bytes for served in log) > 0, (
        "no request says that it carries the gradient's values: give at least one of them values=ELEMENTS"
    )


EMPTY_GROUPS = [range(0, 1), range(1, 4), range(4, 5), range(5, 8), range(8, 11)]
"""Buckets of MORE: without elements alone, before others, alone again, between others, and at the end."""
MORE = lay_out([(0,), (0, 4), (3, 2, 4), (5,), (0,), (7, 3), (2, 0), (2,), (11, 2), (1,), (0, 3)])


@every_first_form
def test_layers_without_elements_change_nothing(variant):
    with_empty, without = Ranks(variant, 3, layers=MORE), Ranks(variant, 3)
    for seed in range(3):
        grads = [grad * 1.1 for grad in whole_numbers(3, seed)]
        wanted = same_bits(without.step(grads, [range(0, 2), range(2, 4), range(4, 6)]))
        mine = same_bits(with_empty.step(grads, EMPTY_GROUPS))
        assert torch.equal(mine, wanted), f"layers of no elements change the others{places(mine != wanted)}"
    messages = [sum(served.payload_bytes for served in r.engine.servers[0].log) for r in (with_empty, without)]
    assert messages[0] == messages[1], (
        f"for layers of no elements bytes travel: {messages[0]} in place of {messages[1]}"
    )


def test_a_model_without_elements_asks_for_nothing():
    for variant in BARE:
        ranks = Ranks(variant, 2, layers=lay_out([(0,), (0, 4)]))
        assert not same_bits(ranks.step([torch.zeros(0)] * 2, [range(0, 2)])).numel()
        assert not ranks.engine.servers[0].log and not ranks.ranks[0].state_dict()


HALVED = {
    "none", "topk", "dgc", "gtopk", "clt_k", "oktopk", "randomk", "threshold", "iwp", "powersgd", "acp_sgd", "dion",
    "demo",
}  # fmt: skip
"""Methods all of whose values travel in bfloat16 where the gradient is of it; the others have a format of their own."""


@every_first_form
def test_gradients_of_bfloat16_are_averaged_as_those_of_float32(variant):
    """In their own dtype, on all ranks alike, without loss; memories are of fp32, and a restart goes on from them."""
    assert_conserves(
        Ranks(variant, 3, dtype=torch.bfloat16), [(whole_numbers(3, seed), CUTS[seed]) for seed in range(3)]
    )
    first, second = Ranks(variant, 3, dtype=torch.bfloat16), Ranks(variant, 3, dtype=torch.bfloat16)
    wide = Ranks(variant, 3)
    first.step(whole_numbers(3, 1), CUTS[1])
    wide.step(whole_numbers(3, 1), CUTS[1])
    logs = [ranks.engine.servers[0].log for ranks in (first, wide)]
    sent, sent_wide = (sum(served.payload_bytes for served in log) for log in logs)
    assert sent <= sent_wide, f"{sent} bytes travel, for fp32 {sent_wide}"
    if variant in BARE and first.name in HALVED:
        values, values_wide = (sum(served.value_bytes for served in log) for log in logs)
        assert 2 * values == values_wide, f"values take {values} bytes, for fp32 {values_wide}: send bucket.narrow(...)"
    second.step_number = first.step_number
    for rank, other in zip(first.ranks, second.ranks, strict=True):
        state = unpack(pack(rank.state_dict()))
        assert torch.bfloat16 not in {tensor.dtype for tensor in state.values()}
        other.load_state_dict(state)
    grads = [grad * 1.1 for grad in whole_numbers(3, 2)]
    assert torch.equal(same_bits(first.step(grads, CUTS[1])), same_bits(second.step(grads, CUTS[1])))
    grads[1][25] = torch.nan
    assert all(result[25].isnan() for result in first.step(grads, CUTS[1]))


@pytest.mark.parametrize("variant", BARE, ids=lambda variant: variant[0])
def test_training_in_bfloat16_gets_where_training_in_float32_does(variant):
    """Least squares on each of three ranks, by plain SGD; a method that returns signs takes smaller steps."""
    name, options = variant
    options = options | ({"density": 0.3} if "density" in options else {})
    rate = 0.4 if compressors.class_of(name).makes_update else 0.1
    reached = []
    for dtype in (torch.float32, torch.bfloat16):
        ranks, weights = Ranks((name, options), 3, dtype=dtype), torch.zeros(NUMEL)
        aims = whole_numbers(3, 5)
        for step in range(16):
            grads = [weights - aim for aim in aims]
            weights = weights - rate * ranks.step(grads, CUTS[0])[0].float()
            assert weights.isfinite().all(), f"step {step}"
        mean = torch.stack(aims).mean(0)
        reached.append(float((weights - mean).square().sum() / mean.square().sum()))
    exact, narrow = reached
    assert exact < 0.8, f"the loss is {exact:.2f} of what it was"
    assert narrow < 0.05 + 1.2 * exact, f"in fp32 {exact:.3f} of the loss is left, in bfloat16 {narrow:.3f}"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.complex64, torch.int32])
def test_another_dtype_is_averaged_or_refused_with_the_method_s_name(dtype):
    for variant in BARE:
        ranks = Ranks(variant, 2, dtype=dtype)
        if dtype.is_floating_point and ranks.ranks[0].any_dtype:
            assert_conserves(ranks, [(whole_numbers(2, 1), CUTS[0])])
            continue
        with pytest.raises(UserError, match=rf"^compressor.name: '{variant[0]}' takes gradients of .*, not of \w+$"):
            ranks.step(whole_numbers(2, 1), CUTS[0])
