"""Codes of places in kernels equal their twins in PyTorch; on the CPU in Triton's interpreter."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from tests.helpers import DEVICES, both, whole
from wirebench.compressors import kernels
from wirebench.compressors.common.feedback import Feedback
from wirebench.compressors.sparse.base import average_of, taken
from wirebench.compressors.sparse.encoding import SparseCode

pytest.importorskip("triton", reason="needs Triton: pip install triton")
from tests.compressors.kernels.at_once import at_once
from wirebench.compressors.kernels import index_codes

NUMEL = 700


def chosen(numel: int, *runs: range) -> tuple[int, list[int]]:
    return numel, [place for run in runs for place in run]


CASES = {
    "none": chosen(NUMEL),
    "one of one": chosen(1, range(1)),
    "all": chosen(65, range(65)),
    "first and last": chosen(NUMEL, range(1), range(NUMEL - 1, NUMEL)),
    "a block": chosen(NUMEL, range(31, 31 + 32)),
    "a block and one": chosen(NUMEL, range(3, 3 + 33)),
    "gaps of one and two bytes": chosen(NUMEL, range(5, 300, 128), range(300, NUMEL, 129)),
    "crowds": chosen(NUMEL, range(40), range(200, 290), range(600, 640)),
}
FAR = [0, 1 << 7, 1 << 14, 1 << 21, (1 << 28) + (1 << 22), (1 << 31) - 2]
"""Gaps of each number of bytes."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TILE", 16), ("PROGRAMS", 3), ("WORDS", 4), ("LANES", 8)):
        monkeypatch.setattr(index_codes, name, value)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("indices", ["bitmap", "delta"])
@pytest.mark.parametrize("case", CASES)
def test_codes_are_the_twins_and_give_their_places_back(case, indices, device, monkeypatch):
    """Of int64 and int32; and where a code begins at any byte."""
    numel, listed = CASES[case]
    index, code = torch.tensor(listed, dtype=torch.int64), SparseCode("fp32", indices)
    expected = code.encode_indices(index, numel)
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    for kind in (torch.int64, torch.int32):
        found = code.encode_indices(index.to(device, kind), numel)
        assert found.cpu().equal(expected)
    for shift in (0, 1):
        apart = torch.full((shift + found.numel() + 9,), 77, dtype=torch.uint8, device=device)
        apart[shift : shift + found.numel()] = found
        assert code.decode_indices(apart[shift : shift + found.numel()], numel).cpu().equal(index)


@pytest.mark.parametrize("device", DEVICES)
def test_gaps_take_up_to_five_bytes(device, monkeypatch):
    index, code = torch.tensor(FAR), SparseCode("fp32", "delta")
    expected = code.encode_indices(index, 2**31 - 1)
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    found = code.encode_indices(index.to(device), 2**31 - 1)
    assert found.cpu().equal(expected)
    assert code.decode_indices(found, 2**31 - 1).cpu().equal(index)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_codes_that_programs_make_together_are_the_twins(case, device, monkeypatch):
    """Gaps between places, and between bits; and all ranks' places, of messages that lie anyhow."""
    numel, listed = CASES[case]
    index = torch.tensor(listed, dtype=torch.int64)
    code, bits = SparseCode("bf16", "delta"), SparseCode("bf16", "bitmap")
    gaps, bitmap = code.encode_indices(index, numel), bits.encode_indices(index, numel)
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    room, zeros = torch.full((numel + 8,), 77, dtype=torch.uint8, device=device), torch.zeros(5, dtype=torch.int32)
    first, second, third, fourth, length = zeros.to(device).split(1)
    with at_once(monkeypatch, 3) if device == "cpu" else nullcontext():
        form = torch.zeros(2, dtype=torch.uint8, device=device)
        index_codes.gaps_of_bits(bitmap.to(device), numel, room, fourth, length, gaps.numel(), form[1:])
        assert room.eq(77).all(), "a code that is not shorter is not written"
        index_codes.gaps_of_bits(bitmap.to(device), numel, room, first, length, gaps.numel() + 1, form[:1])
        ones = index_codes.gaps_at_once(index.to(device, torch.int32), second)
        values = torch.ones(2 * index.numel(), dtype=torch.uint8)
        messages = [torch.cat([gaps, values]), gaps[:0], torch.cat([code.encode_indices(index[:0], numel), values[:0]])]
        apart = torch.cat([torch.ones(1, dtype=torch.uint8), *messages]).to(device)
        lying = apart[1:].split([each.numel() for each in messages])
        rows, table = index_codes.listed(third, lying, 2, None, [0, 5, 9])
    assert room[: int(length)].cpu().equal(gaps)
    assert form.tolist() == [1, 0]
    assert ones.cpu().equal(torch.cat([torch.ones(4, dtype=torch.uint8), gaps]))
    assert rows[0, : index.numel()].long().cpu().equal(index)
    assert table[1:3].tolist() == [[index.numel(), 0, 0], [0, 5, 9]]
    assert table[3, 0] == gaps.numel()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("values", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("indices", ["bitmap", "delta"])
def test_messages_of_several_ranks_are_averaged_as_the_twin_does(indices, values, device, monkeypatch):
    """One of them without entries, one not finite; the rest is what `taken` leaves."""
    code = SparseCode(values, indices)

    def call() -> Any:
        generator, messages, kept = torch.Generator().manual_seed(3), [], []
        for many in (0, 5, NUMEL // 3):
            bucket, feedback = whole(torch.randn(NUMEL, generator=generator).to(device)), Feedback(0.5)
            index = torch.randperm(NUMEL, generator=generator)[:many].sort().values.to(device)
            for name in feedback.names:
                feedback.slice(bucket, name).copy_(bucket.grad)
            feedback.slice(bucket)[index[1:2]] = float("inf")
            messages.append(taken(feedback, bucket, index, code)[0])
            kept += [feedback.slice(bucket, name) for name in feedback.names]
        return average_of(torch.ones(NUMEL, device=device), messages, code, 3), messages, kept

    twin, mine = both(monkeypatch, call)
    torch.testing.assert_close(mine, twin, rtol=0, atol=0, equal_nan=True)
