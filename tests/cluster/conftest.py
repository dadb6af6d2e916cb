"""Clusters of a test's own: their state in its folder, and nothing of them left at its end."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.cluster.running import CLUSTER, interfaces
from tests.distributed.launch import Ended, Job


@pytest.fixture
def place() -> Iterator[Path]:
    """For the state of clusters. Pytest's own folders are closed to other users whenever a run of pytest begins."""
    with TemporaryDirectory(prefix="clusters-") as folder:
        yield Path(folder)


@pytest.fixture
def begin(namespaces: None, place: Path, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Start cluster.py with the given words; at the test's end nothing of it may live, and no interface stay."""
    jobs, before = list[Job](), interfaces()

    def start(*words: object, within: tuple[str, ...] = ()) -> Job:
        command = [*within, *CLUSTER, *map(str, words)]
        jobs.append(Job(command, tmp_path / "logs", {"XDG_RUNTIME_DIR": str(place)}))
        return jobs[-1]

    yield start
    left = {pid: words for job in jobs for pid, words in job.left_over().items()}
    for job in jobs:
        job.end()
    assert not left, f"processes stay: {left}"
    assert set(os.listdir(place / "wirebench")) <= {"lock", "counts"}
    assert not list(place.glob("wirebench/counts/*"))
    assert interfaces() == before


@pytest.fixture
def cluster(begin: Callable[..., Job]) -> Callable[..., Ended]:
    """Run cluster.py with the given words to its end."""

    def ended(*words: object, within: tuple[str, ...] = ()) -> Ended:
        return begin(*words, within=within).wait(60.0)

    return ended
