"""Which elements to fetch, by a Count-Sketch of them: HEAVYMIX, or simply the largest estimates.

HEAVYMIX: Ivkin et al., "Communication-efficient Distributed SGD with Sketching", NeurIPS 2019, Algorithm 2; gs-SGD
(arXiv 2108.06004) takes it over. Every rank that holds the same table gets the same places.
"""

import math

import torch
from numpy.polynomial.hermite_e import hermegauss
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.sketch.count_sketch import Agree, CountSketch
from wirebench.compressors.sparse.gaps import Places
from wirebench.compressors.sparse.selection import top_k

# A sample with 64 of the wanted elements misjudges their number by an eighth.
SAMPLE_HITS, SAMPLE_LEAST, SAMPLE_SHARE = 64, 1 << 14, 1 / 16
SAMPLE_SLACK = 3  # standard deviations
LOWER, TRIES = 0.7, 8
SPARE_DRAWS, PERMUTED = 16, 1 << 12
NODES = 40
MANY = 4
LEAST = torch.finfo(torch.float32).tiny


def heavy(sketch: CountSketch, table: Tensor, k: int, energy: float) -> Tensor:
    """H, ascending: places whose estimate e has e^2 >= energy / k, `energy` being the sketch's ||x||^2.

    An estimate of 0 is never heavy.
    """
    return sketch.reaching(table, _least_heavy(k, energy))


def _least_heavy(k: int, energy: float) -> float:
    return max(math.sqrt(energy / k), LEAST)


def heavy_by_chance(numel: int, k: int, columns: int, rows: int, agree: Agree = "majority") -> float:
    """Expected size of H for a normally distributed vector, hardly an entry of which is heavy: what noise alone makes.

    The table is of all entries. A row's estimate is the entry and an error that is about normal, of variance energy /
    columns; a place is in H where enough rows (`agree`) lie beyond sqrt(energy / k) to the same side. The integral over
    entries is Gauss and Hermite's.
    """
    entries, weights = hermegauss(NODES)
    threshold, error = math.sqrt(numel / k), math.sqrt(numel / columns)
    enough = rows // 2 + 1 if agree == "majority" else rows
    majority, probability = range(enough, rows + 1), 0.0
    for entry, weight in zip(entries.tolist(), (weights / weights.sum()).tolist(), strict=True):
        beyond = math.erfc((threshold - entry) / error / math.sqrt(2)) / 2
        probability += weight * sum(math.comb(rows, n) * beyond**n * (1 - beyond) ** (rows - n) for n in majority)
    return numel * 2 * probability


def heavymix(sketch: CountSketch, table: Tensor, k: int, energy: float, rng: torch.Generator) -> Tensor:
    """`k` places, int64 ascending (int32 with kernels): H, filled up with places drawn at random from the rest.

    Where more than `k` are heavy, those with the largest estimates; ties go to the smaller place. `rng` is a CPU
    generator, the same on all ranks. With kernels the host waits, and fills up.
    """
    found = sketch.find(table, k, values := table.new_empty(k))
    if found is not None:
        return kernels.on(table.device, _heavy_and_others(*found, values, sketch.places, _least_heavy(k, energy), rng))
    if _many_reach(sketch, table, k, _least_heavy(k, energy)):
        # Of a table that is too small nearly all places are heavy: listing and comparing them would take long.
        chosen = largest(sketch, table, k)
        weakest = sketch.estimate(table, chosen).abs().min().item() if chosen.numel() == k else 0.0
        if weakest >= _least_heavy(k, energy):
            return chosen
    chosen, places = heavy(sketch, table, k, energy), sketch.places
    if chosen.numel() > k:
        return chosen.index_select(0, top_k(sketch.estimate(table, chosen), k))
    return _filled_up(chosen, k, places, rng)


def _heavy_and_others(
    found: Tensor, state: Tensor, values: Tensor, places: Places, threshold: float, rng: torch.Generator
) -> Tensor:
    """Of what `CountSketch.find` has found, on the host: the heavy ones, filled up with others at random."""
    count = int(state[0])
    heavy = values[:count].cpu().abs() >= threshold
    heavy_ones = found[1 : 1 + count].cpu()[heavy].long()
    return _filled_up(heavy_ones, values.numel(), places.on(torch.device("cpu")), rng).int()


