"""Sketches in kernels equal their twins in PyTorch; on the CPU in Triton's interpreter."""

import pytest
import torch

from tests.helpers import DEVICES
from wirebench.compressors import kernels
from wirebench.compressors.sketch.count_sketch import CountSketch
from wirebench.compressors.sketch.heavy_hitters import largest
from wirebench.compressors.sparse.gaps import Places
from wirebench.gradient.flat import Layer

pytest.importorskip("triton", reason="needs Triton: pip install triton")
from wirebench.compressors.kernels import selection as selection_module
from wirebench.compressors.kernels import sketches as sketches_module

pytestmark = pytest.mark.sampled(8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("numel", "rows", "columns", "agree"),
    [(1, 1, 4, "majority"), (200, 3, 70, "majority"), (150, 5, 33, "all"), (90, 7, 90, "majority")],
)
def test_tables_estimates_and_choices_are_the_twins(numel, rows, columns, agree, device, monkeypatch):
    """Also which places reach a threshold, and which are the largest, without those in a gap."""
    for module, name, value in ((sketches_module, "BLOCK", 256), (selection_module, "PROGRAMS", 2)):
        monkeypatch.setattr(module, name, value)
    x = torch.randn(numel, generator=torch.Generator().manual_seed(numel)).to(device)
    layers = (Layer("a", 0, numel, 1),) if numel < 9 else (Layer("a", 0, 5, 1), Layer("b", 8, numel, 1))
    found = []
    for usable in (False, True):
        monkeypatch.setattr(kernels, "usable", lambda x, usable=usable: usable)
        sketch = CountSketch(
            numel, rows, columns, 7, device=device, places=Places(layers, torch.device(device)), agree=agree
        )
        table = sketch.sketch(x)
        found.append((table, sketch.estimate(table, torch.arange(numel, device=device)), sketch.reaching(table, 0.8),
                      largest(sketch, table, max(numel // 20, 1)), sketch.estimates(table)))  # fmt: skip
    (table, estimates, reached, chosen, none), (mine, _, my_reached, my_chosen, all_of_mine) = found
    assert none is None
    torch.testing.assert_close(mine, table, rtol=1e-6, atol=1e-6)
    if numel > 9:
        estimates[5:8] = 0
    torch.testing.assert_close(all_of_mine, estimates, rtol=1e-6, atol=1e-6)
    assert my_reached.equal(reached)
    assert my_chosen.equal(chosen)


def test_a_table_with_nan_has_estimates_of_nothing(monkeypatch):
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    sketch = CountSketch(50, 3, 20, 7)
    assert sketch.reaching(torch.full((3, 20), float("nan")), 0.5).numel() == 0
