"""A run that was stopped, also in an evaluation, lost a rank and was resumed each time ends as an undisturbed one.

Also where that happens while a checkpoint is being written.
"""

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.distributed.conftest import RANKS
from tests.distributed.ends import assert_same_end, checkpoints, losses, record
from tests.distributed.forked import finish, fork
from tests.distributed.launch import CONFIG, slowly, started, trouble

# Steps of 0.3 s: ranks look after each of them whether one was told to stop.
SLOWLY = slowly(150)
# 1.5 s for each of two files of a checkpoint: that of step 4, which waits for that of step 2, is under way in step 5.
SLOW_DISK, IN_STEP = ("tests/distributed/slow_disk.py 1.5", 5)
ENGINES = ["torch", pytest.param("horovod", marks=pytest.mark.slow)]


def steps_done(folder: Path) -> int:
    path = folder / "steps.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize(
    ("engine", "launched"),
    [("torch", False), *(pytest.param(engine, True, marks=pytest.mark.slow) for engine in ("torch", "horovod"))],
)
def test_a_troubled_run_ends_as_the_unbroken_one(
    engine: str, launched: bool, unbroken: Callable[[str], Path], tmp_path: Path
) -> None:
    """By day without the launcher, whose ranks import PyTorch each."""
    folder = tmp_path / "run"
    base = [CONFIG, f"output.dir={folder}", "train.resume=auto"]
    stop_one_rank(engine, [*base, "train.max_steps=11"], folder, tmp_path)
    stop_one_rank_in_evaluation(engine, base, folder, tmp_path)
    if launched:
        stop_the_launcher(engine, base, folder, tmp_path)
    kill_one_rank(engine, base, folder, tmp_path)
    finish(engine, RANKS, base, tmp_path)
    assert_same_end(folder, unbroken(engine))


@pytest.mark.slow
def test_local_steps_stop_where_all_ranks_have_met_and_end_as_the_unbroken_run(tmp_path: Path) -> None:
    """Sent after steps 2, 5, 8, and applied a step later: a wish in step 2 is known to all after step 6."""
    words = [CONFIG, "data.train_size=960", "scheduler.name=outer", "scheduler.every=3", "scheduler.delay=1"]
    whole, folder = ([*words, f"output.dir={tmp_path / name}"] for name in ("whole", "run"))
    finish("torch", RANKS, whole, tmp_path)
    assert not finish("torch", RANKS, folder, tmp_path, SLOWLY | trouble("terminate", 2, 1)).errors
    assert record(tmp_path / "run")["status"] == "interrupted"
    assert checkpoints(tmp_path / "run")[-1].name == "step-00000007" and len(losses(tmp_path / "run")) == 7
    finish("torch", RANKS, [*folder, "train.resume=auto"], tmp_path)
    assert_same_end(tmp_path / "run", tmp_path / "whole")


def stop_one_rank(engine: str, base: Sequence[object], folder: Path, logs: Path) -> None:
    """SIGTERM to rank 1 in step 2: all save a checkpoint together, and leave with exit code 0."""
    ended = finish(engine, RANKS, base, logs, SLOWLY | trouble("terminate", 2, 1))
    assert not ended.errors
    assert f"resume with output.dir={folder} train.resume=auto (newest checkpoint: step-" in ended.out
    assert record(folder)["status"] == "interrupted"
    assert len(losses(folder)) == int(checkpoints(folder)[-1].name.removeprefix("step-")) in (3, 4)


def stop_one_rank_in_evaluation(engine: str, base: Sequence[object], folder: Path, logs: Path) -> None:
    """SIGTERM to rank 1 in its share of the first evaluation: it counts for nobody, and the epoch stays open."""
    ended = finish(engine, RANKS, base, logs, trouble("terminate_evaluation", 0, 1))
    found = record(folder)
    assert (found["status"], found["steps_done"], found["history"]) == ("interrupted", 4, []), ended.said
    assert checkpoints(folder)[-1].name == "step-00000004"


