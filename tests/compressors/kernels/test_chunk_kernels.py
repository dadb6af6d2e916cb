"""Kernels of chunks and of blocks of frequencies equal their twins; on the CPU in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from tests.helpers import DEVICES, both, exchange, lay_out
from wirebench import compressors
from wirebench.compressors import kernels
from wirebench.compressors.demo import _message, _signs
from wirebench.compressors.sparse.chunks import chunks_of
from wirebench.compressors.sparse.frequencies import frequencies_of
from wirebench.gradient.flat import Bucket

pytest.importorskip("triton", reason="needs Triton: pip install triton")

pytestmark = pytest.mark.sampled(8)

devices = pytest.mark.parametrize("device", DEVICES)
SHAPES = [(1,), (5,), (67,), (12, 10), (3, 70), (128, 4), (7, 9, 2)]


def bucket_of(shapes: list[tuple[int, ...]], device: str, seed: int = 0) -> Bucket:
    layers = lay_out(shapes)
    grad = torch.randn(layers[-1].stop, generator=torch.Generator().manual_seed(seed)).to(device)
    return Bucket(0, grad, torch.zeros_like(grad), layers)


def ascending(within: Tensor, firsts: Tensor) -> Tensor:
    """Places within their chunks, in order within each."""
    return torch.cat([part.sort().values for part in within.cpu().split(firsts.cpu().diff().tolist())])


@devices
@pytest.mark.parametrize(("size", "k"), [(60, 7), (16, 16), (4, 1)])
def test_the_largest_of_each_chunk_are_the_twins(size, k, device, monkeypatch):
    bucket = bucket_of(SHAPES, device)
    bucket.grad[20] = float("nan")
    bucket.grad[100] = -float("inf")
    chunks = chunks_of(bucket, size, k)
    twin, mine = both(monkeypatch, lambda: chunks.choose(bucket.grad))
    assert mine.cpu().equal(ascending(twin, chunks.firsts))


@devices
def test_equal_magnitudes_are_taken_from_the_front(device, monkeypatch):
    bucket = bucket_of([(70,)], device)
    bucket.grad.fill_(-1.0)
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    assert chunks_of(bucket, 32, 3).choose(bucket.grad).tolist() == [0, 1, 2, 0, 1, 2, 0]


@devices
@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("chunk", "k"), [(64, 5), (7, 3)])
def test_frequencies_that_are_sent_and_what_stays_are_the_twins(chunk, k, dtype, device, monkeypatch):
    """Sent by two ranks, of which the last has a NaN in its second step; and the signs of their means."""
    shapes = [(1,), (5,), (3, 70), (64, 4), (7, 9, 2)]

    def call() -> list[Tensor]:
        momenta = [torch.zeros(bucket_of(shapes, device).grad.numel(), device=device) for _ in range(2)]
        kept = []
        for step in range(2):
            messages = []
            for rank, momentum in enumerate(momenta):
                bucket = bucket_of(shapes, device, seed=2 * step + rank)
                if step == rank == 1:
                    bucket.grad[-3] = float("nan")
                blocks = frequencies_of(bucket, chunk, k)
                message, spectrum = _message(momentum, bucket.grad, 0.9, blocks, dtype)
                messages.append(message)
                kept.append(momentum.clone())
            kept.append(_signs(messages, bucket.grad, blocks, dtype, spectrum))
        return kept

    near = 1e-2 if dtype == torch.bfloat16 else 3e-6
    for one, other in zip(*both(monkeypatch, call), strict=True):
        different = ~torch.isclose(one, other, rtol=1e-6, atol=near, equal_nan=True)
        assert different.sum() <= 3, "a frequency near 0 may have another sign"


@devices
@pytest.mark.slow
@pytest.mark.parametrize("name", ["demo", "chunk_topk"])
def test_exchanges_give_what_they_give_in_pytorch(name, device, monkeypatch):
    """Three ranks, two steps; chunks are in another order, so sums are rounded otherwise."""

    def steps() -> Tensor:
        methods = [compressors.build(name, chunk=64, k=9) for _ in range(3)]
        for step in range(2):
            buckets = [bucket_of(SHAPES, device, seed=3 * step + rank) for rank in range(3)]
            result = exchange(methods, [each.grad for each in buckets], buckets[0].layers, step=step)[0]
        return result

    twin, mine = both(monkeypatch, steps)
    different = (mine - twin).abs() > 1e-5
    assert different.sum() <= (5 if name == "demo" else 0), "a frequency near 0 may have another sign"
