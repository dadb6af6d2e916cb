"""The ground of the quantisers: blocks and groups, fields in words, draws for rounding, levels."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import wirebench.compressors.bits.blocks as blocks_module
import wirebench.compressors.bits.noise as noise_module
from tests.helpers import exchange, lay_out
from wirebench import compressors
from wirebench.compressors.bits.blocks import (
    HIGHEST,
    LOWEST,
    MAGNITUDES,
    SQUARES,
    Groups,
    Run,
    by_chunk,
    by_layer,
    by_row,
    reduce,
    widths,
)
from wirebench.compressors.bits.fields import Fields, width_for
from wirebench.compressors.bits.levels import Levels
from wirebench.compressors.bits.noise import Noise
from wirebench.gradient.flat import Bucket
from wirebench.utils.rng import generator

CPU = torch.device("cpu")
FIVE_RUNS = (Run(3, 4), Run(50, 1), Run(1, 7), Run(16, 3), Run(29, 2))


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 32 elements, so that a few elements are several of them."""
    monkeypatch.setattr(blocks_module, "CPU_BLOCK", 32)


def group_of_each(groups: Groups) -> list[int]:
    """The group of every element."""
    sizes = [run.width for run in groups for _ in range(run.groups)]
    return [number for number, size in enumerate(sizes) for _ in range(size)]


def integers(numel: int, low: int, high: int, seed: int = 0) -> Tensor:
    """Whole numbers from low to high."""
    return torch.randint(low, high + 1, (numel,), dtype=torch.int32, generator=torch.Generator().manual_seed(seed))


def packed(fields: Fields, numbers: Tensor) -> Tensor:
    words = torch.empty(fields.words(numbers.numel()), dtype=torch.int32)
    scratch = fields.scratch(numbers.numel(), CPU)
    for part, mine in zip(numbers.split(fields.block_numel), fields.split(words), strict=True):
        fields.pack(part, mine, scratch)
    return words


def unpacked(fields: Fields, words: Tensor, numel: int) -> Tensor:
    scratch = fields.scratch(numel, CPU)
    return torch.cat([fields.unpack(mine, scratch).clone() for mine in fields.split(words)])[:numel]


@pytest.mark.usefixtures("small_blocks")
def test_what_is_said_of_groups_is_what_a_loop_says():
    owner = torch.tensor(group_of_each(FIVE_RUNS))
    x = integers(owner.numel(), -9, 9).float()
    wanted = [x[owner == group] for group in range(int(owner.max()) + 1)]
    found = reduce(x, FIVE_RUNS, HIGHEST, LOWEST, SQUARES, MAGNITUDES)
    assert found[0].tolist() == [each.max() for each in wanted]
    assert found[1].tolist() == [each.min() for each in wanted]
    torch.testing.assert_close(found[2], torch.stack([each.square().sum() for each in wanted]))
    assert found[3].tolist() == [each.abs().sum() for each in wanted]
    assert widths(FIVE_RUNS, CPU).tolist() == [each.numel() for each in wanted]


@pytest.mark.parametrize("name", ["signsgd", "onebit", "terngrad", "qsgd", "int8"])
def test_constants_are_made_in_the_first_step_only(name, monkeypatch):
    """On a GPU the host would wait for each of them, in every step."""
    grad, compressor = torch.randn(200), compressors.build(name)
    for step in range(3):
        exchange([compressor], [grad], step=step)
        monkeypatch.setattr(torch, "tensor", lambda *_, **__: pytest.fail("a constant is made anew"))


def test_groups_of_a_bucket():
    layers = lay_out([(4, 5), (6,), (3, 2, 2), (2, 4)])
    grad = torch.zeros(layers[-1].stop)
    bucket = Bucket(0, grad, grad, layers)
    assert by_layer(bucket) == (Run(20, 1), Run(6, 1), Run(12, 1), Run(8, 1))
    assert by_row(bucket, 4) == (Run(5, 4), Run(6, 1), Run(4, 3), Run(4, 2))
    assert by_row(bucket, 5) == (Run(5, 4), Run(6, 1), Run(12, 1), Run(8, 1))
    assert by_chunk(bucket, 10) == (Run(10, 4), Run(6, 1))
    assert by_chunk(bucket, 46) == (Run(46, 1),)
    assert by_chunk(bucket, 47) == (Run(46, 1),)


