"""Of the study of today's methods."""

import pytest

from papers import judged


@pytest.fixture(autouse=True)
def as_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records here are of ten parameters; test_judged.py is about where a claim holds."""
    monkeypatch.setattr(judged, "placed", lambda claim, verdict, records: verdict)
