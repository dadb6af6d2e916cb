import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tests.compressors.twins import ranking
from tests.helpers import LocalEngine, Log, answer_all, cut, exchange, lay_out, whole
from wirebench.compressors.oktopk import OkTopK
from wirebench.compressors.sparse import regions
from wirebench.compressors.sparse.encoding import SparseCode
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.requests import handed_over, payload


def draws(size: int, numel: int, seed: int, scale: Tensor | float = 1.0) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(numel, generator=rng) * scale for _ in range(size)]


def residuals(ranks: Sequence[OkTopK]) -> list[Tensor]:
    return [rank.state_dict()["residual"] for rank in ranks]


def test_the_messages_are_places_in_regions_and_values():
    ranks = [OkTopK(0.25), OkTopK(0.25)]
    log: Log = []
    exchange(ranks, [torch.tensor([0, 5.0, 0, 0, 3, 1, 0, 0]), torch.tensor([0, 4.0, 0, 0, 0, 2, -6, 1])], log=log)
    _, routes, shown, sums = log
    decode = SparseCode().decode
    parts = [[[t.tolist() for t in decode(part, 8)] for part in handed_over(route)] for route in routes]
    assert parts == [[[[1, 4], [5.0, 3.0]], [[], []]], [[[1], [4.0]], [[1], [-6.0]]]]
    assert [route.values for route in routes] == [8, 8]
    assert [payload(request).tolist() for request in shown] == [[9.0, 3.0], [6.0]]
    assert [[t.tolist() for t in decode(payload(request), 8)] for request in sums] == [[[1], [9.0]], [[1], [-6.0]]]


