"""Kernels read and write as many bytes as docs/compressors.md says, which is near what a method needs at least."""

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="needs Triton: pip install triton")

from tests.compressors.kernels.launches import moved
from wirebench.compressors import kernels
from wirebench.compressors.kernels import region_messages, selection

DOCS = Path(__file__).resolve().parents[3] / "docs/compressors.md"
TABLE = re.search(r"traffic:begin -->(.*)<!-- traffic:end", DOCS.read_text(), re.DOTALL)
ROWS = [
    (name, float(least), float(copies), float(stated))
    for names, least, copies, stated in re.findall(
        r"^\| (`.*?`) \| (\S+) B \| (\S+) \| (\S+) B \|", TABLE[1] if TABLE else "", re.MULTILINE
    )
    for name in re.findall(r"`(\w+)`", names)
]
OPTIONS: dict[str, dict[str, Any]] = {
    "threshold": {"threshold": 3.0},
    "oktopk": {"density": 0.001},
    "iwp": {"threshold": 50.0, "rho": 0.0},
    "zero_one_adam": {"kappa": 1, "freeze_step": 1},
}
"""Few entries are chosen, whose own traffic is left out of what a method needs; and a step of bits."""
NEAR = 1.3
SIDE = 64
"""A layer has so many rows and columns."""


def test_the_table_has_rows() -> None:
    assert len(ROWS) > 24


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "least", "copies", "stated"), ROWS, ids=[row[0] for row in ROWS])
def test_launches_move_the_bytes_that_docs_state(name, least, copies, stated, monkeypatch):
    """By the difference of two layers and one, which has no part that does not grow."""
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    for module in (selection, region_messages):
        monkeypatch.setattr(module, "PROGRAMS", 1)
    monkeypatch.setattr(selection, "TILE", 4096)
    one, two = (moved(monkeypatch, name, [(SIDE, SIDE)] * n, **OPTIONS.get(name, {})) for n in (1, 2))
    found = (two.total() - one.total()) / SIDE**2
    assert copies == least / 8
    assert stated - 1 <= found <= stated, two - one
    assert found <= NEAR * least
