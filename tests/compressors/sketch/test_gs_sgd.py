"""gs-SGD against its plain twin: dense vectors, every estimate, every sum."""

import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import helpers
from tests.compressors.twins import estimates_reference, top_k_reference
from tests.helpers import Log, cut, exchange, lay_out, whole
from wirebench import compressors
from wirebench.compressors.common.wrappers import Warmup
from wirebench.compressors.gs_sgd import HEAD_BYTES, GsSgd
from wirebench.compressors.sketch.count_sketch import CountSketch
from wirebench.compressors.sketch.heavy_hitters import heavy, heavy_by_chance
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.requests import Gather, Reduce, payload

NUMEL, K, ROWS, COLUMNS = 300, 12, 5, 48
whole_numbers = functools.partial(helpers.whole_numbers, numel=NUMEL)
PRINTED: dict[str, Any] = {"fill": "random", "p1": 0.0, "p2": 1, "broadcast": "sketch", "reseed": False}
PRINTED |= {"agree": "majority", "rows": 5}
"""The paper's rule, which the defaults are not."""

SIZES: dict[str, Any] = {"density": K / NUMEL, "rows": ROWS, "columns": COLUMNS}


def literal(**options: Any) -> GsSgd:
    """The method as printed, but for these options."""
    return GsSgd(**(PRINTED | options))


def residual(rank) -> Tensor:
    return rank.state_dict()["residual"]


