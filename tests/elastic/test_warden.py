"""A process that stands still as a whole is killed by its warden; one that only waits is not."""

import os
import signal
import subprocess
import sys

import pytest

from tests.distributed.launch import ROOT

RANK = """
import sys, time
from wirebench.training.elastic.warden import Warden
warden = Warden("rank 3", SECONDS)
print("ready", flush=True)
sys.stdin.readline()
HOW
time.sleep(1.25 * SECONDS)
warden.close()
print("ended", flush=True)
"""
LOCKED = "import ctypes; libc = ctypes.PyDLL(None); libc.sleep(60)"


def begin(how: str, seconds: float) -> subprocess.Popen[str]:
    code = RANK.replace("HOW", how).replace("SECONDS", str(seconds))
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("how", ["stopped", "locked"])
def test_a_rank_that_stands_still_is_killed(how: str) -> None:
    process = begin(LOCKED if how == "locked" else "pass", 0.4)
    if how == "stopped":
        os.kill(process.pid, signal.SIGSTOP)
    out, err = process.communicate("go\n", timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert out == "" and err == "error: rank 3: it has stood still for 0.4 s and is killed, so that the others go on\n"


def test_a_rank_that_only_waits_lives() -> None:
    """For longer than it may stand still; a busy machine may make its thread wait for two seconds."""
    process = begin("pass", 2.0)
    out, err = process.communicate("go\n", timeout=60)
    assert (process.returncode, out, err) == (0, "ended\n", "")
