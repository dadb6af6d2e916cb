"""`synchronise` and the hook for DDP: equal to DDP and to train.py; a program that leaves them open."""

import os
import sys
from pathlib import Path

import pytest

from tests.distributed.forked import fork
from tests.dropin import grouped, hooked, loops, misuse, own_loop
from wirebench import compressors
from wirebench.dropin import at_exit
from wirebench.errors import PeerLost

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


@pytest.mark.parametrize(
    "names",
    [sorted({"none", *compressors.available()[::3]}), pytest.param(compressors.available(), marks=pytest.mark.slow)],
    ids=["a third", "all"],
)
def test_every_compressor_through_ddp_is_that_of_train_py_to_the_bit(names: list[str], tmp_path: Path) -> None:
    ended = fork("torch", 2, names, tmp_path, script="tests/dropin/beside_train.py")
    assert ended.code == 0, ended.said
    lines = [line.split() for line in ended.out.splitlines()]
    told = {words[0]: words[1:] for words in lines if words and words[0] in names}
    assert told.keys() == set(names)
    assert all(float(worst) == 0 for _, worst, _ in told.values()), told
    assert {name for name, (buckets, *_) in told.items() if buckets == "1"} == {
        name for name in names if compressors.build(name).whole_model
    }
    # The first steps of 0/1 Adam are dense.
    more = ("none", "iwp", "zero_one_adam")
    assert all(float(wire) < float(told["none"][2]) for name, (*_, wire) in told.items() if name not in more)


def test_loops_with_a_hook(tmp_path: Path) -> None:
    ended = fork("torch", 2, ["torch"], tmp_path, script="tests/dropin/hooked.py")
    assert ended.code == 0, ended.said
    assert ended.out.split() == [case.__name__ for case in hooked.CASES]


def test_exchanges_over_groups_of_ranks(tmp_path: Path) -> None:
    ended = fork("torch", 3, ["torch"], tmp_path, script="tests/dropin/grouped.py")
    assert ended.code == 0, ended.said
    assert ended.out.split() == [case.__name__ for case in grouped.CASES]


class Exchange:
    def __init__(self, error: Exception | None = None) -> None:
        self.closed, self.error = 0, error
        at_exit.close_at_exit(self)

    def close(self) -> None:
        self.closed += 1
        if self.error is not None:
            raise self.error


def test_all_are_closed_whatever_one_of_them_raises(capsys: pytest.CaptureFixture[str]) -> None:
    exchanges = Exchange(PeerLost("rank 1 is gone")), Exchange()
    at_exit._close_all()
    assert [each.closed for each in exchanges] == [1, 1]
    assert capsys.readouterr().err == "error: rank 1 is gone\n"


def test_after_an_error_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = Exchange()
    monkeypatch.setattr(sys, "last_value", RuntimeError("of the loop"), raising=False)
    at_exit._close_all()
    assert not exchange.closed


def test_a_fork_closes_nothing_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange, process = Exchange(), os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    at_exit._close_all()
    assert not exchange.closed
