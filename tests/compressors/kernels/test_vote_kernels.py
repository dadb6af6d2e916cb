"""Kernels of votes: exchanges give what they give in PyTorch, to the bit; on the CPU in Triton's interpreter."""

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tests.helpers import DEVICES, answer_all, both, lay_out
from wirebench import compressors
from wirebench.compressors.bits.blocks import Run
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.flat import Bucket

pytest.importorskip("triton", reason="needs Triton: pip install triton")
import triton
import triton.language as tl

from tests.compressors.kernels.at_once import at_once
from wirebench.compressors.kernels import index_codes
from wirebench.compressors.kernels import segments as segments_module
from wirebench.compressors.kernels import votes as votes_module

NOT_FINITE = "ignore::RuntimeWarning"
"""NumPy's warning."""
pytestmark = [pytest.mark.sampled(5), pytest.mark.filterwarnings(NOT_FINITE)]
RANKS = 3
LAYOUTS = {
    "one element": [(1,)],
    "small layers": [(5,), (1,), (3, 2), (2,), (9, 5), (1,)],
    "larger than a tile": [(20, 30), (7,), (64, 9)],
    "161 layers": [(number % 6 + 1,) for number in range(161)],
}
OF_LAYOUTS = [
    pytest.param(shapes, id=name, marks=[pytest.mark.slow] * (name == "161 layers")) for name, shapes in LAYOUTS.items()
]


@pytest.mark.parametrize("shapes", OF_LAYOUTS)
def test_masks_as_gaps_of_all_layouts(shapes, device, monkeypatch):
    """As many ranks have masks as gaps as have fewer so."""
    assert_same(monkeypatch, device, lay_out(shapes), masks="smaller", threshold=1.0, voters=3)


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch) -> Iterator[torch.device]:
    """Where kernels run, on the CPU as three programs at once; a tile has few places, and a program several tiles."""
    for name, value in (("BYTES", 16), ("PROGRAMS", 4), ("PARTS", 2), ("GAPS", 16)):
        monkeypatch.setattr(votes_module, name, value)
    for name, value in (("PIECE", 32), ("LANES", 4)):
        monkeypatch.setattr(segments_module, name, value)
    monkeypatch.setattr(index_codes, "TILE", 32)
    segments_module.pieces_of.cache_clear()
    with at_once(monkeypatch, 3) if request.param == "cpu" else nullcontext():
        yield torch.device(request.param)


def steps(device: torch.device, layers, bad: float | None = None, narrow: bool = False, **options) -> list[Tensor]:
    """What all ranks have after two steps, and each step's average."""
    methods = [compressors.build("iwp", **{"rho": 0.0} | options) for _ in range(RANKS)]
    begin, stop = layers[0].start, layers[-1].stop
    found = []
    for step in range(2):
        chance = torch.Generator().manual_seed(step)
        weights = torch.randn(stop - begin, generator=chance)
        buckets = []
        for rank in range(RANKS):
            grad = torch.randn(stop - begin, generator=chance) * 0.1
            for before, after in pairwise(layers):
                grad[before.stop - begin : after.start - begin] = 0.0
            grad[:1] *= 1e-42
            if bad is not None and step == 1 and rank == 1:
                grad[-1] = bad
            wire = torch.bfloat16 if narrow else None
            buckets.append(Bucket(0, grad.to(device), weights.to(device), layers, layers, wire))
        worlds = [ExchangeContext(rank, RANKS, step, epoch=step) for rank in range(RANKS)]
        answers = answer_all([m.exchange(b, w) for m, b, w in zip(methods, buckets, worlds, strict=True)])
        found += [each.clone() for each in answers]
    return found + [state for method in methods for _, state in sorted(method.state_dict().items())]


def assert_same(monkeypatch, *args, **options) -> None:
    twin, mine = both(monkeypatch, lambda: steps(*args, **options))
    torch.testing.assert_close(mine, twin, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("shapes", OF_LAYOUTS)
def test_exchanges_of_all_layouts(shapes, device, monkeypatch):
    """Ranks choose for some layers, or for all, or for none."""
    assert_same(monkeypatch, device, lay_out(shapes))


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.0, "epsilon": 0.0},
        {"nesterov": True, "masking": True, "waiting": True},
        {"mode": "layerwise", "schedule": (0.02, 0.05), "schedule_epochs": (1,)},
        {"narrow": True, "masking": True, "threshold": 0.2},
        {"threshold": 0.0, "draw": "bucket"},
        {"threshold": 1e6},
        {"bad": float("nan")},
        {"bad": -float("inf"), "voters": 1},
        {"masks": "delta", "mode": "layerwise", "schedule": (0.02, 0.05), "schedule_epochs": (1,)},
        {"masks": "delta", "bad": float("inf")},
        {"masks": "delta", "waiting": True, "voters": 3},
        {"masks": "smaller", "threshold": 0.5},
        {"masks": "smaller", "threshold": 3.0, "voters": 1, "draw": "bucket"},
    ],
    ids=str,
)
def test_exchanges_of_all_options(options, device, monkeypatch):
    """There is a gap within a run of layers, as those that go dense leave it."""
    layers = lay_out([(5,), (8, 6), (33,), (9, 5), (3,)])
    assert_same(monkeypatch, device, (*layers[1:2], *layers[3:]), **options)


def test_luck_lowers_what_has_to_be_exceeded(device):
    """By min(1, U / rho), with U of Triton's generator."""
    numel, groups = 300, (Run(100, 1), Run(200, 1))
    chance = torch.Generator().manual_seed(1)
    v, w = (torch.randn(numel, generator=chance).to(device) for _ in range(2))
    ballot = votes_module.Ballot(v, 0.0, 0.5, 1 << 60 | 7)
    message = votes_module.choose(v, w, groups, ballot, [1.0, 2.0], [1, 1], b"\x05", 1 + -(-numel // 8), 2)[8:]
    uniform = torch.empty(512, device=device)
    _uniform[(1,)](torch.tensor([ballot.seed], device=device), uniform, N=512)
    luck = (uniform[:numel] / 0.5).clamp(max=1.0)
    assert 0.4 < float((luck < 1).float().mean()) < 0.6
    threshold = torch.where(torch.arange(numel) < 100, 1.0, 2.0).to(device)
    chosen = v.abs() > (w * threshold).abs() * luck
    bits = (message[1:, None] >> torch.arange(8, device=device)) & 1
    assert message[0] == 5
    assert bits.flatten()[:numel].bool().equal(chosen)
    assert not bits.flatten()[numel:].any()


@triton.jit
def _uniform(seed, out, N: tl.constexpr):
    places = tl.arange(0, N).to(tl.int64)
    tl.store(out + places, tl.rand(tl.load(seed), places))
