"""torchrun whose ranks are forked from a process that has imported what they need: they come back, and it ends well."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.distributed.ends import record
from tests.distributed.launch import CONFIG, PAUSE, Job
from wirebench.chaos.job import TORCHRUN

pytestmark = pytest.mark.clock


def ranks(job: Job) -> list[psutil.Process]:
    """The processes of train.py, the eldest first: children of the fork server, which torchrun has started."""
    below = psutil.Process(job.process.pid).children(recursive=True)
    servers = {each.pid for each in below if any("forkserver" in word for word in each.cmdline())}
    return sorted((each for each in below if each.ppid() in servers), key=psutil.Process.create_time)


@pytest.mark.slow
def test_a_rank_that_is_killed_is_soon_back(tmp_path: Path) -> None:
    run = tmp_path / "forking"
    steps = run / "steps.jsonl"
    words = [
        *TORCHRUN, "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2", "--max-restarts", "3",
        "train.py", str(CONFIG), f"output.dir={run}", "train.max_steps=60", "train.elastic=true",
        "train.commit_every_steps=3", "train.checkpoint_every_steps=0",
    ]  # fmt: skip
    job = Job(words, tmp_path / "logs", {PAUSE: "60", "GLOO_SOCKET_IFNAME": "lo"})
    try:
        # Its steps are written at the next commit at the latest, which begins when the one before is whole.
        job.until(lambda: steps.exists() and len(steps.read_text().splitlines()) >= 6)
        os.kill(ranks(job)[1].pid, signal.SIGKILL)
        ended = job.wait()
        assert ended.code == 0 and not job.left_over(), ended.said
    finally:
        job.end()
    told = record(run)
    [change] = told["worlds"]
    assert (told["status"], told["world_size"], change["lost_ranks"]) == ("finished", 2, [])
    assert change["seconds"] < 10 and told["startup_seconds"] < 5, ended.said
    assert "importing torch" in ended.out and "going on from memory" in ended.out
