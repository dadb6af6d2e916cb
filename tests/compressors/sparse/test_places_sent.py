"""Methods that send the values of chosen places, against dense vectors: the same sums and residuals, to the bit."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.compressors.twins import top_k_reference
from tests.helpers import exchange
from wirebench import compressors
from wirebench.compressors.randomk import draw
from wirebench.gradient.context import ExchangeContext

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
