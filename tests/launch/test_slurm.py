"""launch/slurm.sbatch and launch/slurm_horovod.sbatch, as they are, on a Slurm of one node."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.distributed.ends import checkpoints, losses, record
from tests.distributed.launch import ROOT
from tests.launch import slurm as one_node
from tests.launch.slurm import Slurm

CONFIG = ["configs/smoke.toml", "train.eval_every=0", "output.tensorboard=false"]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if why := one_node.missing():
        pytest.skip(why)
    with one_node.running(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def submit(slurm: Slurm, file: str, log: Path, *words: str) -> str:
    """The job's number. What a user would edit or export: one node, two ranks, no line about the log."""
    command = ["sbatch", "--parsable", "--nodes=1", "--chdir", ROOT, "--output", log]
    return slurm.call(*command, "--export=ALL,RANKS_PER_NODE=2", ROOT / "launch" / file, *CONFIG, *words).strip()


@pytest.fixture
def run_of() -> Iterator[Callable[[str], Path]]:
    """The folder of a job's run, by the job's number; it goes with the test."""
    folders: list[Path] = []

    def folder_of(job: str) -> Path:
        folders.append(ROOT / "results/runs" / f"slurm-{job}")
        return folders[-1]

    yield folder_of
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.weekly
@pytest.mark.parametrize(("file", "engine"), [("slurm.sbatch", "torch"), ("slurm_horovod.sbatch", "horovod")])
def test_a_job_trains(file: str, engine: str, slurm: Slurm, run_of: Callable[[str], Path], tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    job = submit(slurm, file, log, "train.max_steps=4")
    folder = run_of(job)
    assert slurm.wait(job, 200) == "COMPLETED", log.read_text()
    found = record(folder)
    assert (found["engine"], found["world_size"], found["status"]) == (engine, 2, "finished"), log.read_text()


@pytest.mark.weekly
def test_before_its_time_is_over_a_job_saves_a_checkpoint(
    slurm: Slurm, run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """The signal that --signal asks for, sent now."""
    log = tmp_path / "job.log"
    job = submit(
        slurm, "slurm.sbatch", log, "train.max_steps=0", "train.epochs=1000", "train.checkpoint_every_steps=1000000"
    )
    folder = run_of(job)
    deadline = time.monotonic() + 100
    while not (folder / "steps.jsonl").exists() or len(losses(folder)) < 5:
        assert slurm.state(job) in ("PENDING", "RUNNING") and time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)
    slurm.call("scancel", "--signal=TERM", job)
    slurm.wait(job, 60)
    found = record(folder)
    assert found["status"] == "interrupted", log.read_text()
    assert checkpoints(folder)[-1].name == f"step-{found['steps_done']:08d}"
