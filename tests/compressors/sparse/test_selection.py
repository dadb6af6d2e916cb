import math
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.compressors.twins import hard_vectors, ranking
from tests.helpers import CUDA
from wirebench.compressors.sparse import selection
from wirebench.compressors.sparse.selection import top_k

NAN, INF = math.nan, math.inf
LARGE = 20_032
HUGE = 300_000


def check(x: Tensor, *counts: int) -> None:
    before, ranked = x.clone(), ranking(x)
    for k in counts:
        chosen = top_k(x, k)
        assert chosen.dtype == torch.int64
        assert chosen.tolist() == sorted(ranked[:k])
    assert torch.equal(x.view(torch.int32), before.view(torch.int32)), "the input was changed"


# Few different values make ties; subnormals, infinities and NaNs of both signs are among them.
values = st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 1e-45, -1e-45, 1e-38, 3e38, -3e38, INF, -INF, NAN, -NAN]
)
floats = st.one_of(values, st.floats(width=32))


@given(st.lists(floats, max_size=60), st.integers(1, 70))
def test_equals_the_reference_directly(numbers, k):
    check(torch.tensor(numbers, dtype=torch.float32), k)


@given(st.lists(floats, max_size=120), st.integers(1, 30), st.sampled_from([2, 3, 5]))
def test_equals_the_reference_by_rows_and_brackets(numbers, k, stride):
    with patch.multiple(selection, DIRECT_NUMEL=0, ROW_WIDTHS=(4, 2), SAMPLE_STRIDE=stride):
        check(torch.tensor(numbers, dtype=torch.float32), k)


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", hard_vectors(64))
@pytest.mark.parametrize("numel", [LARGE, LARGE + 1, LARGE + 63])
def test_equals_the_reference_on_hard_vectors(name, numel):
    x = hard_vectors(numel, selection.SAMPLE_STRIDE)[name]
    check(x, 1, 7, 40, 130, 260, 10_000, numel - 1, numel, numel + 1)


def sorted_choice(x: Tensor, k: int) -> Tensor:
    """A faster twin for many elements: a stable sort."""
    magnitude = torch.where(x.isnan(), INF, x.abs().double())
    order = magnitude.sort(descending=True, stable=True).indices[:k]
    return order[magnitude[order] > 0].sort().values


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name, x in hard_vectors(64).items() if x.isfinite().all()])
def test_equals_a_stable_sort_where_a_sample_brackets_the_choice(name):
    assert 16 * selection.DIRECT_NUMEL <= HUGE
    x = hard_vectors(HUGE, selection.SAMPLE_STRIDE)[name]
    for k in (600, HUGE // 40, HUGE // 4):
        assert torch.equal(top_k(x, k), sorted_choice(x, k))


NANS = torch.tensor([0x7F800001, 0x7FFFFFFF, -1, 0x7FC00000], dtype=torch.int32).view(torch.float32)


@pytest.mark.parametrize(
    ("numbers", "k", "chosen"),
    [
        (torch.tensor([INF, 1.0, NAN, -INF]), 1, [2]),  # NaN before infinity
        (NANS, 2, [0, 1]),  # whatever else they hold
        (torch.tensor([1.0, -2.0, 2.0, -2.0, 1.0]), 2, [1, 2]),  # of equal ones the first
        (torch.tensor([0.0, 3.0, -0.0, 1.0]), 3, [1, 3]),  # never a zero
    ],
)
def test_by_hand(numbers: Tensor, k: int, chosen: list[int]) -> None:
    assert top_k(numbers, k).tolist() == chosen


@pytest.mark.parametrize("wrong", [torch.zeros(2, 2), torch.zeros(4).double(), torch.zeros(8)[::2]])
def test_takes_contiguous_fp32_vectors_only(wrong):
    with pytest.raises(AssertionError, match="contiguous fp32 vector"):
        top_k(wrong, 1)


@pytest.mark.gpu
@CUDA
def test_cuda_chooses_what_the_cpu_chooses():
    for name, x in hard_vectors(HUGE, selection.SAMPLE_STRIDE).items():
        for k in (1, 600, HUGE // 40, HUGE // 4, HUGE):
            assert torch.equal(top_k(x.cuda(), k).cpu(), top_k(x, k)), name
