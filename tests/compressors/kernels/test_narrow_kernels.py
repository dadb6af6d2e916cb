"""Kernels of narrow numbers: each equals its twin in PyTorch; on the CPU in Triton's interpreter."""

import pytest
import torch

from wirebench.compressors import kernels
from wirebench.compressors.bits.narrow import added, message_bytes, quantised, restored

pytest.importorskip("triton")
from wirebench.compressors.kernels import narrow as narrow_module

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of what is not finite
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, CUDA])])
def device(request, monkeypatch) -> torch.device:
    """Where kernels run; a program has few chunks."""
    monkeypatch.setattr(narrow_module, "TILE", 64)
    return torch.device(request.param)


@pytest.mark.parametrize("form", ["int4", "int8", "fp8"])
@pytest.mark.parametrize(("chunk", "numel", "whole"), [(4, 1, 8), (16, 160, 160), (20, 91, 120), (64, 64, 128)])
def test_messages_and_errors_equal_their_twins(form, chunk, numel, whole, device, monkeypatch):
    """To the bit, there and back; also of zeros, of tiny and of huge chunks, and of what is not finite."""
    x = torch.randn(numel, generator=torch.Generator().manual_seed(numel)).to(device)
    for begin, factor in ((0, 1.0), (chunk, 0.0), (2 * chunk, 1e-37), (3 * chunk, 1e30), (4 * chunk, float("inf"))):
        x[begin : begin + chunk] *= factor
    found = []
    for usable in (False, True):
        monkeypatch.setattr(kernels, "usable", lambda x, usable=usable: usable)
        left = x.clone()
        message = quantised(left, chunk, form, whole)
        other = quantised(torch.ones_like(x), chunk, form, whole)
        assert message.numel() == message_bytes(whole, chunk, form)
        total = added([message, other, message], chunk, form)
        back = restored([message, other], chunk, form, torch.empty(2 * whole - 3, device=device), 3)
        # Twins write a NaN's bytes as they come.
        sound = message.view(-1, message_bytes(chunk, chunk, form)).clone()
        sound[sound[:, :4].contiguous().view(torch.float32).isfinite().logical_not().flatten()] = 0
        found.append((sound, left, total, back))
    assert found[0][0].equal(found[1][0])
    assert found[0][1].equal(found[1][1])
    for twin, mine in zip(found[0][2:], found[1][2:], strict=True):
        torch.testing.assert_close(mine, twin, rtol=1e-6, atol=0, equal_nan=True)
