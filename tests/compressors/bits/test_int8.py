import pytest
import torch

from tests.helpers import exchange, lay_out
from wirebench.compressors.int8 import Int8
from wirebench.errors import UserError


def ranks(size: int, **options) -> list[Int8]:
    return [Int8(**options) for _ in range(size)]


def levels_of(size: int, sum_bits: int) -> int:
    return min(127, (2 ** (sum_bits - 1) - 1) // size)


def test_rounding_by_hand():
    """Two ranks have 63 levels; the second's peak of 63 makes them whole numbers."""
    both = ranks(2, rounding="nearest")
    first = exchange(both, [torch.tensor([1.4, -20.0, 2.5]), torch.tensor([63.0, 0.3, -2.5])])
    assert [r.tolist() for r in first] == [[32.0, -10.0, 0.5]] * 2  # halves go up: 3 and -2
    torch.testing.assert_close(both[0].state_dict()["residual"], torch.tensor([0.4, 0.0, -0.5]))
    torch.testing.assert_close(both[1].state_dict()["residual"], torch.tensor([0.0, 0.3, -0.5]))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("sum_bits", [8, 16, 32])
@pytest.mark.parametrize("size", [1, 2, 5, 16])
@pytest.mark.parametrize("chunk", [0, 10])
def test_equals_the_plain_twin(size, sum_bits, chunk):
    """Peaks are the levels, so that steps are 1 and nothing but the rounding rounds."""
    levels, layers = levels_of(size, sum_bits), lay_out([(4, 5), (10,), (2, 5)])
    mine = ranks(size, sum_bits=sum_bits, rounding="nearest", chunk=chunk, feedback=False)
    rng = torch.Generator().manual_seed(size)
    grads = [torch.randint(-4 * levels, 4 * levels + 1, (40,), generator=rng).float() / 4 for _ in range(size)]
    grads[-1][::10] = levels
    wanted = torch.stack([(grad + 0.5).floor() for grad in grads]).sum(0) / size
    for result in exchange(mine, grads, layers):
        torch.testing.assert_close(result, wanted, rtol=1e-6, atol=1e-6)


def test_unbiased_without_feedback():
    """Mean within 4.5 standard errors, of several places between two levels."""
    each, places = 40_000, torch.tensor([0.0, 0.05, 0.5, 0.9, 14.3])
    grad = torch.cat([places, -places]).repeat_interleave(each)
    grad[0] = 31.0
    (result, *_) = exchange(ranks(4, feedback=False), [grad] * 4)
    assert set((result[1:] * 4 % 1).tolist()) == {0.0}
    for values, place in zip(result.view(10, each), torch.cat([places, -places]).tolist(), strict=True):
        variance = abs(place) % 1 * (1 - abs(place) % 1) / 4
        assert abs(values[1:].double().mean() - place) <= 4.5 * (variance / each) ** 0.5 + 2e-5


@pytest.mark.parametrize(("sum_bits", "size"), [(8, 1), (8, 9), (8, 127), (16, 200), (32, 5)])
def test_extremes_of_all_ranks_fit_the_sum(sum_bits, size):
    grad = torch.tensor([5.0, -5.0, 0.0] * 20)
    for result in exchange(ranks(size, sum_bits=sum_bits), [grad] * size):
        torch.testing.assert_close(result, grad)


def test_more_ranks_than_a_sum_can_hold_are_the_users_mistake():
    with pytest.raises(UserError, match=r"compressor\.sum_bits: 8 bits hold the sum of 127 ranks, not of 128"):
        exchange(ranks(128), [torch.ones(2)] * 128)
