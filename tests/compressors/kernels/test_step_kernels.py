"""Element-wise steps of optimizers equal their twins; on the CPU in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from tests.helpers import DEVICES, both, exchange, lay_out
from wirebench import compressors
from wirebench.compressors.bits import blocks
from wirebench.compressors.common.lion import blend

pytest.importorskip("triton", reason="needs Triton: pip install triton")
from wirebench.compressors.kernels import fields as fields_module
from wirebench.compressors.kernels import steps as steps_module

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of what is not finite


@pytest.fixture(params=DEVICES)
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


@pytest.mark.parametrize(
    ("shapes", "options", "bad"),
    [
        pytest.param([(1,)], {}, None, marks=pytest.mark.slow),
        pytest.param([(5,), (1,), (9, 5), (3,)], {"longest": 2, "double_every": 1}, None, marks=pytest.mark.slow),
        pytest.param([(5,), (1,), (9, 5), (3,)], {}, float("nan"), marks=pytest.mark.slow),
        pytest.param([(20, 8), (7,)], {}, None, marks=pytest.mark.weekly),
        pytest.param([(3,)] * 30, {}, None, marks=pytest.mark.slow),
    ],
)
def test_zero_one_adams_steps(shapes, options, bad, device, monkeypatch):
    """Three ranks: dense steps, steps of one bit, and steps that sum nothing; updates and memories."""
    monkeypatch.setattr(fields_module, "TILE", 64)
    monkeypatch.setattr(fields_module, "LEAST_WORDS", 2)
    for name in ("CPU_BLOCK", "GPU_BLOCK"):
        monkeypatch.setattr(blocks, name, 64)

    def all_of() -> list[Tensor]:
        methods = [compressors.build("zero_one_adam", kappa=1, freeze_step=1, **options) for _ in range(3)]
        layers, found = lay_out(shapes), []
        for step in range(4 if options else 3):
            grads = [
                torch.randn(layers[-1].stop, generator=torch.Generator().manual_seed(3 * step + r)) for r in (0, 1, 2)
            ]
            if bad is not None and step == 2:
                grads[1][-1] = bad
            answers = exchange(methods, [grad.to(device) for grad in grads], layers, step=step)
            assert all(each.nan_to_num().equal(answers[0].nan_to_num()) for each in answers)
            found.append(answers[0].clone())
        return found + [state for method in methods for _, state in sorted(method.state_dict().items())]

    found, twin = both(monkeypatch, all_of)[::-1]
    for one, other in zip(found, twin, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)
