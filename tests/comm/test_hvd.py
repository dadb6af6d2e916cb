"""Horovod: the contract of a communicator on a job of three ranks, with both ways to run the rounds of plans."""

import importlib.util
import json
from typing import Any

import pytest

from tests.comm.contract import CHECKS
from tests.distributed.forked import fork

REFUSED = {"sums_of_bfloat16": 'engine.rounds: Horovod cannot sum bfloat16; set engine.rounds = "p2p"'}

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None, reason="Horovod is not built here (HOROVOD=0)"
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of three ranks found: one job for all tests."""
    ended = fork("horovod", 3, [], tmp_path_factory.mktemp("on-horovod"), script="tests/comm/on_horovod.py")
    lines = [line.partition("FOUND ")[2] for line in ended.out.splitlines() if "FOUND " in line]
    assert ended.code == 0, ended.said
    assert len(lines) == 1, ended.said
    ranks: list[dict[str, Any]] = json.loads(lines[0])
    return ranks


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("rounds", ["p2p", "alltoall"])
def test_the_contract(found, rounds, name):
    expected = REFUSED.get(name, "good") if rounds == "alltoall" else "good"
    for rank, each in enumerate(found):
        assert each[rounds][name] == expected, f"rank {rank}"


@pytest.mark.parametrize("rounds", ["p2p", "alltoall"])
def test_bytes_are_counted(found, rounds):
    # Of three blocks of 0, 4 and 8 bytes a rank passes on all but its right neighbour's, and two lengths.
    gathered = [16 + 12 - 4, 16 + 12 - 8, 16 + 12 - 0]
    for rank, each in enumerate(found):
        sent = each[rounds]["bytes"]
        assert sent == {"round": 16, "sum": 32, "broadcast": 20 if rank == 1 else 0, "gather": gathered[rank]}


@pytest.mark.parametrize("parts", ["1", "4"])
def test_horovods_own_optimizer_averages(found, parts):
    assert [each["optimizer"][parts] for each in found] == ["good"] * 3
