"""The Count-Sketch against hand-made cases and its plain twin, with both hashes."""

import math
from typing import cast

import pytest
import torch

from tests.compressors.twins import estimates_of_all, estimates_reference, sketch_reference
from wirebench.compressors.sketch import block_hash
from wirebench.compressors.sketch.block_hash import BlockHash
from wirebench.compressors.sketch.count_sketch import MAX_ROWS, CountSketch
from wirebench.compressors.sketch.reference_hash import PRIME, ReferenceHash

HASHES = ("reference", "block")
both_hashes = pytest.mark.parametrize("hash", HASHES)

# (numel, rows, columns): one element; one cell; narrower than a block; whole and broken blocks; indices and slices.
SHAPES = [(1, 1, 1), (5, 3, 1), (7, 3, 20), (12, 5, 4), (100, 7, 8), (101, 9, 33), (300, 15, 64), (9000, 5, 4096)]
SHAPES += [(3000, 5, 4096), (8200, 1, 4100)]

# d = 12, r = 3, c = 4, seed 42: what any implementation of the reference hash must give.
COEFFICIENTS = [
    [731501284, 71743339, 565472769, 1048881043, 935384230, 2030649085],
    [889863062, 948607876, 961081028, 1713972768, 1615068756, 1098867932],
    [102375931, 1378655391, 1467438358, 899996029, 677800219, 1949408806],
]
CELLS = [
    [3, 3, 3, 0, 0, 0, 1, 1, 1, 2, 2, 2],
    [0, 2, 1, 3, 2, 0, 2, 1, 3, 2, 0, 2],
    [3, 2, 1, 0, 3, 2, 1, 0, 0, 3, 2, 1],
]
SIGNS = [
    [1, 1, -1, -1, -1, 1, 1, 1, 1, 1, -1, -1],
    [-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 1],
    [-1, -1, -1, -1, -1, -1, 1, -1, -1, 1, 1, -1],
]
VECTOR = [0.0, 0.0, 7.0, 0.0, -1.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 2.0]
TABLE = [[1, 3, -2, -7], [0, -10, 3, 0], [-3, -9, 0, 1]]
ESTIMATES = [-1, -3, 9, 0, -1, 0, -3, 3, 3, -2, 0, 3]

ALL = torch.arange(2000)


def whole_numbers(numel, seed=0):
    return torch.randint(-6, 7, (numel,), generator=torch.Generator().manual_seed(seed)).float()


def all_cells(sketch):
    return list(sketch.hash.cells(torch.arange(sketch.numel)))


def test_the_reference_hash_is_the_known_one():
    sketch = CountSketch(12, 3, 4, 42, "reference")
    assert cast(ReferenceHash, sketch.hash).coefficients == COEFFICIENTS
    assert [cell.tolist() for cell, _ in all_cells(sketch)] == CELLS
    assert [sign.tolist() for _, sign in all_cells(sketch)] == SIGNS


def test_the_reference_sketch_by_hand():
    sketch = CountSketch(12, 3, 4, 42, "reference")
    table = sketch.sketch(torch.tensor(VECTOR))
    assert table.tolist() == TABLE
    assert estimates_of_all(sketch, table).tolist() == ESTIMATES
    assert sketch.l2sq(table) == 91


def test_the_polynomials_hold_for_large_places_and_without_memory(monkeypatch):
    monkeypatch.setattr("wirebench.compressors.sketch.reference_hash.REMEMBERED", 0)
    sketch = CountSketch(2**31 - 1, 3, 1000, 7, "reference")
    places = [0, 1, 2**24 + 1, 2**30, 2**31 - 2]
    coefficients, cells = cast(ReferenceHash, sketch.hash).coefficients, sketch.hash.cells(torch.tensor(places))
    for (a1, a0, q3, q2, q1, q0), (cell, sign) in zip(coefficients, cells, strict=True):
        assert cell.tolist() == [(a1 * i + a0) % PRIME % 1000 for i in places]
        assert sign.tolist() == [1 if (q3 * i**3 + q2 * i**2 + q1 * i + q0) % PRIME % 2 else -1 for i in places]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("shape", SHAPES)
@both_hashes
def test_tables_estimates_and_places_are_the_twins(hash, shape):
    numel, rows, columns = shape
    sketch, x = CountSketch(numel, rows, columns, 3, hash), whole_numbers(numel)
    cells = all_cells(sketch)
    table = sketch.sketch(x)
    assert torch.equal(table, sketch_reference(x, rows, columns, cells))
    estimates = estimates_reference(table, cells)
    assert torch.equal(estimates_of_all(sketch, table), estimates)
    for threshold in (0.0, 1e-37, 0.5, 1.0, 4.0, 9.0, 1e9):
        wanted = torch.nonzero(estimates.abs() >= threshold).squeeze(1)
        assert torch.equal(sketch.reaching(table, threshold), wanted)


@pytest.mark.parametrize("rows", range(1, MAX_ROWS + 1, 2))
def test_majorities_are_counted_right_where_all_rows_agree_and_where_half_of_them_do(rows):
    sketch = CountSketch(64, rows, 64, 1)
    cells = all_cells(sketch)
    for agreeing in range(rows + 1):
        for value in (5.0, -5.0):
            table = torch.zeros(rows, 64)
            for row, (cell, sign) in list(zip(table, cells, strict=True))[:agreeing]:
                row[cell[17]] = value * sign[17]
            assert (17 in sketch.reaching(table, 5.0).tolist()) == (2 * agreeing > rows)