@pytest.mark.sampled(12)
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 6, 7, 8, 11, 16])
@pytest.mark.parametrize("numel", [1, 2, 9, 16, 33, 100])
def test_every_number_comes_back(width, numel):
    fields = Fields(width, CPU)
    numbers = integers(numel, -(1 << (width - 1)), (1 << (width - 1)) - 1)
    words = packed(fields, numbers)
    assert words.numel() == math.ceil(numel / (32 // width))
    assert torch.equal(unpacked(fields, words, numel), numbers)


def test_numbers_of_thirty_two_bits_come_back():
    fields, numbers = Fields(32, CPU), torch.tensor([-(2**31), -1, 0, 1, 2**31 - 1], dtype=torch.int32)
    assert torch.equal(unpacked(fields, packed(fields, numbers), 5), numbers)


def test_a_word_by_hand():
    """The fields of a word lie apart: of two words, word w holds the elements w, w + 2, w + 4 and w + 6."""
    words = packed(Fields(8, CPU), torch.tensor([1, 5, 2, 6, 3, 7, 4, 8], dtype=torch.int32))
    assert words.tolist() == [1 + (2 << 8) + (3 << 16) + (4 << 24), 5 + (6 << 8) + (7 << 16) + (8 << 24)]


@pytest.mark.parametrize("numel", [3, 100])
def test_what_is_packed_may_be_larger_by_a_base_and_have_fractions(numel):
    numbers = integers(numel, -7, 7)
    fields = Fields(4, CPU, base=8)
    words = packed(fields, numbers.float() + 8.75)
    assert torch.equal(words, packed(Fields(4, CPU), numbers))


@pytest.mark.sampled(10)
@pytest.mark.parametrize("levels", [1, 3, 7, 31])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 15, 16, 64, 127])
def test_added_words_hold_the_sums(levels, size):
    fields = Fields(width_for(levels * size), CPU)
    ranks = [integers(200, -levels, levels, seed) for seed in range(size)]
    ranks = [torch.cat([r, torch.tensor([levels, -levels] * 20, dtype=torch.int32)]) for r in ranks]  # the extremes
    words = torch.stack([packed(fields, rank) for rank in ranks]).sum(0)
    assert words.abs().max() < 2**31, "no sum wraps around"
    assert torch.equal(unpacked(fields, words.int(), 240), torch.stack(ranks).sum(0).int())


@pytest.mark.parametrize(("largest", "bits"), [(1, 2), (2, 3), (3, 3), (4, 4), (7, 4), (8, 5), (127, 8), (128, 9)])
def test_the_width_is_the_least_that_holds_both_signs(largest, bits):
    assert width_for(largest) == bits == math.ceil(math.log2(2 * largest + 1))


@pytest.mark.parametrize("exponent", [0, 3, 7])
@pytest.mark.parametrize("numel", [1, 10, 5000, 20_000])
def test_draws_lie_above_their_power_of_two(exponent, numel):
    noise = Noise(numel, 8192, exponent, generator("test", exponent))
    blocks = range(math.ceil(numel / 8192))
    draws = torch.cat([noise.block(b, min(8192, numel - 8192 * b)).clone() for b in blocks])
    assert draws.numel() == numel
    assert draws.min() >= 2**exponent
    assert draws.max() < 2**exponent + 1
    if numel > 1000:
        assert draws.unique().numel() > 0.8 * numel
        # Of uniform draws: mean 1/2, variance 1/12, each within 4.5 standard errors.
        u = draws.double() - 2**exponent
        assert abs(u.mean() - 1 / 2) < 4.5 * (1 / 12 / numel) ** 0.5
        assert abs((u - 0.5).square().mean() - 1 / 12) < 4.5 * (1 / 180 / numel) ** 0.5


