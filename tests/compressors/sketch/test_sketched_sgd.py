from typing import Any

import pytest
import torch

from tests.helpers import LocalEngine, whole
from wirebench import compressors
from wirebench.compressors.gs_sgd import GsSgd
from wirebench.compressors.sketched_sgd import SketchedSgd
from wirebench.gradient.context import ExchangeContext

OPTIONS: dict[str, Any] = {"density": 0.04, "columns": 48, "broadcast": "sketch", "p1": 0.0, "reseed": False}
OPTIONS |= {"rows": 5, "agree": "majority"}


def step_of(ranks, collective, grads):
    engine = LocalEngine(len(ranks), collective)
    worlds = [ExchangeContext(rank, len(ranks)) for rank in range(len(ranks))]
    triples = zip(ranks, grads, worlds, strict=True)
    results = engine.answer_all([rank.exchange(whole(grad.clone()), world) for rank, grad, world in triples])
    return results[0], engine.servers[0].log


@pytest.mark.parametrize("options", [{"fill": "random", "p2": 1}, {"fill": "estimate", "p2": 4}])
def test_it_is_gs_sgd_on_a_star(options):
    rng = torch.Generator().manual_seed(0)
    grads = [torch.randint(-8, 9, (300,), generator=rng).float() for _ in range(5)]
    assert (GsSgd.collective, SketchedSgd.collective) == ("tree", "star")
    on_tree, tree_log = step_of([GsSgd(**OPTIONS, **options) for _ in range(5)], "tree", grads)
    on_star, star_log = step_of([SketchedSgd(**OPTIONS, **options) for _ in range(5)], "star", grads)
    assert torch.equal(on_tree, on_star)
    assert [s.payload_bytes for s in tree_log] == [s.payload_bytes for s in star_log]
    # Rank 0 is the server: it answers all 4 others, where on the tree it has 3 children.
    assert [s.wire_bytes // s.payload_bytes for s in star_log] == [4, 4]
    assert [s.wire_bytes // s.payload_bytes for s in tree_log] == [3, 3]


def test_it_takes_the_same_options():
    assert compressors.PLUGINS.defaults("sketched_sgd").keys() == compressors.PLUGINS.defaults("gs_sgd").keys()
