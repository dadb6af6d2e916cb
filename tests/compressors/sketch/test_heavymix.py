"""What is chosen from a sketch: the paper's HEAVYMIX and the plain largest estimates."""

import pytest
import torch

from tests.compressors.sketch.test_count_sketch import VECTOR
from tests.compressors.twins import estimates_of_all, top_k_reference
from wirebench.compressors.sketch import heavy_hitters
from wirebench.compressors.sketch.count_sketch import CountSketch
from wirebench.compressors.sketch.heavy_hitters import heavy, heavymix, largest, random_subset

both_hashes = pytest.mark.parametrize("hash", ["reference", "block"])


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def exact_sketch(numel):
    """A sketch as wide as its vector: every estimate is exact."""
    return CountSketch(numel, 3, numel, 0)


def planted(seed, heavies, size, noise, numel=100_000):
    """(vector, ascending places of its heavy entries), which are +-size among noise of that deviation."""
    draw = rng(seed)
    x = torch.randn(numel, generator=draw) * noise
    places = torch.randperm(numel, generator=draw)[:heavies].sort().values
    x[places] = size * (torch.randint(2, (heavies,), generator=draw) * 2.0 - 1)
    return x, places


@pytest.mark.parametrize(("k", "wanted"), [(1, []), (2, [2]), (3, [2]), (4, [2]), (10, [2]), (12, [1, 2, 6, 7, 8, 11])])
def test_the_heavy_set_by_hand(k, wanted):
    sketch = CountSketch(12, 3, 4, 42, "reference")
    table = sketch.sketch(torch.tensor(VECTOR))
    assert heavy(sketch, table, k, sketch.l2sq(table)).tolist() == wanted


def test_an_estimate_right_at_the_threshold_is_heavy():
    sketch = exact_sketch(10)
    x = torch.tensor([3.0, -3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    table = sketch.sketch(x)
    assert heavy(sketch, table, 2, 18.0).tolist() == [0, 1]
    assert heavy(sketch, table, 2, 18.0001).tolist() == []


def test_of_too_many_heavy_ones_the_largest_stay_and_ties_go_to_the_smaller_place():
    sketch = exact_sketch(10)
    table = sketch.sketch(torch.tensor([2.0, 5.0, -2.0, 4.0, 0.0, 2.0, -5.0, 0.0, 2.0, 0.0]))
    for k, wanted in ((1, [1]), (2, [1, 6]), (3, [1, 3, 6]), (4, [0, 1, 3, 6]), (5, [0, 1, 2, 3, 6])):
        assert heavymix(sketch, table, k, energy=1.0, rng=rng()).tolist() == wanted


@pytest.mark.parametrize("columns", [20, 200])
def test_of_a_table_that_is_too_small_the_largest_of_all_estimates_are_chosen(columns, monkeypatch):
    """Nearly all places reach the threshold, and none of them is listed."""
    x, k = torch.randn(20_000, generator=rng()), 100
    sketch = CountSketch(x.numel(), 3, columns, 1)
    table = sketch.sketch(x)
    energy = sketch.l2sq(table)
    those = heavy(sketch, table, k, energy)
    wanted = those[top_k_reference(sketch.estimate(table, those), k)]
    monkeypatch.setattr(heavy_hitters, "heavy", lambda *given: pytest.fail("all heavy places are listed"))
    assert those.numel() > 4 * k
    assert torch.equal(heavymix(sketch, table, k, energy, rng()), wanted)


def test_no_draw_where_none_is_needed():
    sketch, before = exact_sketch(6), rng()
    table = sketch.sketch(torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 1.0]))
    assert heavymix(sketch, table, 3, sketch.l2sq(table), before).tolist() == [0, 2, 5]
    assert torch.equal(before.get_state(), rng().get_state())


def test_an_empty_sketch_gives_k_places_all_the_same():
    sketch = CountSketch(50, 3, 4, 0)
    assert heavymix(sketch, torch.zeros(3, 4), 5, 0.0, rng()).unique().numel() == 5
    assert largest(sketch, torch.zeros(3, 4), 5).numel() == 0


