"""chunk_topk against a plain-loop reading of the paper, and its packing bit by bit."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.helpers import exchange, lay_out, normal
from wirebench.compressors.bits import packing
from wirebench.compressors.chunk_topk import ChunkTopK
from wirebench.compressors.sparse.chunks import chunks_of
from wirebench.gradient.error_memory import RESIDUAL
from wirebench.gradient.flat import Bucket

SIZES = (5000, 7, 4096, 300)
LAYERS = lay_out([(numel,) for numel in SIZES])


def test_what_a_gpu_does_is_what_a_cpu_does():
    """In other kernels, which run here as well."""
    chance = torch.Generator().manual_seed(3)
    layers = lay_out([(300_000,), (7,), (4096,), (300,), (9000,)])
    values = torch.randn(layers[-1].stop, generator=chance)
    for size, k in ((4096, 64), (1024, 3), (64, 64)):
        chunks = chunks_of(Bucket(0, values, values, layers), size, k)
        numbers, bins = torch.randn(chunks.total, generator=chance), torch.randint(4, (chunks.total,), generator=chance)
        exact = chunks.sums(numbers.double(), bins, 4)
        assert torch.allclose(chunks._reduced(numbers, bins, 4).double(), exact, atol=1e-4)


def by_hand(values: Tensor, chunk: int, k: int) -> tuple[Tensor, dict[int, tuple[int, int]]]:
    """What a rank sends of `values`, dense, and by place its layer and code: loops, and Python's own sums."""
    sent, named = torch.zeros_like(values), {}
    start = 0
    for layer, numel in enumerate(SIZES):
        part = values[start : start + numel].tolist()
        chosen = []
        for begin in range(0, numel, chunk):
            here = range(begin, min(begin + chunk, numel))
            count = -(-len(here) * k // chunk)
            chosen += sorted(sorted(here, key=lambda place: -abs(part[place]))[:count])
        mean = math.fsum(part[place] for place in chosen) / len(chosen)
        deviation = math.sqrt(math.fsum((part[place] - mean) ** 2 for place in chosen) / len(chosen))
        width = 6 * deviation / 4
        bins: dict[int, list[int]] = {}
        for place in chosen:
            code = min(max(round((part[place] - mean) / width + 2), 0), 3) if width else 2
            bins.setdefault(code, []).append(place)
            named[start + place] = layer, code
        for members in bins.values():
            value = math.fsum(part[place] for place in members) / len(members)
            for place in members:
                sent[start + place] = value
        start += numel
    return sent, named


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("chunk", "k"), [(4096, 64), (512, 8), (100, 33), (1, 1)])
@pytest.mark.parametrize("beta", [1.0, 0.9])
def test_three_exchanges_are_the_papers(chunk: int, k: int, beta: float) -> None:
    methods = [ChunkTopK(chunk, k, beta) for _ in range(3)]
    memories = [torch.zeros(sum(SIZES)) for _ in methods]
    for step in range(3):
        given_ = normal(3, step, sum(SIZES))
        averages = exchange(methods, given_, LAYERS, step=step)
        total = torch.zeros(sum(SIZES))
        for memory, gradient in zip(memories, given_, strict=True):
            memory.mul_(beta).add_(gradient)
            sent, _ = by_hand(memory, chunk, k)
            memory.sub_(sent)
            total += sent
        for average in averages:
            assert torch.equal(average, averages[0])
            assert torch.allclose(average, total / 3, atol=1e-5)
        for method, memory in zip(methods, memories, strict=True):
            assert torch.allclose(method.memory.state_dict()[RESIDUAL], memory, atol=1e-5)


@pytest.mark.parametrize("bits", [2, 12])
@given(st.lists(st.integers(0, 4095), max_size=50))
def test_packed_numbers_come_back(bits: int, numbers: list[int]) -> None:
    pack, unpack, size = (getattr(packing, f"{name}{bits}") for name in ("pack", "unpack", "bytes"))
    given_ = torch.tensor(numbers, dtype=torch.int64) % 2**bits
    packed = pack(given_)
    assert packed.dtype == torch.uint8 and packed.numel() == size(len(numbers))
    assert torch.equal(unpack(packed, len(numbers)), given_)
