"""Gaps between a bucket's layers: what draws or estimates places names none of theirs, and k counts without them."""

from typing import Any

import pytest
import torch

from tests.helpers import Log, answer_all, cut, lay_out
from wirebench.compressors.common.wrappers import DenseBelow
from wirebench.compressors.fetch_sgd import FetchSgd
from wirebench.compressors.gs_sgd import GsSgd
from wirebench.compressors.iwp import Iwp
from wirebench.compressors.randomk import RandomK
from wirebench.compressors.sketch.count_sketch import CountSketch
from wirebench.compressors.sketch.heavy_hitters import heavymix, largest
from wirebench.compressors.sparse.gaps import Places, joined
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.flat import Bucket
from wirebench.gradient.metrics import values
from wirebench.gradient.requests import payload

CPU = torch.device("cpu")
ALL = lay_out([(3,), (10, 10), (4,), (5,), (2, 10), (40,), (30, 10), (7,)])
LAYERS = tuple(layer for layer in ALL if layer.ndim > 1)
COVERED = torch.cat([torch.arange(layer.start - 3, layer.stop - 3) for layer in LAYERS])


def bucket_with_gaps(grad: torch.Tensor) -> Bucket:
    """The compressed layers of ALL, with 0 between them."""
    first, last = LAYERS[0].start, LAYERS[-1].stop
    kept = torch.zeros(last - first)
    kept[COVERED] = grad[first:last][COVERED]
    return Bucket(0, kept, torch.ones(last - first), LAYERS, LAYERS)


def test_places_by_hand():
    places = Places(LAYERS, CPU)
    assert places.numel == COVERED.numel() == 420
    ranks = torch.arange(420)
    assert torch.equal(places.at(ranks), COVERED)
    assert torch.equal(places.ranks(COVERED), ranks)
    assert torch.equal(places.without_gaps(torch.arange(LAYERS[-1].stop - 3)), COVERED)


def test_neighbours_are_one_piece_and_without_a_gap_nothing_is_done():
    assert joined(ALL, 0) == [slice(0, ALL[-1].stop)]
    places, index = Places(ALL, CPU), torch.tensor([3, 8])
    assert all(found is index for found in (places.at(index), places.ranks(index), places.without_gaps(index)))


def test_what_a_sketch_shows_lies_in_no_gap():
    """A table so narrow that most of what it shows is not there."""
    places, x = Places(LAYERS, CPU), torch.zeros(LAYERS[-1].stop - 3)
    x[COVERED[::60]] = 5.0
    for seed in range(20):
        sketch = CountSketch(x.numel(), 3, 20, seed, places=places)
        blind = CountSketch(x.numel(), 3, 20, seed)
        table = sketch.sketch(x)
        found = sketch.reaching(table, 4.0)
        assert torch.isin(found, COVERED).all()
        wanted = blind.reaching(table, 4.0)
        assert torch.equal(found, wanted[torch.isin(wanted, COVERED)])
        assert torch.isin(largest(sketch, table, 50), COVERED).all()


def test_what_is_drawn_beside_it_lies_in_no_gap_and_anywhere_else():
    places = Places(LAYERS, CPU)
    sketch, seen = CountSketch(LAYERS[-1].stop - 3, 3, 100, 0, places=places), torch.zeros(LAYERS[-1].stop - 3)
    x = torch.zeros(seen.numel())
    x[COVERED[[0, 150, 419]]] = 9.0
    for seed in range(40):
        rng = torch.Generator().manual_seed(seed)
        chosen = heavymix(sketch, sketch.sketch(x), 60, float(x.square().sum()), rng)
        assert chosen.tolist() == sorted(set(chosen.tolist()))
        assert chosen.numel() == 60
        seen[chosen] += 1
    # 40 draws of one in seven leave 1 place out of 480 unseen: less than one of 420.
    assert (seen[COVERED] > 0).sum() > 410
    seen[COVERED] = 0
    assert not seen.any()


SHARES: tuple[dict[str, Any], ...] = ({"density": 0.1}, {"k": 42})
METHODS = [RandomK(0.1), *(GsSgd(columns=9, rows=3, fill="random", p2=1, **share) for share in SHARES)]


@pytest.mark.parametrize("method", METHODS)
def test_k_is_a_share_of_what_the_layers_hold(method):
    log: Log = []
    answer_all([method.exchange(bucket_with_gaps(torch.randn(ALL[-1].stop)), ExchangeContext(0, 1))], log)
    assert payload(log[-1][0]).numel() == 42


def test_what_fetch_sgd_takes_out_of_its_memory_was_applied():
    """Subtracted from the sketch, of whole numbers and exactly: also where the table shows what is not there."""
    wrapped, layers = DenseBelow(FetchSgd(density=0.2, rows=3, columns=11, momentum=0.0, clear="subtract"), 1), ALL
    given, applied = torch.zeros(ALL[-1].stop), torch.zeros(ALL[-1].stop)
    for step in range(5):
        grad = torch.randint(-8, 9, (ALL[-1].stop,), generator=torch.Generator().manual_seed(step)).float()
        given += grad
        (bucket,) = cut(grad, layers, [range(len(ALL))])
        applied += answer_all([wrapped.exchange(bucket, ExchangeContext(0, 1, step))])[0]
    inner = wrapped.inner
    assert isinstance(inner, FetchSgd)
    waiting = bucket_with_gaps(given - applied)
    sketch = inner.sketch_of(waiting, ExchangeContext(0, 1))
    assert torch.equal(inner.shared[f"error.{LAYERS[0].start}"], sketch.sketch(waiting.grad))


def test_a_coordinate_of_a_gap_waits_for_nothing_and_counts_for_none():
    rank = Iwp(threshold=0.5, rho=0.0, waiting=True)
    for step in range(4):
        answer_all(
            [rank.exchange(bucket_with_gaps(torch.ones(ALL[-1].stop)), ExchangeContext(0, 1, step, measuring=True))]
        )
        names = rank.measures.names
        found = values(names, rank.measures.take())
        assert (found["waiting_mean"], found["waiting_max"], found["density"]) == (0, 0, 1)


@pytest.mark.parametrize("length", [3, 1 << 19])
def test_masks_of_importance_span_gaps_of_any_length(length):
    """Longer than the blocks in which masks are made, too."""
    layers = lay_out([(20, 10), (length,), (10, 10)])
    grad = torch.randn(layers[-1].stop, generator=torch.Generator().manual_seed(1))
    wrapped = DenseBelow(Iwp(threshold=1.0, rho=0.0, momentum=0.0, epsilon=0.0), 1)
    (bucket,) = cut(grad.clone(), layers, [range(3)], torch.ones(grad.numel()))
    (result,) = answer_all([wrapped.exchange(bucket, ExchangeContext(0, 1))])
    dense = torch.zeros(grad.numel(), dtype=torch.bool)
    dense[200 : 200 + length] = True
    assert torch.equal(result, torch.where(dense | (grad.abs() > 1), grad, 0.0))
