"""A bucket's exchange starts few kernels, however many layers the bucket has."""

import re
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs Triton: pip install triton")

from tests.compressors.kernels.launches import launches
from wirebench import compressors
from wirebench.compressors import kernels
from wirebench.compressors.kernels import segments, selection, thin

MOST = 12
ROOT = Path(__file__).resolve().parents[3]
LONG = {"acp_sgd", "chunk_topk", "demo", "dion", "oktopk", "onebit", "signsgd"}
"""These take many seconds in the interpreter."""


@pytest.fixture(autouse=True)
def few_numbers(monkeypatch) -> None:
    """Kernels run on the CPU, of low-rank methods on small blocks, or it takes minutes."""
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    monkeypatch.setattr(thin, "MOST", 4)
    monkeypatch.setattr(thin, "BLOCK", 16)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's
@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in compressors.available()]
)
def test_an_exchange_starts_few_kernels_however_many_layers(name, monkeypatch):
    monkeypatch.setattr(selection, "PROGRAMS", 1)
    monkeypatch.setattr(selection, "TILE", 4096)
    few, many = (launches(monkeypatch, name, [(8, 6) if i % 3 else (5,) for i in range(n)]) for n in (4, 12))
    assert many.total() <= MOST, many
    assert few == many, many - few


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("acp_sgd", {"rank": 2, "error_feedback": False}),
        ("dion", {"orthonormal": True}),
        ("int8", {"rounding": "nearest", "chunk": 64}),
        ("iwp", {"momentum": 0.0, "rho": 0.0}),
        ("onebit", {"values_per": "layer"}),
        ("powersgd", {"rank": 1}),
        ("powersgd", {"rank": 1, "error_feedback": False}),
        ("qsgd", {"norm": "l2"}),
        ("signsgd", {"form": "vote", "scale": "one", "feedback": False}),
        ("terngrad", {"form": "gather"}),
        ("zero_one_adam", {"kappa": 1, "freeze_step": 1}),
        ("topk", {"density": 0.1, "indices": "bitmap"}),
        ("topk", {"density": 0.1, "indices": "delta", "values": "fp16"}),
        ("gtopk", {"density": 0.1, "indices": "delta"}),
        ("clt_k", {"density": 0.1, "indices": "delta"}),
    ],
    ids=str,
)
def test_so_do_its_other_forms(name, options, monkeypatch):
    """Of layers that take several pieces each, where they are reduced, and that are compressed at a low rank."""
    monkeypatch.setattr(segments, "PIECE", 128)
    segments.pieces_of.cache_clear()
    counts = [
        launches(monkeypatch, name, [(24, 4 + i % 3, 3) if i % 3 else (5,) for i in range(n)], **options)
        for n in (4, 12)
    ]
    assert counts[0] == counts[1]
    assert counts[0].total() <= MOST, counts[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dion", {"rank_fraction": 0.5}),
        ("dion", {"rank_fraction": 0.5, "orthonormal": True}),
        ("powersgd", {"rank": 17, "min_compression_rate": 1.0}),
    ],
    ids=str,
)
def test_factors_of_a_high_rank_take_few_launches(name, options, monkeypatch):
    """As Dion has them by default in layers of some size."""
    monkeypatch.setattr(thin, "MOST", 16)
    shapes = [(40 + i, 36) if i % 2 else (5,) for i in range(4)]
    assert launches(monkeypatch, name, shapes, **options).total() <= MOST


@pytest.mark.slow
def test_a_table_that_stalls_takes_few_launches(monkeypatch):
    seen = launches(monkeypatch, "iblt", [(24, 6), (5,), (24, 6)], density=0.3, room=0.3)
    assert "K:_flag" in seen
    assert seen.total() <= MOST, seen


STATED = re.search(r"`masks=delta` or `smaller` \((\d+)\)", (ROOT / "docs/compressors.md").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("masks", ["delta", "smaller"])
def test_masks_as_gaps_take_as_many_as_docs_state(masks, monkeypatch):
    counts = [
        launches(monkeypatch, "iwp", [(8, 6) if i % 3 else (5,) for i in range(n)], masks=masks, threshold=1.0)
        for n in (4, 12)
    ]
    assert counts[0] == counts[1]
    assert STATED is not None
    assert counts[0].total() <= int(STATED[1]), counts[0]
