"""Plugins of studies: the oracle in the place of the sketch, and gTop-k with the messages of its authors' code."""

from typing import Any

import pytest
import torch

from papers.accuracy.perfect_sketch import PerfectSketch
from papers.gs_sgd.released_gtopk import ReleasedGTopK
from tests.compressors.twins import top_k_reference
from tests.helpers import LocalEngine, answer_all, whole
from wirebench.compressors.gs_sgd import GsSgd
from wirebench.compressors.gtopk import GTopK
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.metrics import values

NUMEL, K = 500, 20
PRINTED: dict[str, Any] = {
    "density": K / NUMEL, "p1": 0.0, "p2": 1, "broadcast": "sketch", "rows": 5, "agree": "majority", "reseed": False,
    "momentum": 0.0,
}  # fmt: skip
"""As `LITERAL` has it."""


def step_of(ranks, grads, measuring=False):
    worlds = [ExchangeContext(rank, len(ranks), measuring=measuring) for rank in range(len(ranks))]
    return answer_all([r.exchange(whole(g.clone()), w) for r, g, w in zip(ranks, grads, worlds, strict=True)])


def test_with_estimates_it_is_the_top_k_of_the_sum():
    grads = [torch.randn(NUMEL, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    ranks = [PerfectSketch(fill="estimate", **PRINTED) for _ in grads]
    result = step_of(ranks, grads, measuring=True)[0]
    total = torch.stack(grads).sum(0)
    assert torch.equal(torch.nonzero(result).squeeze(1), top_k_reference(total, K))
    torch.testing.assert_close(result[result != 0], (total / 3)[result != 0])
    for rank in ranks:
        measured = values(rank.measures.names, rank.measures.take())
        assert (measured["recall"], measured["sketch_error"]) == (1.0, 0.0)


def test_with_random_fill_it_chooses_what_heavymix_chooses_of_exact_estimates():
    """All that is heavy, and then the same random places as gs_sgd with so wide a table that it does not err."""
    grads = [torch.randn(NUMEL, generator=torch.Generator().manual_seed(7))]
    grads[0][[5, 77]] = 100.0
    options = {**PRINTED, "fill": "random", "rows": 1, "columns": NUMEL - K - 1}
    result, exact = (step_of([make(**options)], grads)[0] for make in (PerfectSketch, GsSgd))
    assert result[[5, 77]].tolist() == [100.0, 100.0]
    assert result.count_nonzero() == K and torch.equal(result, exact)


@pytest.mark.parametrize(("density", "dense"), [(0.04, False), (0.06, True)])
def test_it_goes_dense_where_gs_sgd_does(density, dense):
    grads = [torch.randn(NUMEL, generator=torch.Generator().manual_seed(3))]
    options: dict[str, Any] = {**PRINTED, "fill": "random", "density": density}
    ours, theirs = (step_of([make(**options)], grads)[0] for make in (PerfectSketch, GsSgd))
    assert ours.count_nonzero() == theirs.count_nonzero() == (NUMEL if dense else density * NUMEL)


def test_the_released_gtopk_is_gtopk_with_twice_the_bytes():
    rng = torch.Generator().manual_seed(0)
    grads = [torch.randn(400, generator=rng) for _ in range(4)]
    results, logs = [], []
    for method in (GTopK, ReleasedGTopK):
        engine, ranks = LocalEngine(4, "tree"), [method(density=0.05) for _ in grads]
        worlds = [ExchangeContext(rank, 4) for rank in range(4)]
        triples = zip(ranks, grads, worlds, strict=True)
        results.append(engine.answer_all([rank.exchange(whole(g.clone()), world) for rank, g, world in triples])[0])
        logs.append(engine.servers[0].log)
    assert torch.equal(*results)
    assert [[entry.payload_bytes for entry in log] for log in logs] == [[8 * 20], [16 * 20]]