def stop_the_launcher(engine: str, base: Sequence[object], folder: Path, logs: Path) -> None:
    """SIGTERM to the launcher, which passes it on; what it returns is its own affair."""
    before = steps_done(folder)
    (folder / "record.json").unlink()
    with started(engine, RANKS, base, logs, SLOWLY) as job:
        job.until(lambda: steps_done(folder) > before)
        os.kill(job.process.pid, signal.SIGTERM)
        ended = job.wait()
        assert not job.left_over()
    assert not ended.errors, ended.said
    assert record(folder)["status"] == "interrupted", ended.said
    saved = int(checkpoints(folder)[-1].name.removeprefix("step-"))
    assert before < saved == steps_done(folder) < 9, ended.said


def kill_one_rank(engine: str, base: Sequence[object], folder: Path, logs: Path) -> None:
    """kill -9 of rank 1: every other rank says so in one line and ends."""
    before = steps_done(folder)
    ended = fork(engine, RANKS, base, logs, trouble("kill", 2, 1))
    assert ended.code != 0
    assert len(ended.errors) == RANKS - 1, ended.said
    for line in ended.errors:
        assert "lost rank 1 (pid " in line, ended.said
        assert f" at step {before + 2} (" in line
        assert f"resume with output.dir={folder} train.resume=auto (newest checkpoint: step-" in line
    assert 'train.py", line' not in ended.err
    assert not (folder / "record.json").exists()


@pytest.mark.parametrize("engine", ENGINES)
def test_rank_0_dies_while_it_writes_a_checkpoint(engine: str, unbroken: Callable[[str], Path], tmp_path: Path) -> None:
    """What is half written is no checkpoint, and the one before it is resumed."""
    folder = tmp_path / "run"
    base = [CONFIG, f"output.dir={folder}", "train.resume=auto"]
    ended = fork(engine, RANKS, base, tmp_path, trouble("kill", IN_STEP, 0), SLOW_DISK)
    assert ended.code != 0
    assert [path.name for path in checkpoints(folder)] == ["step-00000002"], ended.said
    assert (folder / "checkpoints/.step-00000004.partial").exists(), ended.said
    advice = "(newest checkpoint: step-00000004 if rank 0 completed it, otherwise step-00000002)"
    assert [line.endswith(advice) for line in ended.errors] == [True] * (RANKS - 1), ended.said
    finish(engine, RANKS, base, tmp_path)
    assert record(folder)["resumed_at"] == 2
    assert_same_end(folder, unbroken(engine))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "horovod"])
def test_another_rank_dies_while_rank_0_writes_a_checkpoint(engine: str, tmp_path: Path) -> None:
    """Rank 0 has a copy of what the dead one had to give."""
    folder = tmp_path / "run"
    arguments = [CONFIG, f"output.dir={folder}"]
    ended = fork(engine, RANKS, arguments, tmp_path, trouble("kill", IN_STEP, 1), SLOW_DISK)
    assert ended.code != 0
    assert [path.name for path in checkpoints(folder)] == ["step-00000002", "step-00000004"], ended.said
    (mine,) = [line for line in ended.errors if line.startswith("error: rank 0: lost rank 1 (pid ")]
    assert mine.endswith("(newest checkpoint: step-00000004)"), ended.said


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["torch", "horovod"])
def test_a_stop_waits_for_the_last_checkpoint(engine: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    each = [CONFIG, f"output.dir={folder}", "train.checkpoint_every_steps=100"]
    finish(engine, RANKS, each, tmp_path, SLOWLY | trouble("terminate", 2, 1), SLOW_DISK)
    assert record(folder)["status"] == "interrupted"
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [f"step-{len(losses(folder)):08d}"]
    saved = record(folder)["checkpoints"]
    assert saved["saved"] == 1 and saved["stall_seconds"] > 3
