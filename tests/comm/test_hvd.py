"""Horovod: the contract of a communicator on a job of three ranks, with both ways to run the rounds of plans."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.comm.contract import CHECKS

TOP = Path(__file__).parent.parent.parent
REFUSED = {"sums_of_bfloat16": 'engine.rounds: Horovod cannot sum bfloat16; set engine.rounds = "p2p"'}

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None, reason="Horovod is not built here (WIREBENCH_NO_HOROVOD)"
)


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """What each of three ranks found: one job for all tests."""
    folder = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = [
        str(folder / "horovodrun"), "-np", "3", "-H", "127.0.0.1:3", "--gloo", "--network-interface", "lo",
        "--disable-cache", sys.executable, "-m", "tests.comm.on_horovod",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=TOP, env=environment, capture_output=True, text=True, timeout=120, check=False)
    lines = [line.partition("FOUND ")[2] for line in done.stdout.splitlines() if "FOUND " in line]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lines) == 1, done.stdout + done.stderr
    ranks: list[dict[str, Any]] = json.loads(lines[0])
    return ranks


def test_the_job_is_what_was_asked_for(found):
    assert [each["engine"] for each in found] == [["horovod", 3]] * 3


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