PERMUTED = heavy_hitters.PERMUTED


@pytest.mark.parametrize(
    ("numel", "count"),
    [(5, 0), (5, 5), (1, 1), (6, 3), (6, 5), (1000, 400), (1000, 999)]
    + [(PERMUTED + 1, count) for count in (0, 1, 60, PERMUTED // 2, PERMUTED, PERMUTED + 1)],
)
def test_subsets_have_their_size_and_no_repeats(numel, count):
    for seed in range(20):
        chosen = random_subset(numel, count, rng(seed))
        assert chosen.dtype == torch.int64
        assert chosen.tolist() == sorted(set(chosen.tolist()))
        assert chosen.numel() == count
        assert ((chosen >= 0) & (chosen < numel)).all()


@pytest.mark.slow
@pytest.mark.parametrize("permuted", [1, PERMUTED], ids=["drawn", "permuted"])
@pytest.mark.parametrize("count", [2, 4])
def test_every_subset_is_equally_likely(count, permuted, monkeypatch):
    """15 subsets of 6 places, 1500 draws, 100 each; chi square of 14 degrees of freedom beyond 36.1: 0.1 %."""
    monkeypatch.setattr(heavy_hitters, "PERMUTED", permuted)
    monkeypatch.setattr(heavy_hitters, "SPARE_DRAWS", 2)
    seen: dict[tuple[int, ...], int] = {}
    for seed in range(1500):
        key = tuple(random_subset(6, count, rng(seed)).tolist())
        seen[key] = seen.get(key, 0) + 1
    assert len(seen) == 15
    assert sum((n - 100) ** 2 / 100 for n in seen.values()) < 36.1


KINDS = {
    "normal": lambda n: torch.randn(n, generator=rng(1)),
    "constant": lambda n: torch.ones(n),
    "zeros": lambda n: torch.zeros(n),
    "few": lambda n: torch.zeros(n).index_fill_(0, torch.arange(0, n, 1 + n // 7), 3.0),
    "steep": lambda n: torch.exp2(torch.randint(-60, 60, (n,), generator=rng(2)).float()),
    # The sample sees nothing but large ones.
    "stride": lambda n: torch.where(torch.arange(n) % 3 == 0, 1e6, 1.0),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("numel", "k", "columns"), [(10, 3, 2), (500, 499, 40), (60_000, 5, 900), (60_000, 9000, 4500)]
)
def test_the_largest_estimates_are_exactly_those(kind, numel, k, columns):
    sketch = CountSketch(numel, 5, columns, 3)
    table = sketch.sketch(KINDS[kind](numel))
    assert torch.equal(largest(sketch, table, k), top_k_reference(estimates_of_all(sketch, table), k))


def test_a_sample_that_misleads_costs_time_only():
    """All that is sampled is large; the rest, of which as much is wanted, lies far below any guess."""
    sketch, x = CountSketch(60_000, 1, 60_000, 3), KINDS["stride"](60_000)
    assert torch.equal(largest(sketch, sketch.sketch(x), 40_000), top_k_reference(x, 40_000))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(10, 20))
@both_hashes
def test_planted_heavies_are_found(hash, seed):
    """Others come up where three rows collide: 2.0 expected of 1000 columns, 0.016 of 5000, in these seeds none."""
    for columns, most in ((5000, 0), (1000, 8)):
        x, places = planted(seed, heavies=20, size=100.0, noise=0.1)
        sketch = CountSketch(x.numel(), 5, columns, seed, hash)
        table = sketch.sketch(x)
        energy = sketch.l2sq(table)
        assert 20 <= heavy(sketch, table, 50, energy).numel() <= 20 + most
        chosen = heavymix(sketch, table, 50, energy, rng(seed))
        assert chosen.numel() == 50
        assert torch.isin(places, chosen).all()
