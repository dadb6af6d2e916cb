"""Tables of chosen entries in kernels equal their twins in PyTorch, to the bit; programs run at once, as on a GPU."""

import pytest
import torch

from tests.compressors.kernels.at_once import at_once
from tests.compressors.kernels.test_selection_kernels import INPUTS
from wirebench.compressors import kernels
from wirebench.compressors.sketch import peeling
from wirebench.compressors.sketch.count_sketch import CountSketch
from wirebench.compressors.sketch.peeling import LOAD, ROWS, LookupTable
from wirebench.compressors.sparse.selection import top_k

pytest.importorskip("triton")
from wirebench.compressors.kernels import tables, together

CPU = torch.device("cpu")


@pytest.fixture(params=[1, 3])
def many(request, monkeypatch):
    """Programs that run at once, on small tiles."""
    monkeypatch.setattr(together, "TILE", 64)
    monkeypatch.setattr(tables, "BLOCK", 32)
    with at_once(monkeypatch, request.param):
        yield request.param


def same(mine, its):
    """To the bit, but any NaN equals any."""
    return mine.isnan().equal(its.isnan()) and mine.nan_to_num(nan=0).view(torch.int32).equal(
        its.nan_to_num(nan=0).view(torch.int32)
    )


def usable(monkeypatch, yes):
    monkeypatch.setattr(kernels, "usable", lambda x: yes)


@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize(("numel", "k", "columns"), [(1, 1, 3), (5, 7, 2), (300, 40, 16)])
def test_the_largest_and_their_sketch_are_the_twins(many, make, numel, k, columns, monkeypatch):
    x = make(torch.randn(numel, generator=torch.Generator().manual_seed(numel)))
    sketch = CountSketch(numel, 3, columns, 7, agree="all")
    usable(monkeypatch, False)
    wanted, table = top_k(x, k), sketch.sketch_largest(x, k)
    usable(monkeypatch, True)
    places, found = together.largest(x, k, together.zeros(CPU))
    assert places[: int(found)].equal(wanted)
    assert same(sketch.sketch_largest(x, k), table)


@pytest.mark.parametrize(
    ("size", "load", "bits"), [(1, LOAD, 0), (4, LOAD, 0), (4, 0.95, 0), (64, LOAD, 2), (5000, LOAD, 0)]
)
def test_tables_are_filled_and_peeled_as_the_twins(many, size, load, bits, monkeypatch):
    """Also those that stall, those whose check of two bits lets wrong places pass, and those with longer keys."""
    monkeypatch.setattr(peeling, "MOST_PASSES", 10)
    numel, k = 300, 20
    codecs = [LookupTable(numel, int(2 * k / load / ROWS), size, 3, CPU) for _ in range(2)]
    parts: list[list[tuple[torch.Tensor, ...]]] = [[], []]
    for rank in range(min(size, 3)):
        x = torch.randn(numel, generator=torch.Generator().manual_seed(rank if rank < 2 else 0))
        for codec, yes, part in zip(codecs, (False, True), parts, strict=True):
            codec.check_bits = bits or codec.check_bits
            usable(monkeypatch, yes)
            chosen, table, keys = codec.fill_largest(x, k)
            part.append((chosen.listed(), table, keys))
    for wanted, got in zip(*parts, strict=True):
        assert all(mine.equal(its) for mine, its in zip(got, wanted, strict=True))
    table, keys = (sum(each) for each in list(zip(*parts[0], strict=True))[1:])
    usable(monkeypatch, False)
    wanted = codecs[0].peel(table.clone(), keys.clone())
    usable(monkeypatch, True)
    dense = codecs[1].peel_at_once(table, keys)
    infinite, left, _ = dense.state.tolist()
    got = dense.listed(not left)
    assert not infinite
    assert got.complete == wanted.complete
    assert got.index.equal(wanted.index)
    assert same(got.sums, wanted.sums)
    assert same(got.rest, wanted.rest)
