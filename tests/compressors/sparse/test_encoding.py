"""Sparse messages: their codes, and the methods that send the values of chosen places."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.compressors.twins import top_k_reference
from tests.helpers import exchange
from wirebench import compressors
from wirebench.compressors.randomk import draw
from wirebench.compressors.sparse.encoding import DTYPES, SparseCode, pack_bits, unpack_bits
from wirebench.gradient.context import ExchangeContext

CODES = list(itertools.product(("fp32", "fp16", "bf16"), ("int32", "bitmap", "delta")))


def places(numel: int, count: int, seed: int = 0) -> torch.Tensor:
    return torch.randperm(numel, generator=torch.Generator().manual_seed(seed))[:count].sort().values


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("values", "indices"), CODES)
@pytest.mark.parametrize(("numel", "count"), [(1, 0), (1, 1), (7, 3), (8, 8), (1001, 0), (1001, 10), (1001, 1001)])
def test_what_goes_in_comes_out(values, indices, numel, count):
    code, index = SparseCode(values, indices), places(numel, count)
    numbers = torch.randn(count, generator=torch.Generator().manual_seed(1))
    message = code.encode(index, numbers, numel)
    assert message.dtype == torch.uint8
    found, received = code.decode(message, numel)
    assert found.dtype == torch.int64 and torch.equal(found, index)
    assert received.dtype == torch.float32 and torch.equal(received, numbers.to(DTYPES[values]).float())
    assert torch.equal(code.rounded(numbers), received)


@pytest.mark.parametrize(("values", "indices"), CODES)
def test_a_message_may_lie_at_any_byte(values, indices):
    code, index = SparseCode(values, indices), places(1001, 7)
    numbers = torch.arange(7.0)
    message = code.encode(index, numbers, 1001)
    for shift in range(5):
        among_others = torch.cat([torch.zeros(shift, dtype=torch.uint8), message])[shift:]
        found, received = code.decode(among_others, 1001)
        assert torch.equal(found, index) and torch.equal(received, numbers)


@given(st.lists(st.integers(0, 2**31 - 2), unique=True, max_size=50).map(sorted))
def test_gaps_of_any_size(index):
    code, wanted = SparseCode("fp32", "delta"), torch.tensor(index, dtype=torch.int64)
    assert torch.equal(code.decode_indices(code.encode_indices(wanted, 2**31 - 1), 2**31 - 1), wanted)


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("values", "indices"), CODES)
@pytest.mark.parametrize("density", [0.0005, 0.01, 0.3])
def test_bytes_are_what_is_expected(values, indices, density):
    numel = 100_000
    code, count = SparseCode(values, indices), int(numel * density)
    actual = code.encode(places(numel, count), torch.ones(count), numel).numel()
    expected = code.expected_bytes(count, numel)
    assert actual == expected if indices != "delta" else abs(actual - expected) <= 0.03 * actual + 4


def test_what_fp16_cannot_hold():
    arrived = SparseCode("fp16").rounded(torch.tensor([1e6, -1e6, float("inf"), float("nan"), 1e-9]))
    assert arrived[:3].tolist() == [65504.0, -65504.0, float("inf")]
    assert arrived[3].isnan() and arrived[4] == 0


def test_bits_as_in_the_paper():
    # Cheng and Xu, arXiv 1901.01544, as worked out in oracles.json
    flags = torch.tensor([1, 0, 0, 0, 0, 0, 1, 1, 0, 1], dtype=torch.bool)
    assert pack_bits(flags).tolist() == [193, 2]
    assert torch.equal(unpack_bits(pack_bits(flags), 10), flags)


CASES: list[tuple[str, dict[str, Any]]] = [
    *(("topk", {"density": density}) for density in (0.01, 0.3, 1.0)),
    *(("threshold", {"threshold": threshold}) for threshold in (0.0, 0.5, 2.5, 9.0)),
    *(("clt_k", {"density": 0.1, "indices": indices}) for indices in ("int32", "bitmap", "delta")),
    ("randomk", {"density": 0.1}),
]


def places_of(name: str, options: dict[str, Any], residuals: list[Tensor], step: int) -> list[Tensor]:
    """The places that each rank sends."""
    size, numel = len(residuals), residuals[0].numel()
    if name == "threshold":
        return [torch.nonzero(residual.abs() > options["threshold"]).squeeze(1) for residual in residuals]
    k = int(numel * options["density"])
    if name == "topk":
        return [top_k_reference(residual, k) for residual in residuals]
    if name == "clt_k":
        return [top_k_reference(residuals[step % size], k)] * size
    return [draw(numel, k, ExchangeContext(0, size, step).shared_rng("randomk", 0))] * size


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_equals_dense_vectors_bit_for_bit(name: str, options: dict[str, Any], size: int) -> None:
    numel, rng = 5000 if name == "threshold" else 300, torch.Generator().manual_seed(size)
    ranks = [compressors.build(name, **options) for _ in range(size)]
    residuals = [torch.zeros(numel) for _ in range(size)]
    for step in range(size + 3):
        grads = [torch.randn(numel, generator=rng) for _ in range(size)]
        for residual, grad in zip(residuals, grads, strict=True):
            residual += grad
        total = torch.zeros(numel)
        for residual, places in zip(residuals, places_of(name, options, residuals, step), strict=True):
            total[places] += residual[places]
            residual[places] = 0
        for result in exchange(ranks, grads, step=step):
            assert torch.equal(result, total / size)
        for rank, residual in zip(ranks, residuals, strict=True):
            assert torch.equal(rank.state_dict()["residual"], residual)
