"""Products with thin factors and bases of their rows equal their twins; on the CPU in Triton's interpreter."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from tests.helpers import DEVICES, both, exchange, lay_out
from wirebench import compressors
from wirebench.compressors import kernels
from wirebench.compressors.common.lion import Lion, blend, signs
from wirebench.compressors.lowrank.factors import FactorPlan, Pack, basis_by_cholesky, normalise, orthonormalise
from wirebench.gradient.flat import Bucket

pytest.importorskip("triton", reason="needs Triton: pip install triton")
from tests.compressors.kernels.at_once import at_once
from wirebench.compressors.kernels import bases as bases_module
from wirebench.compressors.kernels import thin as thin_module

pytestmark = pytest.mark.sampled(12)

SHAPES = [(9,), (18, 20), (3, 40), (18, 20), (4,), (17, 5), (6, 2, 3), (1, 8)]


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch) -> Iterator[torch.device]:
    """Where kernels run, on the CPU as three programs at once; a program holds few rows and columns."""
    few = 32 if request.param == "cuda" else 16
    for module, name, value in (
        (thin_module, "BLOCK", few), (thin_module, "RANKS", 16), (bases_module, "ROWS", 16),
        (bases_module, "SPAN", 16), (bases_module, "FEW", 2),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    with at_once(monkeypatch, 3) if request.param == "cpu" else nullcontext():
        yield torch.device(request.param)


def bucket_of(device: torch.device, seed: int, narrow: bool = False, shapes=SHAPES) -> Bucket:
    layers = lay_out(shapes)
    grad = torch.randn(layers[-1].stop, generator=torch.Generator().manual_seed(seed)).to(device)
    return Bucket(0, grad, torch.zeros_like(grad), layers, wire_dtype=torch.bfloat16 if narrow else None)


@pytest.mark.parametrize(
    ("rank", "narrow", "measured"), [(1, False, False), (4, True, False), (4, False, True), (19, False, False)]
)
def test_products_equal_the_twins(rank, narrow, measured, device, monkeypatch):
    """Both factors, with a vector added first, the product written and taken out, and the squares of M."""

    def call() -> list[Tensor]:
        bucket, more = bucket_of(device, 1, narrow), bucket_of(device, 2).grad
        plan = FactorPlan(bucket.layers, rank, 0.0)
        chance = torch.Generator().manual_seed(3)
        right = plan.right.of(torch.randn(plan.right.numel, generator=chance).to(device))
        left = plan.left.of(torch.zeros(plan.left.numel, device=device))
        plan.factors(bucket.grad, right, left, to_left=True, added=more)
        back = plan.right.of(torch.zeros_like(right.packed))
        squares: list[tuple[Tensor, Tensor]] | None = [] if measured else None
        plan.factors(
            bucket.grad, left, back, to_left=False, leaving=bucket, share=1.0 if measured else 0.3, energies=squares
        )
        other = plan.left.of(torch.zeros_like(left.packed))
        plan.factors(bucket.grad, back, other, to_left=True, leaving=bucket)
        out = torch.zeros_like(bucket.grad)
        plan.write(out, left, back, shaped=True)
        energies = [torch.stack([each for pair in squares for each in pair]).float()] if squares else []
        return [bucket.grad, left.packed, back.packed, other.packed, out, *energies]

    for twin, mine in zip(*both(monkeypatch, call), strict=True):
        torch.testing.assert_close(mine, twin, rtol=1e-5, atol=float(twin.abs().max()) * 1e-5)


def rows_of(kind: str, pack: Pack, device: torch.device) -> tuple[Tensor, Tensor]:
    """Factors, and others to take lost rows from."""
    chance = torch.Generator().manual_seed(1)
    packed, instead = (torch.randn(pack.numel, generator=chance).to(device) for _ in range(2))
    packed *= {"tiny": 1e-30, "huge": 1e30}.get(kind, 1.0)
    for group in pack.groups(packed):
        if kind == "graded":
            sizes = torch.tensor([1.0, 1e-3, 1e-6], device=device).repeat(9)
            group.mul_(sizes[: group.shape[1], None])
        elif kind == "dependent" and group.shape[1] > 1:
            group[:, 1] = 2 * group[:, 0]
    return packed, instead


@pytest.mark.parametrize(
    ("rank", "kind"), [*((3, kind) for kind in ("random", "tiny", "huge", "graded", "dependent")), (18, "dependent")]
)
def test_bases_are_choleskys(rank, kind, device, monkeypatch):
    """Of every factor; rows that are lost come from the other vector."""
    plan = FactorPlan(bucket_of(device, 0).layers, rank, 0.0)
    packed, instead = rows_of(kind, plan.right, device)
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


@pytest.mark.parametrize("orthonormal", [False, True])
@pytest.mark.parametrize(
    ("rank", "kind"), [(2, "random"), (2, "tiny"), (3, "graded"), (3, "dependent"), (18, "random")]
)
def test_rows_of_length_one(rank, kind, orthonormal, device, monkeypatch):
    """As they are, or orthonormal; a lost row is 0, and starts anew from the other vector."""
    pack = FactorPlan(bucket_of(device, 0).layers, rank, 0.0).right
    packed, instead = rows_of(kind, pack, device)
    packed *= 1e15 if orthonormal and kind == "tiny" else 1.0  # the twin's squares are fp32
    pack.groups(packed)[-1][0, 0] = 0.0
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    found, start = pack.to_unit(packed.clone(), 2, orthonormal, instead)
    twin = packed / 2
    for group in pack.groups(twin):
        (orthonormalise if orthonormal else normalise)(group)
    for mine, rows in zip(pack.groups(found), pack.groups(twin), strict=True):
        # What follows a lost row is at right angles to the direction that QR gives it.
        many = 2 if orthonormal and kind in ("graded", "dependent") else None
        torch.testing.assert_close(mine[:, :many], rows[:, :many], rtol=1e-4, atol=1e-5)
    mended = found.clone()
    pack.mend(mended, instead)
    assert start.equal(mended)
    assert pack.groups(start)[-1][0, 0].equal(pack.groups(instead)[-1][0, 0])


@pytest.mark.parametrize("lion", [False, True])
def test_what_is_dense_is_averaged_or_updated(lion, device, monkeypatch):
    """And written in place; what is not finite becomes NaN in an update."""
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    bucket = bucket_of(device, 1)
    plan = FactorPlan(bucket.layers, 2, 0.0)
    total = torch.randn(13 + plan.left.numel, generator=torch.Generator().manual_seed(2)).to(device)
    total[3], total[4] = 0.0, float("inf")
    momentum = torch.zeros(13, device=device)
    average = total[:13] / 3
    kept = momentum.clone()
    wanted = signs(blend(average, kept, 0.9, 0.95)) if lion else average
    grad = bucket.grad.clone()
    rest = plan.settle(total, grad, 3, Lion(momentum, 0.9, 0.95) if lion else None)
    assert rest.equal(total[13:])
    found = torch.cat([grad[layer.start : layer.stop] for layer in bucket.layers if layer.ndim == 1])
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0, equal_nan=True)
    torch.testing.assert_close(momentum, kept if lion else torch.zeros_like(kept), rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("powersgd", {"rank": 2}),
        ("acp_sgd", {}),
        ("dion", {"rank_fraction": 0.1}),
        ("dion", {"rank_fraction": 1.0, "orthonormal": True}),
    ],
)
def test_exchanges_give_what_they_give_in_pytorch(name, options, device, monkeypatch):
    """Two ranks, three steps."""

    def steps() -> list[Tensor]:
        methods, results = [compressors.build(name, **options) for _ in range(2)], []
        for step in range(3):
            buckets = [bucket_of(device, 2 * step + rank) for rank in range(2)]
            results.append(exchange(methods, [each.grad for each in buckets], buckets[0].layers, step=step)[0].clone())
        return results

    twins, mine = both(monkeypatch, steps)
    torch.testing.assert_close(mine, twins, rtol=1e-3, atol=1e-4)
