"""Kernels of groups and of fields: each equals its twin in PyTorch; on the CPU in Triton's interpreter."""

import pytest
import torch
from torch import Tensor

from tests import helpers
from tests.helpers import DEVICES
from wirebench.compressors import kernels
from wirebench.compressors.bits import blocks
from wirebench.compressors.bits.blocks import MAGNITUDES, SQUARES, Groups, Run
from wirebench.compressors.bits.levels import Levels
from wirebench.compressors.bits.signs import Signs
from wirebench.compressors.onebit import means
from wirebench.utils.rng import generator

pytest.importorskip("triton", reason="needs Triton: pip install triton")
from wirebench.compressors.kernels import fields as fields_module
from wirebench.compressors.kernels import segments as segments_module

LAYOUTS = {
    "one element": (Run(1, 1),),
    "small layers": (Run(1, 1), Run(5, 1), Run(2, 3), Run(3, 1), Run(60, 1)),
    "a layer of many tiles": (Run(7, 1), Run(300, 1), Run(1, 1)),
    "chunks and a rest": (Run(64, 4), Run(10, 1)),
    "rows": (Run(70, 3), Run(9, 1), Run(40, 2)),
    "around a tile": (Run(127, 1), Run(129, 1)),
}


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch) -> torch.device:
    """Where kernels run; tiles and pieces are small, so that a few elements are several."""
    for module, name, value in (
        (fields_module, "TILE", 128), (fields_module, "LEAST_WORDS", 8),
        (segments_module, "PIECE", 32), (segments_module, "LANES", 4),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    segments_module.pieces_of.cache_clear()
    return torch.device(request.param)


def filled(groups: Groups, device: torch.device) -> Tensor:
    numel = sum(run.width * run.groups for run in groups)
    x = torch.randn(numel, generator=torch.Generator().manual_seed(numel))
    x[3::7] = 0.0
    return x.to(device)


def both(monkeypatch, call, per_word: int = 1):
    """What the twin gives, with blocks as large as the kernel's tiles, and what the kernel gives."""
    tile = fields_module.words_of_tile(per_word) * per_word
    for name in ("CPU_BLOCK", "GPU_BLOCK"):
        monkeypatch.setattr(blocks, name, tile)
    return helpers.both(monkeypatch, call)


def assert_close(found, twin, scale: Tensor | float = 1.0) -> None:
    torch.testing.assert_close(found, twin, rtol=1e-6, atol=float(torch.as_tensor(scale).abs().max()) * 1e-6)


@pytest.mark.parametrize("groups", LAYOUTS.values(), ids=LAYOUTS)
def test_reductions_equal_their_twins(groups, device, monkeypatch):
    """The largest to the bit, sums within the rounding of another order."""
    x = filled(groups, device)

    def all_of() -> list[Tensor]:
        sums = [blocks.reduce(x, groups, each)[0] for each in (SQUARES, MAGNITUDES)]
        return [blocks.largest(x, groups), *sums, *means(x, groups), blocks.mean_magnitudes(x, groups)]

    twin, found = both(monkeypatch, all_of)
    assert found[0].equal(twin[0])
    spread = segments_module.reduced(x, groups, "spread")
    assert spread[0].equal(found[1])
    assert spread[1].equal(found[0])
    for one, other in zip(found[1:], twin[1:], strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e-42])
def test_what_is_not_finite_or_tiny_reaches_its_group_alone(bad, device, monkeypatch):
    groups = (Run(40, 2), Run(3, 1))
    x = filled(groups, device)
    x[50] = bad
    measures = (blocks.largest, blocks.mean_magnitudes)
    twin, found = both(monkeypatch, lambda: [*(each(x, groups) for each in measures), *means(x, groups)])
    for one, other in zip(found, twin, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, rtol=1e-6, atol=1e-6)


@pytest.mark.sampled(6)
@pytest.mark.paired
@pytest.mark.parametrize("groups", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(
    ("levels", "width", "noisy", "limited"),
    [(127, 8, True, False), (7, 4, False, False), (1, 3, True, True), (127, 32, True, False)],
)
def test_levels_equal_their_twin(groups, levels, width, noisy, limited, device, monkeypatch):
    """Words, what stays behind, and both ways back."""
    x = filled(groups, device)
    if limited:
        groups = tuple(Run(run.width, 1) for run in groups for _ in range(run.groups))
    scales = blocks.largest(x, groups)

    def all_of() -> list[Tensor]:
        code, left = Levels(levels, width, groups, device), x.clone()
        rng = generator("test", 1, device=device) if noisy else None
        limits = scales * 0.7 if limited else None
        words = code.encode(left, scales, rng, feedback=not limited, limits=limits)
        sums = code.decode_sum([words], scales, torch.empty_like(x))
        return [words, left, sums, code.decode_each([(words, scales), (words, 2 * scales)], torch.empty_like(x))]

    twin, found = both(monkeypatch, all_of, 32 // width)
    assert found[0].equal(twin[0])
    for one, other in zip(found[1:], twin[1:], strict=True):
        assert_close(one, other, scales)


@pytest.mark.sampled(5)
@pytest.mark.paired
@pytest.mark.parametrize("groups", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(("width", "raised", "below"), [(1, False, False), (1, False, True), (3, True, False)])
@pytest.mark.parametrize("opposed", [False, True])
def test_signs_equal_their_twin(groups, width, raised, below, opposed, device, monkeypatch):
    """Words, what stays behind, the average and the vote."""
    x = filled(groups, device)
    high = blocks.largest(x, groups)
    low = None if opposed else -high / 3

    def all_of() -> list[Tensor]:
        code, left = Signs(groups, device, width, raised), x.clone()
        words = code.encode(left, (high, low), zeros_are_negative=below)
        vote = code.decode_vote([words, words], 1.0, high, torch.empty_like(x))
        if width > 1:
            return [words, vote, left]
        ranks = [(words, high, low), (words, 2 * high, low)]
        return [words, vote, left, code.decode(ranks, torch.empty_like(x))]

    twin, found = both(monkeypatch, all_of, 32 // width)
    assert found[0].equal(twin[0])
    assert found[1].equal(twin[1])
    for one, other in zip(found[2:], twin[2:], strict=True):
        assert_close(one, other, high)


def test_messages_that_lie_side_by_side_are_not_copied():
    """Rows of one tensor are a view, also of parts of it; others are stacked."""
    rows = torch.arange(12).view(3, 4)
    assert kernels.stacked([row[1:] for row in rows]).data_ptr() == rows[0, 1:].data_ptr()
    for apart in ([rows[0], rows[2], rows[1]], [rows[0], rows[0]], [rows[0].clone(), rows[1]]):
        assert kernels.stacked(apart).equal(torch.stack(apart))
