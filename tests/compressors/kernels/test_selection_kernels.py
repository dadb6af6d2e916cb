"""Top-k in kernels equals its twin in PyTorch; on the CPU in Triton's interpreter."""

from contextlib import nullcontext

import pytest
import torch

from tests.helpers import DEVICES
from wirebench.compressors import kernels
from wirebench.compressors.sparse.selection import top_k

pytest.importorskip("triton", reason="needs Triton: pip install triton")
from tests.compressors.kernels.at_once import at_once
from wirebench.compressors.kernels import together

INPUTS = {
    "random": lambda x: x,
    "many alike": lambda x: (x * 2).round(),
    "all alike": lambda x: torch.ones_like(x),
    "few": lambda x: torch.where(x > 1.5, x, 0.0),
    "zeros": torch.zeros_like,
    "not finite": lambda x: torch.where(x > 1.5, float("inf"), torch.where(x < -1.5, float("nan"), x)),
    "tiny": lambda x: x * 1e-41,
    "of one exponent": lambda x: 1 + x.abs() / 1e6,
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize(("numel", "k"), [(1, 1), (64, 5), (213, 212), (300, 17)])
def test_places_are_the_twins(make, numel, k, device, monkeypatch):
    """In order, and equal magnitudes from the front; also where zeros are chosen, so that there are always k."""
    monkeypatch.setattr(together, "TILE", 32)
    x = make(torch.randn(numel, generator=torch.Generator().manual_seed(numel)))
    monkeypatch.setattr(kernels, "usable", lambda x: False)
    wanted = top_k(x, k)
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    with at_once(monkeypatch, 4) if device == "cpu" else nullcontext():
        assert top_k(x.to(device), k).cpu().equal(wanted)
        places, found = together.largest(x.to(device), k, or_zeros=True)
    zeros = torch.nonzero(x == 0).squeeze(1)[: k - wanted.numel()]
    assert places.cpu().equal(torch.cat([wanted, zeros]).sort().values)
    assert found[0] == k
    assert found[1] == x.abs()[places.cpu()].view(torch.int32).clamp(max=0x7F800001).min()
