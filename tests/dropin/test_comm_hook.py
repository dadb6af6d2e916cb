"""The hook for DistributedDataParallel: every compressor, to the bit as in train.py; GradScaler; what is counted."""

from pathlib import Path

import pytest

from tests.distributed.forked import fork
from tests.dropin import grouped, hooked
from wirebench import compressors


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