def test_a_threshold_between_two_floats_leaves_the_lower_one_out():
    sketch = CountSketch(1, 1, 1, 0)
    below = 1.0
    above = math.nextafter(1.0, 2.0)  # no fp32 number
    table = sketch.sketch(torch.tensor([1.0]))
    assert sketch.reaching(table, below).tolist() == [0]
    assert sketch.reaching(table, above).tolist() == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("numel", "rows", "columns"), [(300, 5, 64), (9000, 5, 4096)])
@both_hashes
def test_a_vector_and_a_table_are_read_and_left_as_they_are(hash, numel, rows, columns, dtype):
    sketch = CountSketch(numel, rows, columns, 9, hash)
    x = whole_numbers(numel).to(dtype)
    table = sketch.sketch(x)
    assert torch.equal(x, whole_numbers(numel).to(dtype))
    kept, energy = table.clone(), sketch.l2sq(table)
    estimates_of_all(sketch, table)
    sketch.reaching(table, 2.0)
    assert torch.equal(table, kept)
    assert sketch.l2sq(table) == energy == sketch.l2sq(table.float())


@both_hashes
def test_seeds_alone_decide(hash):
    x = torch.randn(3000, generator=torch.Generator().manual_seed(0))
    tables = [CountSketch(3000, 3, 100, seed, hash).sketch(x) for seed in (1, 1, 2)]
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], tables[2])


def test_slices_and_windows_are_the_same_hash(monkeypatch):
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).mul_(100).round_()
    sliced = CountSketch(10_000, 5, 300, 4)
    monkeypatch.setattr(block_hash, "SLICED_COLUMNS", 1)
    windows, sliced = sliced, CountSketch(10_000, 5, 300, 4)
    assert (cast(BlockHash, windows.hash).sliced, cast(BlockHash, sliced.hash).sliced) == (False, True)
    table = sliced.sketch(x)
    assert torch.equal(table, windows.sketch(x))
    for threshold in (10.0, 300.0):
        assert torch.equal(sliced.reaching(table, threshold), windows.reaching(table, threshold))


@pytest.mark.parametrize("columns", [50, 5000])
def test_a_vector_in_many_pieces(columns, monkeypatch):
    monkeypatch.setattr(block_hash, "CPU_FLOATS", 300)
    monkeypatch.setattr(block_hash, "CPU_BYTES", 700)
    sketch, x = CountSketch(12_345, 3, columns, 4), whole_numbers(12_345)
    cells, table = all_cells(sketch), sketch.sketch(x)
    assert torch.equal(table, sketch_reference(x, 3, columns, cells))
    wanted = torch.nonzero(estimates_reference(table, cells).abs() >= 7).squeeze(1)
    assert torch.equal(sketch.reaching(table, 7.0), wanted)


def test_neighbours_in_a_block_never_share_a_cell():
    sketch = CountSketch(1000, 5, 64, 1)
    for cell, _ in all_cells(sketch):
        for block in cell.split(64):
            assert block.unique().numel() == block.numel()


def test_a_buffer_that_was_used_leaves_no_trace():
    sketch = CountSketch(150, 3, 64, 1)
    table = sketch.sketch(whole_numbers(150))
    sketch.sketch(torch.full((150,), 1e9))
    assert torch.equal(sketch.sketch(whole_numbers(150)), table)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 63, 149])
@both_hashes
def test_the_norm_tells_of_whatever_is_not_finite(hash, place, bad):
    sketch, x = CountSketch(150, 5, 16, 1, hash), torch.zeros(150)
    x[place] = bad
    assert math.isnan(sketch.l2sq(sketch.sketch(x)))


@both_hashes
def test_the_norm_of_very_small_and_very_large_numbers(hash):
    sketch = CountSketch(100, 5, 1000, 1, hash)
    for value in (1e-30, 1e30):
        x = torch.zeros(100)
        x[3] = value
        assert sketch.l2sq(sketch.sketch(x)) == pytest.approx(value * value)


def test_places_beyond_what_a_float_can_count_are_exact():
    numel = 2**24 + 3
    sketch, x = CountSketch(numel, 3, 1 << 20, 1), torch.zeros(numel)
    x[numel - 2 :] = torch.tensor([3.0, 4.0])
    table = sketch.sketch(x)
    found = sketch.reaching(table, 3.5)
    assert numel - 1 in found.tolist()
    assert numel - 2 not in found.tolist()
    assert sketch.estimate(table, torch.tensor([numel - 2, numel - 1])).tolist() == [3.0, 4.0]


@pytest.mark.parametrize("rows", [0, 2, 17])
def test_rows_are_odd_and_few(rows):
    with pytest.raises(AssertionError, match="rows are odd"):
        CountSketch(10, rows, 4, 0)


@pytest.mark.parametrize("rows", [1, 3, 5, 7])
@pytest.mark.parametrize("hash", ["block", "reference"])
def test_where_all_rows_have_to_agree_the_smallest_magnitude_counts(hash, rows):
    """Of few entries: each is found, no other place whose cells are not all taken, and none by both signs."""
    x = torch.zeros(2000)
    entries = torch.arange(0, 2000, 40)
    x[entries] = torch.randint(1, 9, (entries.numel(),), generator=torch.Generator().manual_seed(rows)).float()
    sketch = CountSketch(x.numel(), rows, 64, 3, hash, agree="all")
    table = sketch.sketch(x)
    of_rows = torch.stack([row[cell] * sign for row, (cell, sign) in zip(table, sketch.hash.cells(ALL), strict=True)])
    up, down = (of_rows > 0).all(0), (of_rows < 0).all(0)
    wanted = torch.where(up, of_rows.amin(0), torch.where(down, of_rows.amax(0), 0.0))
    assert torch.equal(sketch.estimate(table, ALL), wanted)
    for threshold in (1.0, 3.0, 5.5):
        assert torch.equal(sketch.reaching(table, threshold), torch.nonzero(wanted.abs() >= threshold).squeeze(1))
