"""`synchronise` and the hook for DDP: equal to DDP and to train.py; a program that leaves them open."""

import os
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.distributed.forked import finish
from tests.dropin import loops
from tests.dropin.cases import cases_of
from wirebench import compressors
from wirebench.dropin import at_exit
from wirebench.errors import PeerLost

ALL_AT_ONCE = [f"{name}{words}" for name in ("sgd", "adamw") for words in ("", "+accumulate+clip+scaler+unused")]


@pytest.mark.parametrize(
    ("script", "engine", "size"),
    [
        ("own_loop", "torch", 2),
        pytest.param("own_loop", "horovod", 2, marks=pytest.mark.slow),
        ("misuse", "torch", 2),
        pytest.param("misuse", "horovod", 2, marks=pytest.mark.slow),
        ("hooked", "torch", 2),
        ("grouped", "torch", 3),
        *((name, "torch", 4) for name in ("pods", "pods_layouts", "pods_misuse", "pods_sums", "pods_view")),
    ],
)
def test_each_case_holds_on_all_ranks(script: str, engine: str, size: int, tmp_path: Path) -> None:
    ended = finish(engine, size, [engine], tmp_path, script=f"tests/dropin/{script}.py")
    assert ended.out.split() == [case.__name__ for case in cases_of(import_module(f"tests.dropin.{script}"))]


@pytest.mark.parametrize(
    ("engine", "script", "first", "cases"),
    [
        ("torch", "beside_ddp", "torch", ALL_AT_ONCE),
        # Horovod's optimizer moves what no rank has used, and so has no such case.
        pytest.param(
            "horovod", "beside_ddp", "horovod", [case.replace("+unused", "") for case in ALL_AT_ONCE],
            marks=pytest.mark.slow,
        ),
        ("torch", "loops", "wfbp", list(loops.LOOPS)),
        pytest.param("torch", "loops", "fused,sync_easgd,wfbp", list(loops.LOOPS), marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_dense_loop_ends_with_the_weights_of_the_engines_own(
    engine: str, script: str, first: str, cases: list[str], tmp_path: Path
) -> None:
    """50 steps of loops with all that an optimizer needs; and loops as people write them."""
    ended = finish(engine, 2, [first, *cases], tmp_path, script=f"tests/dropin/{script}.py")
    worst = dict(line.split() for line in ended.out.splitlines())
    assert list(worst) == cases
    assert all(float(each) <= 1e-6 for each in worst.values()), worst


@pytest.mark.parametrize(
    "names",
    [sorted({"none", *compressors.available()[::3]}), pytest.param(compressors.available(), marks=pytest.mark.slow)],
    ids=["a third", "all"],
)
def test_every_compressor_through_ddp_is_that_of_train_py_to_the_bit(names: list[str], tmp_path: Path) -> None:
    ended = finish("torch", 2, names, tmp_path, script="tests/dropin/beside_train.py")
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
