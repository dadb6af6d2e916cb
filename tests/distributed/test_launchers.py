"""Launchers other than torchrun and horovodrun: what they start trains together, or is refused."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.distributed.ends import record
from tests.distributed.launch import CONFIG, launch, started
from wirebench.compose import run as train

BARE_SLURM = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
STEP = {
    **BARE_SLURM, "SLURM_JOB_ID": "812", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "nowhere[1]",
}  # fmt: skip


def test_tasks_of_srun_train_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    arguments = [CONFIG, f"output.dir={folder}", "train.max_steps=2"]
    said: list[str] = []
    with ExitStack() as jobs:
        tasks = [{**STEP, "SLURM_PROCID": rank, "SLURM_LOCALID": rank} for rank in ("0", "1")]
        both = [jobs.enter_context(started("local", 2, arguments, tmp_path, task)) for task in tasks]
        for job in both:
            ended = job.wait()
            assert ended.code == 0, ended.said
            said.append(ended.out)
    found = record(folder)
    assert (found["engine"], found["world_size"], found["steps_done"]) == ("torch", 2, 2)
    assert found["environment"]["command"].startswith("srun --ntasks 2 ")
    assert [host["ranks"] for host in found["environment"]["hosts"]] == [[0, 1]]
    assert [host["ranks"] for host in found["load"]] == [[0, 1]]
    assert said[1] == "", "rank 0 speaks for all"
    lines = said[0].splitlines()
    assert lines[0].startswith("run: torch x 2, mine.net on mine.blobs, compressor topk, scheduler wfbp, output ")
    assert train.main([str(folder / "config.toml")]) == 2, "not by virtual workers, without a word"
    told = "error: engine.name: 'torch' with 2 workers needs its launcher: torchrun --nproc-per-node 2 "
    assert capsys.readouterr().err.startswith(told)


def test_a_task_that_cannot_find_the_others_does_not_train_alone(tmp_path: Path) -> None:
    ended = launch("local", 2, [CONFIG, f"output.dir={tmp_path / 'run'}"], tmp_path, BARE_SLURM)
    assert ended.code == 2, ended.said
    assert len(ended.err.splitlines()) == 1, ended.said
    assert ended.err.startswith(
        "error: rank 0: engine: 2 processes were started by srun, and no engine can join them ("
    )
    assert not (tmp_path / "run").exists()
