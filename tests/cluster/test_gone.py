"""However a cluster ends, no process, namespace or interface of it stays."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.cluster.running import said, spaces_of, still_there
from tests.distributed.launch import Job

Begin = Callable[..., Job]
RANKS = 3

# Ignores what asks for the end, and has a child in a session of its own.
STUBBORN = "trap '' INT TERM HUP; setsid sleep 1000 & echo begun; while :; do sleep 1; done"
POLITE = "trap 'echo stopping; exit 0' INT; trap 'echo ending; exit 3' TERM; echo begun; while :; do sleep 0.1; done"


def running(begin: Begin, program: str, *words: object) -> tuple[Job, set[str]]:
    """A job whose ranks have begun, and its namespaces."""
    job = begin("run", *(words or ("--layout", "1+2")), "--", "sh", "-c", program)
    job.until(lambda: said(job).count("begun") == RANKS, 30)
    spaces = spaces_of(job)
    assert {name.partition(":")[0] for name in spaces} >= {"net", "pid", "uts", "mnt"}
    return job, spaces


def check_gone(job: Job, spaces: set[str]) -> None:
    assert not job.left_over()
    # A process that is dying is in its namespaces to the last.
    deadline = time.monotonic() + 60.0
    while (left := still_there(spaces)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("number", "word", "code"),
    [(signal.SIGINT, "stopping", 0), (signal.SIGTERM, "ending", 3), (signal.SIGHUP, "ending", 3)],
)
def test_a_wish_to_stop_reaches_the_ranks(number: int, word: str, code: int, begin: Begin):
    job, spaces = running(begin, POLITE)
    job.process.send_signal(number)
    ended = job.wait(60)
    assert ended.code == code, ended.said
    assert ended.out.count(word) == RANKS
    # The table is shown all the same.
    assert "by the plans' own count" in ended.err
    check_gone(job, spaces)


def test_whole_groups_of_signals_as_terminals_send_them(begin: Begin):
    """The ranks hear of a Ctrl-C once, from the command, whoever else is in its group."""
    job, _ = running(begin, POLITE)
    os.killpg(job.process.pid, signal.SIGINT)
    ended = job.wait(60)
    assert (ended.code, ended.out.count("stopping")) == (0, RANKS), ended.said


@pytest.mark.slow
def test_the_second_ctrl_c_ends_the_stubborn(begin: Begin):
    job, spaces = running(begin, STUBBORN)
    job.process.send_signal(signal.SIGINT)
    # Two at once are one to the kernel.
    time.sleep(0.5)
    job.process.send_signal(signal.SIGINT)
    assert job.wait(60).code == 137
    check_gone(job, spaces)


def test_the_command_is_killed(begin: Begin):
    job, spaces = running(begin, STUBBORN)
    job.process.kill()
    assert job.wait(60).code == -signal.SIGKILL
    check_gone(job, spaces)


@pytest.mark.parametrize(
    "victim",
    ["python", *(pytest.param(name, marks=pytest.mark.slow) for name in ("unshare", "nsenter", "sleep infinity"))],
)
def test_a_process_in_between_is_killed(victim: str, begin: Begin):
    """Each of the command's children and grandchildren: unshare of the cluster, nsenter of the job, what they run."""
    job, spaces = running(begin, STUBBORN)
    for process in psutil.Process(job.process.pid).children(recursive=True):
        program, *words = process.cmdline() or [""]
        if " ".join([Path(program).name, *words]).startswith(victim):
            process.kill()
            break
    else:
        raise AssertionError(f"no {victim}")
    if victim == "sleep infinity":
        # A host's holder: its namespaces live as long as its ranks do.
        job.process.kill()
    assert job.wait(60).code != 0
    check_gone(job, spaces)


def test_a_job_in_a_named_cluster_leaves_it_as_it_was(begin: Begin):
    up = begin("up", "--name", "lab", "--layout", "1+2")
    assert up.wait(60).code == 0
    cluster = spaces_of(up)
    job, spaces = running(begin, STUBBORN, "--name", "lab")
    job.process.kill()
    job.process.wait()
    check_gone(job, spaces - cluster)
    assert still_there(cluster) == cluster
    assert len(up.processes()) == 2 + 2, "unshare, its child, a holder for each host"
    assert begin("run", "--name", "lab", "--", "true").wait(60).code == 0
    assert begin("down", "--name", "lab").wait(60).code == 0
    check_gone(up, cluster)


def test_killed_while_it_is_built(begin: Begin, place: Path):
    for seconds in (0.05, 0.1, 0.15, 0.2, 0.25):
        job = begin("up", "--name", f"n{round(seconds * 100)}", "--hosts", 3)
        try:
            job.process.wait(seconds)
        except subprocess.TimeoutExpired:
            job.process.kill()
        job.process.wait()
        known = list((place / "wirebench").glob("*.json"))
        if not known:
            assert not job.left_over()
        assert begin("down", "--all").wait(60).code == 0
        assert not job.left_over()
