"""Runs that several tests compare theirs with."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.distributed.forked import finish
from tests.distributed.launch import CONFIG

RANKS = 3


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run of run.toml with 3 ranks that nothing disturbed, by engine."""
    known: dict[str, Path] = {}

    def folder_of(engine: str) -> Path:
        if engine not in known:
            folder = tmp_path_factory.mktemp(f"unbroken-{engine}")
            workers = [f"engine.workers={RANKS}"]
            finish(engine, RANKS, [CONFIG, *workers, f"output.dir={folder}"], folder / "logs")
            known[engine] = folder
        return known[engine]

    return folder_of
