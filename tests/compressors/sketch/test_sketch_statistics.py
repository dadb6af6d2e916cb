"""What a Count-Sketch promises on average. Seeds are fixed, so a test that passes once passes always; how often a right
sketch would fail it with other seeds stands beside it.

A sketch of 15 rows counts as 15 sketches of one row: also where rows share the signs of places, each is unbiased given
them, so that their errors are uncorrelated.
"""

import math

import pytest
import torch
from torch import Tensor

from tests.compressors.twins import estimates_of_all
from wirebench.compressors.sketch.count_sketch import CountSketch

HASHES = ("reference", "block")
both_hashes = pytest.mark.parametrize("hash", HASHES)
NUMEL, COLUMNS, ROWS, SEEDS = 50, 8, 15, 1334
DRAWS = SEEDS * ROWS  # 20010
# Entries of both signs, and all alike, as adds up worst.
VECTORS = {
    "normal": torch.randn(NUMEL, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
    "positive": torch.full((NUMEL,), 2.0, dtype=torch.float64),
}


@pytest.fixture(scope="module", params=HASHES)
def draws(request):
    """(hash, for each vector the estimates of single rows and their sums of squares: DRAWS of each)."""
    estimates: dict[str, list[Tensor]] = {name: [] for name in VECTORS}
    energies: dict[str, list[Tensor]] = {name: [] for name in VECTORS}
    everything = torch.arange(NUMEL)
    for seed in range(SEEDS):
        sketch = CountSketch(NUMEL, ROWS, COLUMNS, seed, request.param)
        cells, signs = (torch.stack(each) for each in zip(*sketch.hash.cells(everything), strict=True))
        for name, x in VECTORS.items():
            table = x.new_zeros(ROWS, COLUMNS).scatter_add_(1, cells, signs * x)
            estimates[name].append(table.gather(1, cells) * signs)
            energies[name].append(table.square().sum(1))
    return request.param, {name: (torch.cat(estimates[name]), torch.cat(energies[name])) for name in VECTORS}


def variances(hash, x):
    """What theory gives for a row's estimates."""
    energy = x.square().sum()
    if hash == "reference":
        return (energy - x.square()) / COLUMNS
    own_block = torch.cat([block.square().sum().expand(block.numel()) for block in x.split(COLUMNS)])
    return (energy - own_block) / COLUMNS


@pytest.mark.slow
@pytest.mark.parametrize("name", VECTORS)
def test_a_row_is_unbiased_and_has_the_variance_of_theory(draws, name):
    hash, drawn = draws
    x, (estimates, energies) = VECTORS[name], drawn[name]
    wanted = variances(hash, x)
    # 50 means beyond 4 standard errors: 0.3 %.
    assert ((estimates.mean(0) - x).abs() < 4 * (wanted / DRAWS).sqrt()).all()
    # A standard error is 1.2 % or less, so 50 of them beyond 6 %: 0.01 %. A block's own share is 16 %.
    torch.testing.assert_close(estimates.var(0), wanted, rtol=0.06, atol=0)
    energy = x.square().sum()
    # One mean beyond 4 standard errors: 0.006 %.
    assert (energies.mean() - energy).abs() < 4 * energies.std() / math.sqrt(DRAWS)
    # Of the textbook's family at most 2 ||x||^4 / c; where all entries are alike, rotated blocks add up: twice that.
    assert energies.var() < 1.1 * (2 if hash == "reference" else 4) * energy**2 / COLUMNS


@both_hashes
def test_the_norm_is_estimated_as_closely_as_the_columns_allow(hash):
    """A row is off by sqrt(2 / c) = 7 %, the median of five by 3.7 %; 4 of those and a tenth for 20 sketches: 0.1 %."""
    for seed in range(20):
        x = torch.randn(20_000, generator=torch.Generator().manual_seed(seed))
        sketch = CountSketch(20_000, 5, 400, seed, hash)
        assert sketch.l2sq(sketch.sketch(x)) == pytest.approx(x.square().sum().item(), rel=0.165)


@both_hashes
def test_noise_drives_estimates_as_far_as_theory_says(hash):
    """Of noise with deviation s in a row, a median of five exceeds t s where three rows do: 3 means of 20 sketches
    beyond 4 standard errors each, which are taken from the sketches themselves: 0.2 %. Blocks make no noise in
    themselves, so theirs is a little less."""
    thresholds, shares, others = torch.tensor([0.5, 1.0, 1.5]), [], 20_000 - (400 if hash == "block" else 1)
    for seed in range(20):
        x = torch.randn(20_000, generator=torch.Generator().manual_seed(seed))
        sketch = CountSketch(20_000, 5, 400, seed, hash)
        noise = (estimates_of_all(sketch, sketch.sketch(x)) - x).abs() / math.sqrt(others / 400)
        shares.append((noise > thresholds[:, None]).double().mean(1))
    deviation, share = torch.std_mean(torch.stack(shares), 0)
    tail = 0.5 * torch.erfc(thresholds.double() / math.sqrt(2))
    wanted = 2 * sum(math.comb(5, n) * tail**n * (1 - tail) ** (5 - n) for n in (3, 4, 5))
    assert ((share - wanted).abs() < 4 * deviation / math.sqrt(20)).all()
    assert (4 * deviation / math.sqrt(20) < 0.4 * wanted).all()