def estimates_of(rank, vectors, step=0):
    """Every estimate of the sum of `vectors`, through the hashes of `rank`; and the estimate of its squared norm."""
    sketch = rank.sketch_of(whole(vectors[0]), ExchangeContext(0, 1, step))
    cells = list(sketch.hash.cells(torch.arange(vectors[0].numel())))
    table = sum(sketch.sketch(v) for v in vectors)
    energies = sorted(table.double().square().sum(1).tolist())
    return estimates_reference(table, cells), energies[len(energies) // 2]


class Twin:
    """Algorithm 1 with dense vectors; the choice is handed in, the sums are not."""

    def __init__(self, size, momentum=0.0, numel=NUMEL):
        self.momentum = momentum
        self.u, self.v = ([torch.zeros(numel) for _ in range(size)] for _ in range(2))

    def take_in(self, grads):
        for u, v, grad in zip(self.u, self.v, grads, strict=True):
            u.mul_(self.momentum).add_(grad)
            v += u

    def apply(self, index):
        average = torch.zeros_like(self.v[0])
        average[index] = sum(v[index] for v in self.v) / len(self.v)
        for u, v in zip(self.u, self.v, strict=True):
            v[index] = 0
            u[index] = 0
        return average


@pytest.mark.parametrize("hash", ["block", "reference"])
@pytest.mark.parametrize(
    ("size", "momentum", "p1"),
    [(1, 0.0, 0.0), (2, 0.5, 0.0), (5, 0.0, 0.0), (3, 0.5, 0.25), (3, 0.5, 1.0), (3, 0.5, 2.5)],
)
def test_the_largest_estimates_are_applied_with_exact_values(size, momentum, p1, hash):
    """Halves of whole numbers add up exactly for these few steps. With p1 the table has the largest entries of each
    rank; what is applied is exact all the same, and comes from all ranks' whole memories.
    """
    ranks = [literal(**SIZES, fill="estimate", hash=hash, momentum=momentum, p1=p1) for _ in range(size)]
    twin = Twin(size, momentum)
    for step in range(4):
        grads = whole_numbers(size, step)
        twin.take_in(grads)
        largest = [top_k_reference(v, int(p1 * K) if p1 else NUMEL) for v in twin.v]
        offered = [torch.zeros(NUMEL).index_copy_(0, index, v[index]) for v, index in zip(twin.v, largest, strict=True)]
        estimates, _ = estimates_of(ranks[0], offered)
        wanted = twin.apply(top_k_reference(estimates, K))
        for result in exchange(ranks, grads, step=step):
            assert torch.equal(result, wanted)
        for rank, v in zip(ranks, twin.v, strict=True):
            assert torch.equal(residual(rank), v)


@pytest.mark.parametrize("size", [1, 3])
def test_heavy_entries_are_applied_and_others_up_to_k(size):
    ranks, twin = [literal(**SIZES, momentum=0.0) for _ in range(size)], Twin(size)
    for step in range(4):
        grads = whole_numbers(size, step)
        for grad in grads:
            grad[7 * step : 7 * step + 4] += 1000
        twin.take_in(grads)
        estimates, energy = estimates_of(ranks[0], twin.v)
        heavy = torch.nonzero(estimates.abs() >= math.sqrt(energy / K)).squeeze(1)
        assert 4 <= heavy.numel() < K
        before = [residual(rank).clone() if step else torch.zeros(NUMEL) for rank in ranks]
        result = exchange(ranks, grads, step=step)[0]
        touched = torch.nonzero(before[0] + grads[0] != residual(ranks[0])).squeeze(1)
        assert torch.isin(heavy, touched).all()
        waiting = torch.stack([residual(rank) for rank in ranks]).sum(0)
        chosen = torch.nonzero(torch.stack([*before, *grads]).sum(0) != waiting).squeeze(1)
        assert chosen.numel() <= K
        chosen = torch.unique(torch.cat([chosen, touched]))
        assert torch.equal(twin.apply(chosen), result)


def test_the_random_ones_are_new_every_step_and_the_same_on_all_ranks():
    ranks, grads = [literal(**SIZES, momentum=0.0) for _ in range(2)], [torch.ones(NUMEL)] * 2
    first, second = (exchange(ranks, grads, step=step) for step in range(2))
    for results in (first, second):
        assert torch.equal(results[0], results[1])
        assert results[0].count_nonzero() == K
    assert not torch.equal(first[0] != 0, second[0] != 0)


@pytest.mark.parametrize(
    ("options", "dense"),
    [
        ({"columns": 60}, True),
        ({"columns": 59}, False),
        ({"ratio": 0.2}, True),
        ({"ratio": 0.19}, False),
        ({"density": 0.06}, True),  # 5 rows of 4 x 18
        ({"density": 0.0434}, False),  # of 4 x 13
        ({"k": 15}, True),
        ({"k": 14}, False),
        ({"density": 1.0, "columns": 1}, True),
    ],
)
def test_dense_where_the_table_would_not_be_smaller(options, dense):
    log: Log = []
    ranks = [literal(**options, momentum=0.0) for _ in range(2)]
    exchange(ranks, whole_numbers(2, 0), log=log)
    assert len(log) == (1 if dense else 2)
    sent = sum(payload(requests[0]).nbytes for requests in log)
    assert sent == ranks[0].wire_bytes(NUMEL, 2)
    assert not dense or sent == 4 * NUMEL


@pytest.mark.parametrize("p2", [2, 4])
def test_more_candidates_are_summed_and_the_k_largest_sums_applied(p2):
    log: Log = []
    ranks, twin = [literal(**SIZES, fill="estimate", p2=p2, momentum=0.0) for _ in range(2)], Twin(2)
    grads = whole_numbers(2, 0)
    twin.take_in(grads)
    candidates = top_k_reference(estimates_of(ranks[0], twin.v)[0], p2 * K)
    wanted = twin.apply(candidates[top_k_reference(torch.stack(twin.v).sum(0)[candidates], K)])
    assert torch.equal(exchange(ranks, grads, log=log)[0], wanted)
    assert payload(log[1][0]).shape == (p2 * K,)
    assert torch.equal(residual(ranks[1]), twin.v[1])


@pytest.mark.parametrize(("p2", "numbers"), [(2, [50, 200]), (3, [NUMEL])])
def test_a_table_and_candidates_that_are_as_many_as_the_elements_go_dense(p2, numbers):
    log: Log = []
    rank = literal(k=100, columns=10, fill="estimate", p2=p2, momentum=0.0)
    exchange([rank], whole_numbers(1, 0), log=log)
    assert [payload(requests[0]).numel() for requests in log] == numbers


@pytest.mark.parametrize("fill", ["random", "estimate"])
def test_rank_0_may_tell_the_others_what_it_found(fill):
    results, logs = [], []
    for broadcast in ("sketch", "indices"):
        log: Log = []
        ranks = [literal(**SIZES, fill=fill, broadcast=broadcast) for _ in range(3)]
        results.append(exchange(ranks, whole_numbers(3, 0), log=log)[0])
        logs.append(log)
    assert torch.equal(*results)
    first, told, second = logs[1]
    assert all(isinstance(request, Reduce) for request in first)
    assert [payload(request).numel() for request in told] == [4 * K + HEAD_BYTES, 0, 0]
    assert all(isinstance(request, Gather) and request.values == 0 for request in told)
    assert ranks[0].wire_bytes(NUMEL, 3) == payload(first[0]).nbytes + 4 * K // 3 + payload(second[0]).nbytes


def test_a_bucket_takes_its_share_of_k_and_of_the_columns():
    layers = lay_out([(20, 10), (95, 1), (5, 1)])
    rank = literal(k=12, columns=30)
    large, small, smallest = cut(torch.zeros(300), layers, [range(0, 1), range(1, 2), range(2, 3)])
    assert [rank.entries(b.grad.numel(), b.model_numel) for b in (large, small, smallest)] == [8, 3, 1]
    assert [rank.width(b.grad.numel(), b.model_numel) for b in (large, small, smallest)] == [20, 10, 1]
    assert literal(ratio=0.05).width(95, 300) == 5
    assert literal(k=12).width(95, 300) == 12


@pytest.mark.parametrize("options", [{"k": 3}, {"density": 0.3}, {"k": 3, "density": 0.01}])
@pytest.mark.parametrize("density", [0.04, 0.01])  # the second is the default
def test_a_warm_up_goes_before_density_and_k(options, density):
    warm = Warmup(literal(**options, columns=10, momentum=0.0), [density])
    counts = []
    for epoch in range(2):
        log: Log = []
        exchange([warm], whole_numbers(1, 0), log=log, step=epoch, epoch=epoch)
        counts.append(payload(log[1][0]).numel())
    assert counts == [int(density * NUMEL), 3 if "k" in options else 90]


def test_hashes_differ_between_buckets_and_runs_and_steps_if_so_wished():
    for reseed in (False, True):
        rank, bucket = literal(**SIZES, reseed=reseed), whole(torch.ones(NUMEL))
        first, second = (rank.sketch_of(bucket, ExchangeContext(0, 1, step)).sketch(bucket.grad) for step in range(2))
        assert torch.equal(first, second) != reseed
    buckets = cut(torch.ones(600), lay_out([(300, 1), (300, 1)]), [range(0, 1), range(1, 2)])
    tables = [rank.sketch_of(bucket, ExchangeContext(0, 1)).sketch(bucket.grad) for bucket in buckets]
    assert not torch.equal(*tables)
    other = rank.sketch_of(buckets[0], ExchangeContext(0, 1, seed=1)).sketch(buckets[0].grad)
    assert not torch.equal(tables[0], other)


def test_infinities_of_both_signs_are_not_taken_for_zero():
    ranks, grads = [literal(**SIZES) for _ in range(2)], whole_numbers(2, 0)
    grads[0][17], grads[1][17] = math.inf, -math.inf
    assert exchange(ranks, grads)[0].isnan().all()


def test_measures_by_hand():
    """A table so wide that estimates are exact: recall 1 and no error."""
    ranks = [literal(density=0.01, rows=1, columns=296, fill="estimate", momentum=0.0) for _ in range(2)]
    grads = [torch.zeros(NUMEL), torch.zeros(NUMEL)]
    grads[0][[3, 100]] = torch.tensor([5.0, -4.0])
    grads[1][[3, 200]] = torch.tensor([1.0, 3.0])
    log: Log = []
    exchange(ranks, grads, log=log, measuring=True)
    assert [payload(requests[0]).numel() for requests in log] == [296, 3, NUMEL]
    for rank in ranks:
        assert rank.measures.names == ["heavy", "heavy_by_chance", "chosen", "recall", "sketch_error"]
        (heavy, _, *parts), wholes = rank.measures.take().tolist()
        assert [heavy, *parts] == [1.0, 3.0, 3.0, 0.0]  # 36 reaches 61 / 3, 16 and 9 do not
        assert wholes == [1.0, 1.0, 1.0, 3.0, pytest.approx(math.sqrt(61))]


def test_a_large_bucket_is_measured_at_some_places():
    log: Log = []
    rank = literal(density=0.01, momentum=0.0)
    exchange([rank], [torch.randn(50_000, generator=torch.Generator().manual_seed(0))], log=log, measuring=True)
    assert 3500 < payload(log[2][0]).numel() <= 4096
    parts, wholes = rank.measures.take().tolist()
    assert 35 <= wholes[3] <= 41  # a hundredth of the places
    assert parts[2] == 500


@pytest.mark.parametrize(
    ("k", "columns", "rows", "agree"),
    [(500, 2000, 5, "majority"), (500, 1000, 5, "majority"), (200, 600, 5, "majority"), (500, 1000, 3, "all")],
)
def test_what_is_heavy_by_chance_is_what_noise_shows(k, columns, rows, agree):
    """Of a normally distributed vector, which has no entry of 10 deviations: over 10 hashes within a quarter."""
    x = torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    counts = []
    for seed in range(10):
        sketch = CountSketch(x.numel(), rows, columns, seed, agree=agree)
        table = sketch.sketch(x)
        counts.append(heavy(sketch, table, k, sketch.l2sq(table)).numel())
    assert sum(counts) / 10 == pytest.approx(heavy_by_chance(x.numel(), k, columns, rows, agree), rel=0.25)


def test_with_p1_nobody_can_say_what_is_heavy_by_chance():
    rank = literal(density=0.01, p1=1.0, fill="estimate", momentum=0.0)
    exchange([rank], [torch.randn(5_000, generator=torch.Generator().manual_seed(0))], measuring=True)
    assert rank.measures.names == ["heavy", "chosen", "recall", "sketch_error"]


def test_sketched_sgd_is_gs_sgd_with_other_defaults():
    ours = compressors.build("gs_sgd", **compressors.PLUGINS.defaults("sketched_sgd"))
    theirs = compressors.build("sketched_sgd")
    for pair in ((ours, theirs), (ours.memory, theirs.memory)):
        one, other = ({k: v for k, v in vars(each).items() if isinstance(v, int | float | str)} for each in pair)
        assert one and one == other
