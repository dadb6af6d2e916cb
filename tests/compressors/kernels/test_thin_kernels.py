"""Products with thin factors and bases of their rows equal their twins; on the CPU in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from tests.helpers import answer_all, lay_out
from wirebench import compressors
from wirebench.compressors import kernels
from wirebench.compressors.lowrank.factors import FactorPlan, basis_by_cholesky
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.flat import Bucket

pytest.importorskip("triton")
from wirebench.compressors.kernels import thin as thin_module

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SHAPES = [(9,), (18, 20), (3, 40), (18, 20), (4,), (17, 5), (6, 2, 3), (1, 8)]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, CUDA])])
def device(request, monkeypatch) -> torch.device:
    """Where kernels run; a program holds few rows and columns."""
    monkeypatch.setattr(thin_module, "BLOCK", 32 if request.param == "cuda" else 16)
    return torch.device(request.param)


def bucket_of(device: torch.device, seed: int) -> Bucket:
    layers = lay_out(SHAPES)
    grad = torch.randn(layers[-1].stop, generator=torch.Generator().manual_seed(seed)).to(device)
    return Bucket(0, grad, torch.zeros_like(grad), layers)


@pytest.mark.parametrize("rank", [1, 4])
def test_products_equal_the_twins(rank, device, monkeypatch):
    """Both factors, with a vector added first, the product written and taken out, and the squares of M."""
    found = []
    for usable in (False, True):
        monkeypatch.setattr(kernels, "usable", lambda x, usable=usable: usable)
        bucket, more = bucket_of(device, 1), bucket_of(device, 2).grad
        plan = FactorPlan(bucket.layers, rank, 1.0)
        chance = torch.Generator().manual_seed(3)
        right = plan.right.of(torch.randn(plan.right.numel, generator=chance).to(device))
        left = plan.left.of(torch.zeros(plan.left.numel, device=device))
        plan.factors(bucket.grad, right, left, to_left=True, added=more)
        back = plan.right.of(torch.zeros_like(right.packed))
        squares: list[tuple[Tensor, Tensor]] = []
        plan.factors(bucket.grad, left, back, to_left=False, arriving=lambda x: x / 3, energies=squares)
        out = torch.zeros_like(bucket.grad)
        plan.write(out, left, back)
        energies = torch.stack([each for pair in squares for each in pair]).float()
        found.append([bucket.grad, left.packed, back.packed, out, energies])
    for twin, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, twin, rtol=1e-5, atol=float(twin.abs().max()) * 1e-6)


@pytest.mark.parametrize("kind", ["random", "tiny", "huge", "graded", "dependent"])
def test_bases_are_choleskys(kind, device, monkeypatch):
    """Of every factor; rows that are lost come from the other vector."""
    plan = FactorPlan(bucket_of(device, 0).layers, 3, 1.0)
    chance = torch.Generator().manual_seed(1)
    packed, instead = (torch.randn(plan.right.numel, generator=chance).to(device) for _ in range(2))
    packed *= {"tiny": 1e-30, "huge": 1e30}.get(kind, 1.0)
    for group in plan.right.groups(packed):
        if kind == "graded":
            group.mul_(torch.tensor([1.0, 1e-3, 1e-6], device=device)[: group.shape[1], None])
        elif kind == "dependent" and group.shape[1] > 1:
            group[:, 1] = 2 * group[:, 0]
    plan.right.groups(packed)[0][0, 0] = 0.0
    plan.right.groups(packed)[-1][0, 0, 0] = float("inf")
    mended = packed.clone()
    plan.right.mend(mended, instead)
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    basis = plan.right.orthonormal(packed, instead)
    for mine, rows in zip(plan.right.groups(basis.packed), plan.right.groups(mended), strict=True):
        # A row that another one gives has a direction of its rounding, and those after it are at right angles to that.
        alike = slice(0, 1) if kind == "dependent" else slice(None)
        torch.testing.assert_close(mine[:, alike], basis_by_cholesky(rows)[:, alike], rtol=1e-4, atol=1e-5)
        assert bool((torch.linalg.vector_norm(mine, dim=2) < 1.0001).all())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [("powersgd", {"rank": 2}), ("acp_sgd", {}), ("dion", {"rank_fraction": 0.1})]
)
def test_exchanges_give_what_they_give_in_pytorch(name, options, device, monkeypatch):
    """Two ranks, three steps."""

    def steps() -> list[Tensor]:
        methods = [compressors.build(name, **options) for _ in range(2)]
        results = []
        for step in range(3):
            buckets = [bucket_of(device, 2 * step + rank) for rank in range(2)]
            worlds = [ExchangeContext(rank, 2, step) for rank in range(2)]
            results.append(answer_all([m.exchange(b, w) for m, b, w in zip(methods, buckets, worlds, strict=True)])[0])
        return results

    monkeypatch.setattr(kernels, "usable", lambda x: False)
    twins = steps()
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    for twin, mine in zip(twins, steps(), strict=True):
        torch.testing.assert_close(mine, twin, rtol=1e-3, atol=1e-4)
