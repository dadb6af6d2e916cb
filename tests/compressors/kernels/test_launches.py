"""A bucket's exchange starts few kernels, however many layers the bucket has."""

import pytest

pytest.importorskip("triton")

from tests.compressors.kernels.launches import launches
from wirebench import compressors
from wirebench.compressors import kernels
from wirebench.compressors.kernels import selection

MOST = 12


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's
@pytest.mark.parametrize("name", compressors.available())
def test_an_exchange_starts_few_kernels_however_many_layers(name, monkeypatch):
    monkeypatch.setattr(kernels, "INTERPRETED", True)
    monkeypatch.setattr(selection, "PROGRAMS", 1)
    monkeypatch.setattr(selection, "TILE", 4096)
    few, many = (launches(monkeypatch, name, [(8, 6) if i % 3 else (5,) for i in range(n)]) for n in (16, 48))
    assert many.total() <= MOST, many
    assert few == many, many - few