def test_sums_over_coordinates_vary_as_with_independent_draws(monkeypatch):
    """Four stretches share a row: without words of their own the variance would be four times as large."""
    monkeypatch.setattr(noise_module, "ROW", 8)
    numel, trials, share = 32, 5000, 0.3
    draws = torch.stack([Noise(numel, numel, 0, generator("sum", t)).block(0, numel).clone() for t in range(trials)])
    sums = (draws - 1 + share).floor().sum(1)
    wanted = numel * share * (1 - share)
    # The variance of 5000 sums is known to 2 % (one standard error): within 5 of them.
    assert abs(sums.var() / wanted - 1) < 0.1
    assert abs(sums.mean() - numel * share) < 4.5 * (wanted / trials) ** 0.5


def test_blocks_of_draws_differ_and_repeat():
    first, again = (Noise(64, 16, 0, generator("same", 1)) for _ in range(2))
    draws = [first.block(number, 16).clone() for number in range(4)]
    assert all(not torch.equal(draws[0], other) for other in draws[1:])
    assert all(torch.equal(again.block(number, 16), draws[number]) for number in range(4))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("feedback", [False, True])
def test_levels_to_the_nearest_are_what_a_loop_says(feedback):
    """Scales are powers of two times the levels, so that nothing but the rounding rounds."""
    levels, owner = 7, torch.tensor(group_of_each(FIVE_RUNS))
    scales = torch.tensor([7.0 * 2 ** (group % 3) for group in range(int(owner.max()) + 1)])
    x = integers(owner.numel(), -60, 60).float() / 4
    code = Levels(levels, 4, FIVE_RUNS, CPU)
    given = x.clone()
    words = code.encode(given, scales, None, feedback)
    step = scales[owner] / levels
    wanted = ((x / step + 0.5).floor().clamp(-levels, levels)) * step
    assert torch.equal(code.decode_sum([words], scales, torch.empty_like(x)), wanted)
    assert torch.equal(code.decode_each([(words, scales)], torch.empty_like(x)), wanted)
    assert torch.equal(given, x - wanted if feedback else x)


def test_a_scale_of_zero_or_next_to_it_sends_nothing():
    code = Levels(1, 2, (Run(2, 2),), CPU)
    words = code.encode(torch.tensor([0.0, 0.0, 1e-40, -1e-40]), torch.tensor([0.0, 1e-40]), generator("zero", 0))
    assert not words.any()
    assert not code.decode_sum([words], torch.tensor([0.0, 1e-40]), torch.empty(4)).any()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_scale_that_is_no_number_spoils_its_group(bad):
    code = Levels(1, 2, (Run(4, 3),), CPU)
    scales = torch.tensor([2.0, bad, 2.0])
    x = torch.tensor([2.0, 0.0, -2.0, 2.0] * 3)
    result = code.decode_sum([code.encode(x, scales, generator("bad", 0))], scales, torch.empty(12))
    assert result.isfinite().tolist() == [True] * 4 + [False] * 4 + [True] * 4
    assert torch.equal(result[:4], x[:4])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("int8", {}),
        ("signsgd", {"form": "vote", "feedback": False}),
        ("signsgd", {"form": "vote", "scale": "one", "feedback": False}),
        ("qsgd", {"chunk": 16, "norm": "l2"}),
        ("zero_one_adam", {"kappa": 1, "freeze_step": 1}),
    ],
)
def test_layers_of_zeros_stay_zeros(name: str, options: dict[str, Any]) -> None:
    """Beside others, and with so many ranks that votes are summed; the contract has the rest."""
    layers, ranks = lay_out([(4, 4), (3, 3)]), [compressors.build(name, **options) for _ in range(9)]
    grads = [torch.cat([torch.ones(16) * (rank == 0), torch.zeros(9)]) for rank in range(9)]
    for step in range(3):
        for result in exchange(ranks, grads, layers, step=step):
            assert result.isfinite().all() and result[:16].any() and not result[16:].any()