def _filled_up(chosen: Tensor, k: int, places: Places, rng: torch.Generator) -> Tensor:
    """H, ascending, with as many others at random as make `k` places."""
    wanted, rest = k - chosen.numel(), places.numel - chosen.numel()
    if wanted == 0:
        return chosen
    rank = random_subset(rest, wanted, rng).to(chosen.device)
    # The n-th place outside H has as many of H before it as lie below it once each is moved down by its own rank.
    before = places.ranks(chosen) - torch.arange(chosen.numel(), device=chosen.device)
    filled = rank + torch.searchsorted(before, rank, right=True)
    return torch.cat([chosen, places.at(filled)]).sort().values


def _many_reach(sketch: CountSketch, table: Tensor, k: int, threshold: float) -> bool:
    """Whether, by a sample, many more than `k` estimates are at least `threshold`."""
    sample = _sampled(sketch, table, SAMPLE_LEAST)
    hits = int((sample >= threshold).sum())
    return hits * sketch.numel > MANY * k * sample.numel()


def _sampled(sketch: CountSketch, table: Tensor, about: float) -> Tensor:
    """Magnitudes of the estimates at evenly spread places, about `about` of them."""
    stride = max(int(sketch.numel / about), 1) | 1  # odd: meets all channels of a layer alike
    return sketch.estimate(table, torch.arange(0, sketch.numel, stride, device=table.device)).abs_()


def largest(sketch: CountSketch, table: Tensor, k: int) -> Tensor:
    """Places, int64 ascending, of the `k` largest estimates by magnitude; ties to the smaller place, zeros never.

    A sample guesses a threshold that a little more than `k` should reach; where it misled, it is lowered. Exact.
    """
    found = sketch.find(table, k)
    if found is not None:
        places, state = found
        return places[1 : 1 + int(state[0])].long()
    share = k / sketch.numel
    sampled = min(max(SAMPLE_HITS / share, SAMPLE_LEAST), max(SAMPLE_SHARE * sketch.numel, SAMPLE_LEAST))
    sample = _sampled(sketch, table, sampled)
    hits = share * sample.numel()
    rank = min(math.ceil(hits + SAMPLE_SLACK * math.sqrt(hits)) + 1, sample.numel())
    threshold = max(torch.topk(sample, rank, sorted=False).values.min().item(), LEAST)
    for _ in range(TRIES):
        index = sketch.reaching(table, threshold)
        if index.numel() >= k or threshold == LEAST:
            break
        threshold = max(threshold * LOWER, LEAST)
    else:
        index = sketch.reaching(table, LEAST)
    return index if index.numel() <= k else index.index_select(0, top_k(sketch.estimate(table, index), k))


def random_subset(numel: int, count: int, rng: torch.Generator) -> Tensor:
    """`count` different numbers below `numel`, int64 ascending; each such set is equally likely.

    A permutation of many numbers would take long. So some more are drawn than are wanted, and of the different ones
    among them the surplus is left out at random. Where more than half are wanted, those that are not are drawn.
    """
    if numel <= PERMUTED:
        return torch.randperm(numel, generator=rng)[:count].sort().values
    if 2 * count > numel:
        chosen = torch.ones(numel, dtype=torch.bool)
        chosen[random_subset(numel, numel - count, rng)] = False
        return torch.nonzero(chosen).squeeze(1)
    draws = count
    distinct = torch.empty(0, dtype=torch.int64)
    while distinct.numel() < count:
        # Of n draws about n^2 / 2 numel are repetitions: four times as many more, which repeat some numbers themselves.
        draws += 2 * draws * draws // numel + SPARE_DRAWS
        distinct = torch.unique(torch.randint(numel, (draws,), generator=rng))
    kept = torch.ones(distinct.numel(), dtype=torch.bool)
    if distinct.numel() > count:
        kept[random_subset(distinct.numel(), distinct.numel() - count, rng)] = False
    return distinct[kept]
