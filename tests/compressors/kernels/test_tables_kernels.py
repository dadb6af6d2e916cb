"""Tables of chosen entries in kernels equal their twins in PyTorch, to the bit; programs run at once, as on a GPU."""

import pytest
import torch

from tests.compressors.kernels.at_once import at_once
from tests.compressors.kernels.test_selection_kernels import INPUTS
from tests.helpers import DEVICES, whole
from wirebench.compressors import kernels
from wirebench.compressors.common.feedback import Feedback
from wirebench.compressors.kernels import tables, together
from wirebench.compressors.sketch import peeling
from wirebench.compressors.sketch.count_sketch import CountSketch
from wirebench.compressors.sketch.peeling import LOAD, ROWS, LookupTable
from wirebench.compressors.sparse.places import write_average
from wirebench.compressors.sparse.selection import top_k

pytestmark = pytest.mark.sampled(8)


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch):
    """Where kernels run: on the CPU as three programs at once, on small tiles."""
    if request.param == "cuda":
        yield torch.device("cuda")
        return
    monkeypatch.setattr(together, "TILE", 64)
    monkeypatch.setattr(tables, "BLOCK", 32)
    with at_once(monkeypatch, 3):
        yield torch.device("cpu")


def same(mine, its):
    """To the bit, but any NaN equals any."""
    mine, its = mine.cpu(), its.cpu()
    return mine.isnan().equal(its.isnan()) and mine.nan_to_num(nan=0).view(torch.int32).equal(
        its.nan_to_num(nan=0).view(torch.int32)
    )


def usable(monkeypatch, yes):
    monkeypatch.setattr(kernels, "usable", lambda x: yes)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize(("numel", "k", "columns"), [(1, 1, 3), (5, 7, 2), (300, 40, 16)])
def test_the_largest_and_their_sketch_are_the_twins(device, make, numel, k, columns, monkeypatch):
    x = make(torch.randn(numel, generator=torch.Generator().manual_seed(numel)))
    usable(monkeypatch, False)
    wanted, table = top_k(x, k), CountSketch(numel, 3, columns, 7, agree="all").sketch_largest(x, k)
    usable(monkeypatch, True)
    hash = CountSketch(numel, 3, columns, 7, device=device, agree="all").kernels_hash(x)
    assert hash
    got, places, found = tables.fill(x.to(device), k, hash, columns)
    assert places[: int(found)].cpu().equal(wanted)
    assert same(got, table)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize(
    ("count", "k", "masked", "narrow"), [(0, 3, 1, 0), (1, 1, 0, 1), (5, 9, 1, 1), (200, 30, 1, 0)]
)
def test_sums_become_the_average_and_leave_the_memory_as_the_twins_do(
    device, make, count, k, masked, narrow, monkeypatch
):
    numel, rng = 290, torch.Generator().manual_seed(count)
    index = torch.randperm(numel, generator=rng)[:count].sort().values
    total = make(torch.randn(count, generator=rng))
    found = []
    for yes in (False, True):
        where = device if yes else "cpu"
        feedback, bucket = Feedback(0.9, masking=bool(masked)), whole(torch.ones(numel, device=where))
        bucket.__dict__["wire_dtype"] = torch.bfloat16 if narrow else None
        memories = [feedback.slice(bucket, name) for name in feedback.names]
        for number, memory in enumerate(memories):
            memory.copy_(make(torch.randn(numel, generator=torch.Generator().manual_seed(number))))
        usable(monkeypatch, yes)
        if yes:
            velocity = memories[1] if masked else None
            arriving = bucket.narrow(total).to(device)
            together.apply(arriving, index.int().to(device), bucket.grad, memories[0], velocity, k, 3)
        else:
            arriving = bucket.arriving(total)
            kept = top_k(arriving, k)
            feedback.sent_narrow(bucket, index[kept])
            write_average(bucket.grad, index[kept], arriving[kept], 3)
        found.append((bucket.grad, *memories))
    assert all(same(mine, its) for mine, its in zip(*found, strict=True))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("size", "load", "bits"), [(1, LOAD, 0), (4, LOAD, 0), (4, 0.95, 0), (64, LOAD, 2), (5000, LOAD, 0)]
)
def test_tables_are_filled_and_peeled_as_the_twins(device, size, load, bits, monkeypatch):
    """Also those that stall, those whose check of two bits lets wrong places pass, and those with longer keys."""
    monkeypatch.setattr(peeling, "MOST_PASSES", 10)
    numel, k = 300, 20
    cpu = torch.device("cpu")
    codecs = [LookupTable(numel, int(2 * k / load / ROWS), size, 3, each) for each in (cpu, device)]
    parts: list[list[tuple[torch.Tensor, ...]]] = [[], []]
    for rank in range(min(size, 3)):
        x = torch.randn(numel, generator=torch.Generator().manual_seed(rank if rank < 2 else 0))
        for codec, yes, part in zip(codecs, (False, True), parts, strict=True):
            codec.check_bits = bits or codec.check_bits
            usable(monkeypatch, yes)
            chosen, table, keys = codec.fill_largest(x.to(device if yes else cpu), k)
            part.append((chosen.listed().cpu(), table.cpu(), keys.cpu()))
    for wanted, got in zip(*parts, strict=True):
        assert all(mine.equal(its) for mine, its in zip(got, wanted, strict=True))
    table, keys = (sum(each) for each in list(zip(*parts[0], strict=True))[1:])
    usable(monkeypatch, False)
    wanted = codecs[0].peel(table.clone(), keys.clone())
    usable(monkeypatch, True)
    dense = codecs[1].peel_at_once(table.to(device), keys.to(device))
    assert dense
    infinite, left, _ = dense.state.tolist()
    got = dense.listed(not left)
    assert not infinite
    assert got.complete == wanted.complete
    assert got.index.cpu().equal(wanted.index)
    assert same(got.sums, wanted.sums)
    assert same(got.rest, wanted.rest)
