"""`synchronise` in a loop that somebody else wrote: equal to DistributedDataParallel, on both engines."""

from pathlib import Path

import pytest

from tests.distributed.forked import fork
from tests.dropin import own_loop

CASES = [
    f"{optimizer}{words}"
    for optimizer in ("sgd", "adamw")
    for words in ("", "+accumulate", "+clip", "+scaler", "+unused", "+accumulate+clip+scaler+unused")
]


@pytest.mark.parametrize("engine", ["torch", "horovod"])
def test_a_loop_of_ones_own(engine: str, tmp_path: Path) -> None:
    ended = fork(engine, 2, [engine], tmp_path, script="tests/dropin/own_loop.py")
    assert ended.code == 0, ended.said
    assert ended.out.split() == [case.__name__ for case in own_loop.CASES]


def test_dense_synchronise_equals_ddp_for_50_steps(tmp_path: Path) -> None:
    ended = fork("torch", 2, CASES, tmp_path, script="tests/dropin/beside_ddp.py")
    assert ended.code == 0, ended.said
    worst = dict(line.split() for line in ended.out.splitlines())
    assert worst.keys() == set(CASES)
    assert all(float(each) <= 1e-6 for each in worst.values()), worst
