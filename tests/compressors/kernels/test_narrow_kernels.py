"""Kernels of narrow numbers: each equals its twin in PyTorch; on the CPU in Triton's interpreter."""

import pytest
import torch

from tests.helpers import DEVICES, both
from wirebench.compressors.bits.narrow import FORMATS, PLAIN, added, chunk_of, message_bytes, quantised, restored
from wirebench.compressors.kernels import native

pytest.importorskip("triton", reason="needs Triton: pip install triton")
from wirebench.compressors.kernels import narrow as narrow_module

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of what is not finite


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch) -> torch.device:
    """Where kernels run; a program has few chunks."""
    monkeypatch.setattr(narrow_module, "TILE", 64)
    monkeypatch.setattr(native, "usable", lambda x: False)
    return torch.device(request.param)


def loud(numel: int, chunk: int, device: torch.device) -> torch.Tensor:
    """Numbers with chunks of zeros, of tiny and of huge ones, and of what is not finite."""
    x = torch.randn(numel, generator=torch.Generator().manual_seed(numel))
    for begin, factor in ((0, 1.0), (chunk, 0.0), (2 * chunk, 1e-37), (3 * chunk, 1e30), (4 * chunk, float("inf"))):
        x[begin : begin + chunk] *= factor
    return x.to(device)


@pytest.mark.sampled(14)
@pytest.mark.paired
@pytest.mark.parametrize("form", [*FORMATS, *PLAIN])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize(("chunk", "numel", "whole"), [(4, 1, 8), (16, 160, 160), (20, 91, 120), (64, 64, 128)])
def test_messages_and_errors_equal_their_twins(form, rounding, chunk, numel, whole, device, monkeypatch):
    """To the bit, there and back, in one part and in two."""
    chunk = chunk_of(form, chunk)
    whole = -(-whole // (2 * chunk)) * 2 * chunk
    x = loud(numel, chunk, device)

    def call() -> list[tuple[torch.Tensor, ...]]:
        found: list[tuple[torch.Tensor, ...]] = []
        for parts in (1, 2):
            rng = torch.Generator(device).manual_seed(7) if rounding == "stochastic" else None
            left = x.clone()
            message = quantised(left, chunk, form, whole, parts, generator=rng)
            assert message.numel() == parts * message_bytes(whole // parts, chunk, form)
            rest = torch.ones(max(numel - 3, 1), device=device)
            quantised(x.clone(), chunk, form, whole, parts, rest=rest)
            other = quantised(torch.ones_like(x), chunk, form, whole // parts * parts, parts)
            messages = [*message.chunk(parts), *other.chunk(parts)]
            total = added(messages, chunk, form)
            back = restored(messages, chunk, form, torch.empty(2 * whole - 3, device=device), 3)
            # What a NaN's bits are is not said.
            sound = restored(message.chunk(parts), chunk, form, torch.empty(whole, device=device)).isfinite().all()
            found.append((message if sound else message[:0], left, total, back, rest))
        return found

    for twin, mine in zip(*both(monkeypatch, call), strict=True):
        assert twin[0].equal(mine[0])
        assert twin[1].equal(mine[1])
        torch.testing.assert_close(mine[2:], twin[2:], rtol=1e-6, atol=0, equal_nan=True)
