"""Ranks of a run are killed at random moments, and it is resumed each time: it ends, bit for bit, as if undisturbed."""

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from tests.distributed.ends import assert_same_end, checkpoints
from tests.distributed.forked import fork
from tests.distributed.launch import CONFIG, Ended, Job, launch, slowly, started

pytestmark = pytest.mark.slow

WORKERS, STEPS_PER_KILL = 3, 8
MOMENTS = ("computing", "saving", "starting")
START_SECONDS = 3.0


@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ["local", "torch", pytest.param("horovod", marks=pytest.mark.weekly)])
def test_a_run_that_is_killed_and_resumed_ends_as_an_undisturbed_one(engine: str, tmp_path: Path) -> None:
    """A kill comes while the run starts, computes, or writes a checkpoint; the others then name the rank and end."""
    words = [
        CONFIG, f"train.max_steps={STEPS_PER_KILL * (len(MOMENTS) + 1)}", "train.checkpoint_every_steps=1",
        f"engine.workers={WORKERS}",
    ]  # fmt: skip
    undisturbed = launch if engine == "local" else fork
    ended = undisturbed(engine, WORKERS, [*words, f"output.dir={tmp_path / 'unbroken'}"], tmp_path)
    assert ended.code == 0, ended.said
    rng, run = random.Random(engine), tmp_path / "run"
    words += [f"output.dir={run}", "train.resume=auto"]
    for moment in MOMENTS:
        rank = 0 if engine == "local" else rng.randrange(WORKERS)
        with started(engine, WORKERS, words, tmp_path, slowly(20)) as job:
            wait_for(moment, rank, run, job, engine, rng)
            os.kill(processes(job, engine)[rank], signal.SIGKILL)
            ended = job.wait()
            assert not job.left_over(), ended.said
        # While a run starts, nobody knows the others yet, and the launcher ends them.
        if engine != "local" and moment != "starting":
            assert named(ended, rank) == [each for each in range(WORKERS) if each != rank], ended.said
    ended = undisturbed(engine, WORKERS, words, tmp_path)
    assert ended.code == 0, ended.said
    assert_same_end(run, tmp_path / "unbroken")


def wait_for(moment: str, rank: int, run: Path, job: Job, engine: str, rng: random.Random) -> None:
    if moment == "starting":
        job.until(lambda: rank in processes(job, engine))
        time.sleep(rng.uniform(0, START_SECONDS))
        return
    target = saved(run) + rng.randrange(1, STEPS_PER_KILL - 1)
    job.until(lambda: saved(run) >= target)
    if moment == "saving":
        job.until(lambda: any((run / "checkpoints").glob(".step-*.partial")))


def processes(job: Job, engine: str) -> dict[int, int]:
    """The process of each rank that has started."""
    return {0: job.process.pid} if engine == "local" else job.ranks()


def named(ended: Ended, rank: int) -> list[int]:
    """The ranks that report, in one line each, that `rank` and no other rank is lost."""
    lines = [line for line in ended.errors if re.search(r": lost rank \d", line)]
    assert all(re.search(rf": lost rank {rank} \(pid \d+ on [^)]*\) (at|before)", line) for line in lines), ended.said
    return sorted(int(re.findall(r"^error: rank (\d+)", line)[0]) for line in lines)


def saved(run: Path) -> int:
    """Steps of the newest checkpoint."""
    return int(checkpoints(run)[-1].name.removeprefix("step-")) if checkpoints(run) else 0
