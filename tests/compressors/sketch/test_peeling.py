"""Invertible look-up tables: what they hold is read again, and how often."""

import pytest
import torch

from wirebench.compressors.sketch.peeling import LOAD, ROWS, LookupTable, key_bytes
from wirebench.errors import UserError

CPU = torch.device("cpu")


def table_of(numel, entries, load, size, seed):
    """A table of `entries` different places at this load, each offered by some ranks; and the sum as a vector."""
    rng = torch.Generator().manual_seed(seed)
    codec = LookupTable(numel, int(entries / load / ROWS), size, seed, CPU)
    union = torch.randperm(numel, generator=rng)[:entries]
    total, table, keys = torch.zeros(numel), torch.zeros(()), torch.zeros((), dtype=codec.key_type)
    for rank in range(min(size, 5)):
        mine = union if rank == 0 else union[torch.rand(entries, generator=rng) < 0.4]
        mine = mine.sort().values
        values = torch.randint(-50, 51, (mine.numel(),), generator=rng).float()
        total[mine] += values
        part, of_keys = codec.fill(mine, values)
        table, keys = table + part, keys + of_keys
    return codec, table, keys, union.sort().values, total


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("numel", "size"), [(60_000, 4), (60_000, 64), (1 << 20, 5000)])
def test_at_its_load_all_entries_are_read_with_their_sums(numel, size):
    """Of 20 tables all: two entries share all three cells with probability 6 LOAD^3 / U, here 0.1 % a table."""
    for seed in range(20):
        codec, table, keys, union, total = table_of(numel, 3000, LOAD, size, seed)
        peeled = codec.peel(table, keys)
        assert peeled.complete
        assert torch.equal(peeled.index, union)
        assert torch.equal(peeled.sums, total[union])
        assert not peeled.rest.any()


def test_above_the_threshold_of_0_818_it_stalls_and_what_was_read_is_right():
    for seed in range(5):
        codec, table, keys, union, total = table_of(60_000, 6000, 0.9, 4, seed)
        peeled = codec.peel(table, keys)
        assert not peeled.complete
        assert 0.2 < peeled.index.numel() / 6000 < 0.5
        assert torch.isin(peeled.index, union).all()
        assert torch.equal(peeled.sums, total[peeled.index])
        # Of the places with the largest estimates of what is left, a third and more hold something; of all, 7 %.
        left = torch.ones(60_000).index_fill_(0, peeled.index, 0) * (total != 0)
        assert left[codec.largest(peeled.rest, 500)].mean() > 1 / 3


def test_below_the_threshold_a_large_table_does_not_stall():
    codec, table, keys, _, _ = table_of(400_000, 30_000, 0.8, 4, 0)
    assert codec.peel(table, keys).complete


@pytest.mark.slow
def test_a_wrong_place_that_passes_the_check_is_put_back():
    """With a check of two bits a quarter of all wrong places pass."""
    complete = 0
    for seed in range(20):
        codec = LookupTable(1 << 16, 900, 64, seed, CPU)
        codec.check_bits = 2
        index = torch.randperm(1 << 16, generator=torch.Generator().manual_seed(seed))[:1500].sort().values
        peeled = codec.peel(*codec.fill(index, torch.ones(index.numel())))
        complete += peeled.complete
        if peeled.complete:
            assert torch.equal(peeled.index, index)
            assert torch.equal(peeled.sums, torch.ones(index.numel()))
    assert complete >= 10


def test_more_ranks_than_a_key_can_count_are_refused():
    assert (key_bytes(1 << 20, 1000, 64), key_bytes(1 << 20, 1000, 128)) == (4, 8)
    assert LookupTable(1 << 20, 1000, 64, 0, CPU).check_bits >= 6
    assert LookupTable(1 << 30, 1000, 1 << 17, 0, CPU).check_bits >= 6
    with pytest.raises(UserError, match="has no room for keys of 16777216 ranks"):
        LookupTable(1 << 24, 1000, 1 << 24, 0, CPU)
