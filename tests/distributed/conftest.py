"""Runs that several tests compare theirs with; slow tests run when they are asked for (-m slow)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.distributed.launch import CONFIG, launch

HERE = Path(__file__).parent
RANKS = 3


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without -m, leave out this folder's slow tests: the whole matrix of engines takes minutes."""
    if config.option.markexpr or config.option.keyword:
        return
    slow = [item for item in items if item.get_closest_marker("slow") and item.path.is_relative_to(HERE)]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run of run.toml with 3 ranks that nothing disturbed, by engine."""
    known: dict[str, Path] = {}

    def folder_of(engine: str) -> Path:
        if engine not in known:
            folder = tmp_path_factory.mktemp(f"unbroken-{engine}")
            workers = [f"engine.workers={RANKS}"]
            ended = launch(engine, RANKS, [CONFIG, *workers, f"output.dir={folder}"], folder / "logs")
            assert ended.code == 0, ended.said
            known[engine] = folder
        return known[engine]

    return folder_of
