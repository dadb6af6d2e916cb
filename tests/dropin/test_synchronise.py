"""`synchronise` in a loop that somebody else wrote: equal to DistributedDataParallel, on both engines."""

from pathlib import Path

import pytest

from tests.distributed.forked import fork
from tests.dropin import loops, misuse, own_loop

OPTIMIZERS, WORDS = ("sgd", "adamw"), ("+accumulate", "+clip", "+scaler", "+unused")
ALL_AT_ONCE = [f"{optimizer}{words}" for optimizer in OPTIMIZERS for words in ("", "".join(WORDS))]
ONE_BY_ONE = [f"{optimizer}{word}" for optimizer in OPTIMIZERS for word in WORDS]


@pytest.mark.parametrize("engine", ["torch", pytest.param("horovod", marks=pytest.mark.slow)])
def test_a_loop_of_ones_own(engine: str, tmp_path: Path) -> None:
    ended = fork(engine, 2, [engine], tmp_path, script="tests/dropin/own_loop.py")
    assert ended.code == 0, ended.said
    assert ended.out.split() == [case.__name__ for case in (*own_loop.CASES, *misuse.CASES)]


@pytest.mark.parametrize(
    ("engine", "cases"),
    [
        ("torch", ALL_AT_ONCE),
        pytest.param("torch", ONE_BY_ONE, marks=pytest.mark.slow),
        # Horovod's optimizer moves what no rank has used, and so has no such case.
        pytest.param("horovod", [case.replace("+unused", "") for case in ALL_AT_ONCE], marks=pytest.mark.slow),
    ],
)
def test_dense_synchronise_equals_the_engines_own_for_50_steps(engine: str, cases: list[str], tmp_path: Path) -> None:
    ended = fork(engine, 2, [engine, *cases], tmp_path, script="tests/dropin/beside_ddp.py")
    assert ended.code == 0, ended.said
    worst = dict(line.split() for line in ended.out.splitlines())
    assert worst.keys() == set(cases)
    assert all(float(each) <= 1e-6 for each in worst.values()), worst


@pytest.mark.parametrize("schedules", ["wfbp", pytest.param("fused,sync_easgd,wfbp", marks=pytest.mark.slow)])
def test_loops_as_people_write_them_equal_ddps(schedules: str, tmp_path: Path) -> None:
    ended = fork("torch", 2, [schedules], tmp_path, script="tests/dropin/loops.py")
    assert ended.code == 0, ended.said
    worst = dict(line.split() for line in ended.out.splitlines())
    assert list(worst) == list(loops.LOOPS)
    assert all(float(each) <= 1e-6 for each in worst.values()), worst
