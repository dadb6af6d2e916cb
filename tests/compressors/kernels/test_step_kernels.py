"""Element-wise steps of optimizers equal their twins; on the CPU in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.common.lion import blend

pytest.importorskip("triton")
from wirebench.compressors.kernels import steps as steps_module

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of what is not finite
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, CUDA])])
def device(request, monkeypatch) -> torch.device:
    """Where kernels run; a program has few elements."""
    monkeypatch.setattr(steps_module, "TILE", 64)
    return torch.device(request.param)


def hard(numel: int, seed: int, device: torch.device) -> Tensor:
    """Numbers of many sizes; where there is room, also what is not finite, a denormal, and zeros."""
    x = torch.randn(numel, generator=torch.Generator().manual_seed(seed))
    for place, value in enumerate((float("nan"), float("inf"), -float("inf"), 1e-42, 0.0, -0.0, 3e38)):
        x[7 + (seed + 2) * place : 8 + (seed + 2) * place] = value
    return x.to(device)


def both(monkeypatch, call) -> tuple[list[Tensor], list[Tensor]]:
    """What the twin gives, and the kernel."""
    monkeypatch.setattr(kernels, "usable", lambda x: False)
    twin = call()
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    return twin, call()


def assert_alike(found: list[Tensor], twin: list[Tensor]) -> None:
    for one, other in zip(found, twin, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("numel", [1, 5, 64, 150])
@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.0, 0.3)])
def test_lions_averages(numel, betas, device, monkeypatch):
    """The direction and the momentum."""
    grad, momentum = (hard(numel, seed, device) for seed in (1, 2))

    def all_of() -> list[Tensor]:
        kept = momentum.clone()
        return [blend(grad, kept, *betas), kept]

    assert_alike(*both(monkeypatch, all_of)[::-1])
