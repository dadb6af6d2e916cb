"""Studies' figures are not drawn: Vega takes a second for each, and what it draws is for the tests of figures.

A picture still says which chart it was made of, so that reports are told apart by their figures as well.
"""

import io
from pathlib import Path

import pytest
import vl_convert
from PIL import Image

from tests.papers.records import put


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of a chart's picture a white pixel; not in tests that are marked `drawn`."""
    if request.node.get_closest_marker("drawn") is None:
        pixel = io.BytesIO()
        Image.new("L", (1, 1), 255).save(pixel, "png")
        monkeypatch.setattr(vl_convert, "vegalite_to_png", lambda *_, **__: pixel.getvalue())


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Five turns of a method, and three seeds of another."""
    for turn in range(5):
        put(tmp_path, f"gs-sgd/vgg16/gtopk-{turn}")
    for seed in range(3):
        put(tmp_path, f"convergence/quick/dense-{seed}")
    return tmp_path
