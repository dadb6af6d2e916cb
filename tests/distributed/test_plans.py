"""Every collective, on real processes of both engines, equals the exact sum and leaves all ranks with the same bits."""

from pathlib import Path

import pytest

from tests.distributed.forked import finish

SCRIPT = "tests/distributed/on_plans.py"


def check(engine: str, size: int, logs: Path, *words: str) -> None:
    ended = finish(engine, size, words, logs, script=SCRIPT)
    assert "good" in ended.out, ended.said


@pytest.mark.sampled(1)
@pytest.mark.parametrize("engine", ["torch", "horovod"])
def test_plans(engine: str, tmp_path: Path) -> None:
    check(engine, 3, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "size"),
    [
        ("torch", 2),
        ("torch", 5),
        ("horovod", 4),
        *(pytest.param(*each, marks=pytest.mark.weekly) for each in (("torch", 4), ("horovod", 2), ("horovod", 5))),
    ],
)
def test_plans_on_other_numbers_of_processes(engine: str, size: int, tmp_path: Path) -> None:
    check(engine, size, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.weekly), 3])
def test_plans_in_horovods_own_calls(size: int, tmp_path: Path) -> None:
    check("horovod", size, tmp_path, "alltoall")