class Twin:
    """All ranks at once, in plain Python: every list sorted whole, every place looked at."""

    def __init__(self, size: int, numel: int, k: int, reevaluate: int, rebalance: int) -> None:
        self.size, self.numel, self.k, self.reevaluate, self.rebalance = size, numel, k, reevaluate, rebalance
        self.residuals = [torch.zeros(numel) for _ in range(size)]
        self.local = [0.0] * size
        self.threshold, self.bounds, self.given = 0.0, [0], [0] * size

    def step(self, grads: list[Tensor], number: int) -> Tensor:
        exact = number % self.reevaluate == 0
        offers = []
        for rank, grad in enumerate(grads):
            self.residuals[rank] += grad
            offers.append(self._offer(rank, exact))
        if number % self.rebalance == 0:
            cuts = [[offer[turn * len(offer) // self.size] for turn in range(1, self.size)] for offer in offers]
            self.bounds = [sum(column) // self.size for column in zip(*cuts, strict=True)]
        sums = torch.zeros(self.numel)
        for residual, offer in zip(self.residuals, offers, strict=True):
            for place in offer:
                sums[place] += residual[place]
        edges = [0, *self.bounds, self.numel]
        owned = [range(start, stop) for start, stop in pairwise(edges)]
        if exact:
            shown = [best(sums, region, min(self._part(2 * self.k, r), self.k)) for r, region in enumerate(owned)]
            self.threshold = below_kth(sums, [place for region in shown for place in region], self.k)
            self.given = [len(larger(sums, region, self.threshold)) for region in shown]
        applied = []
        for rank, region in enumerate(owned):
            found = larger(sums, region, self.threshold)
            quota = self._part(5 / 3 * self.k, rank)
            applied.append(found if len(found) <= quota else best(sums, found, quota))
        self.given = [len(region) for region in applied]
        return self._apply([place for region in applied for place in region], sums, offers)

    def _apply(self, applied: list[int], sums: Tensor, offers: list[list[int]]) -> Tensor:
        result = torch.zeros(self.numel)
        for place in applied:
            result[place] = sums[place] / self.size
        for residual, offer in zip(self.residuals, offers, strict=True):
            for place in set(offer) & set(applied):
                residual[place] = 0
        if len(applied) > 4 / 3 * self.k:
            self.threshold = max(self.threshold * 1.008, below_kth(sums, applied, self.k))
        elif len(applied) < 2 / 3 * self.k:
            self.threshold /= 1.008
        return result

    def _offer(self, rank: int, exact: bool) -> list[int]:
        residual, everywhere = self.residuals[rank], range(self.numel)
        if exact:
            self.local[rank] = below_kth(residual, everywhere, self.k)
            return best(residual, everywhere, self.k)
        found = larger(residual, everywhere, self.local[rank])
        for _ in range(5):
            if len(found) > 4 / 3 * self.k:
                self.local[rank] *= 1.03
                found = larger(residual, everywhere, self.local[rank])
        if len(found) > 4 / 3 * self.k:
            self.local[rank] = below_kth(residual, everywhere, self.k)
            return best(residual, everywhere, self.k)
        if len(found) > 5 / 4 * self.k:
            self.local[rank] *= 1.012
        if len(found) < 2 / 3 * self.k:
            self.local[rank] /= 1.012
        return found

    def _part(self, total: float, rank: int) -> int:
        share = self.given[rank] / sum(self.given) if sum(self.given) else 1 / self.size
        return max(int(total * (0.2 / self.size + 0.8 * share)), 1)


def best(x: Tensor, places: Sequence[int], k: int) -> list[int]:
    chosen = ranking(x[list(places)])[:k]
    return sorted(places[i] for i in chosen)


def larger(x: Tensor, places: Sequence[int], threshold: float) -> list[int]:
    limit = torch.tensor(threshold, dtype=torch.float32)
    return [place for place in places if x[place].abs() > limit]


def below_kth(x: Tensor, places: Sequence[int], k: int) -> float:
    chosen = best(x, places, k)
    if len(chosen) < k:
        return 0.0
    least = min(x[place].abs() for place in chosen)
    return torch.nextafter(least, torch.tensor(0.0)).item()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("decay", [1.0, 0.8, 1.15])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_equals_the_reference_bit_for_bit(size, decay):
    """Also where gradients fade or grow so fast that thresholds and quotas must follow."""
    numel, k = 240, 24
    twin, ranks = Twin(size, numel, k, 8, 12), [OkTopK(0.1, 8, 12) for _ in range(size)]
    scale = torch.linspace(3, 0.1, numel)
    for number in range(26):
        grads = draws(size, numel, number, scale * decay**number)
        expected = twin.step(grads, number)
        for result in exchange(ranks, grads, step=number):
            assert torch.equal(result, expected), number
        for mine, theirs in zip(residuals(ranks), twin.residuals, strict=True):
            assert torch.equal(mine, theirs), number


SCALES = {
    "balanced": lambda numel: torch.ones(numel),
    "one region heavy": lambda numel: torch.where(torch.arange(numel) < numel // 20, 30.0, 1.0),
    "fading": lambda numel: torch.exp(-torch.arange(numel) / (numel / 20)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SCALES)
@pytest.mark.parametrize("size", range(2, 10))
def test_a_rank_sends_fewer_than_6k_words(size, name):
    """At every step, from the first on: while residuals grow, and where thresholds are exact."""
    numel, k = 30_000, 300
    scale = SCALES[name](numel)
    engine, ranks = LocalEngine(size, "ring"), [OkTopK(0.01, 8, 16) for _ in range(size)]
    words, applied = [], []
    for number in range(18):
        grads = draws(size, numel, number, scale)
        worlds = [ExchangeContext(rank, size, number) for rank in range(size)]
        results = engine.answer_all([r.exchange(whole(g), w) for r, g, w in zip(ranks, grads, worlds, strict=True)])
        logs = [server.take_log() for server in engine.servers]
        words.append(max(sum(served.wire_bytes for served in log) for log in logs) / 4)
        applied.append(int(results[0].count_nonzero()))
    assert max(words) < 6 * k
    assert sum(words) / len(words) < 5.5 * k
    assert 0.5 * k < sum(applied) / len(applied) < 5 / 3 * k


def test_the_estimate_is_of_the_offered_entries_and_a_regions_share_of_the_sums():
    assert OkTopK(0.1).wire_bytes(1000, 4) == 8 * (100 + 25)


def test_thresholds_and_regions_are_found_when_it_is_time():
    kinds = []
    ranks = [OkTopK(0.1, reevaluate_every=2, rebalance_every=3) for _ in range(3)]
    for number in range(7):
        log: Log = []
        exchange(ranks, draws(3, 100, number), step=number, log=log)
        kinds.append("".join(type(requests[0]).__name__[0] for requests in log))
    assert kinds == ["SRGG", "RG", "RGG", "SRG", "RGG", "RG", "SRGG"]


def test_bounds_are_the_mean_of_those_that_cut_each_ranks_entries_evenly():
    places = torch.tensor([1, 2, 3, 50, 90, 91])
    assert regions.quantiles(places, 100, 3).tolist() == [3, 90]
    assert regions.quantiles(places[:0], 100, 3).tolist() == [33, 66]
    assert regions.quantiles(places[:1], 100, 3).tolist() == [1, 1]
    assert regions.regions([3, 90], 100) == [(0, 3), (3, 90), (90, 100)]


def test_buckets_cut_anew_find_their_own_thresholds_and_forget_the_others():
    layers, rank = lay_out([(20, 5), (10, 5), (30, 5)]), OkTopK(0.1)

    def step(number, groups):
        log: Log = []
        for bucket in cut(torch.randn(300), layers, groups):
            answer_all([rank.exchange(bucket, ExchangeContext(0, 1, number))], log)
        return len(log), sorted(rank.shared), sorted(rank.own)

    apart, together = [range(0, 1), range(1, 2), range(2, 3)], [range(0, 2), range(2, 3)]
    names = ["0-100", "100-150", "150-300"]
    assert step(1, apart) == (9, names, names)  # each of three: route, threshold, gather
    assert step(2, apart) == (6, names, names)
    names = ["0-150", "150-300"]
    assert step(3, together) == (5, names, names)
    assert step(4, together) == (4, names, names)


def test_another_density_finds_new_thresholds():
    ranks = [OkTopK(0.1), OkTopK(0.1)]
    log: Log = []
    exchange(ranks, draws(2, 200, 1), step=1)
    for rank in ranks:
        rank.density = 0.05
    exchange(ranks, draws(2, 200, 2), step=2, log=log)
    assert [type(requests[0]).__name__ for requests in log] == ["Sum", "Route", "Gather", "Gather"]
    assert int(ranks[0].shared["0-200"][0]) == 10


def run(ranks, steps):
    return [exchange(ranks, draws(3, 300, number), step=number)[0].clone() for number in steps]


def test_another_world_finds_new_regions():
    before = [OkTopK(0.1) for _ in range(3)]
    run(before, range(3))
    states = [rank.state_dict() for rank in before]
    after = [OkTopK(0.1), OkTopK(0.1)]
    for place, rank in enumerate(after):
        rank.take_over(states[place::2])
        assert not rank.own
    log: Log = []
    exchange(after, draws(2, 300, 9), step=3, log=log)
    assert [type(requests[0]).__name__ for requests in log] == ["Sum", "Route", "Gather", "Gather"]


def test_everything_is_sent_at_first_if_so_wished():
    ranks = [OkTopK(0.1, dense_steps=2), OkTopK(0.1, dense_steps=2)]
    log: Log = []
    for number in range(3):
        grads = draws(2, 100, number)
        results = exchange(ranks, grads, step=number, log=log)
        if number < 2:
            assert torch.equal(results[0], (grads[0] + grads[1]) / 2)
            assert not any(residual.any() for residual in residuals(ranks))
    assert [type(requests[0]).__name__ for requests in log] == ["Sum", "Sum", "Sum", "Route", "Gather", "Gather"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("number", [0, 3])
def test_what_is_not_finite_is_applied(bad, number):
    for count in (1, 5, 40):
        ranks = [OkTopK(0.1) for _ in range(3)]
        run(ranks, range(number))
        grads = draws(3, 300, 9)
        grads[2][100 : 100 + count] = bad
        assert not any(result[100 : 100 + count].isfinite().all() for result in exchange(ranks, grads, step=number))


def test_measures_what_was_offered_and_applied():
    ranks = [OkTopK(0.1), OkTopK(0.1)]
    exchange(ranks, draws(2, 100, 1), measuring=True)
    for rank in ranks:
        assert rank.measures.names == ["offered", "applied"]
        parts, wholes = rank.measures.take().tolist()
        assert (parts, wholes) == ([10.0, 10.0], [10.0, 10.0])
