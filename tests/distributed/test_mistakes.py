"""A user's mistakes under a launcher: one line that says what and where, no traceback, exit code 2."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.samples import write_images
from tests.distributed.forked import finish, fork
from tests.distributed.launch import CONFIG, Ended, here, launch

DIFFERS = "tests/distributed/one_differs.py"


def check_refused(ended: Ended, message: str) -> None:
    """Some rank, rank 0 if all know, says it; a second one may before the launcher ends it."""
    assert ended.code != 0
    assert ended.errors, ended.said
    assert all(re.match(r"error: rank \d: ", line) and message in line for line in ended.errors), ended.said
    assert 2 in ended.codes or re.search(r"exit with status code 2\.|exitcode  : 2 ", ended.out + ended.err), ended.said
    assert '/train.py", line' not in ended.err, ended.said


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("engine", "override", "message", "job"),
    [
        ("torch", "engine.workers=5", "engine.workers: 5 are asked for, but 2 processes were started", fork),
        ("horovod", "engine.name=torch", "engine.name: 'torch', but 2 processes were started by horovodrun", launch),
    ],
)
def test_the_same_mistake_on_all_ranks(
    engine: str, override: str, message: str, job: Callable[..., Ended], tmp_path: Path
) -> None:
    check_refused(job(engine, 2, [CONFIG, f"output.dir={tmp_path / 'run'}", override], tmp_path), message)
    assert not (tmp_path / "run").exists()


def test_configs_that_differ(tmp_path: Path) -> None:
    arguments = ["optimizer.lr=0.02", CONFIG, f"output.dir={tmp_path / 'run'}"]
    ended = fork("torch", 2, arguments, tmp_path, script=DIFFERS)
    check_refused(ended, "optimizer.lr is 0.01 on rank 0 but 0.02 on rank 1; all ranks need the same")


def test_rounds_that_differ(tmp_path: Path) -> None:
    """Ranks that disagree on this one could not even meet to compare."""
    arguments = ["engine.rounds=alltoall", CONFIG, f"output.dir={tmp_path / 'run'}"]
    ended = fork("horovod", 2, arguments, tmp_path, script=DIFFERS)
    mine = [line for line in ended.errors if line.startswith("error: rank 1")]
    assert mine == ["error: rank 1: engine.rounds: is 'p2p' on rank 0 but 'alltoall' on rank 1"], ended.said


def test_a_type_that_horovod_cannot_sum_costs_an_earlier_run_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert here(2, [CONFIG, f"output.dir={folder}", "train.max_steps=2"]) == 0
    before = sorted(folder.rglob("*")), (folder / "record.json").read_bytes()
    arguments = [CONFIG, "compressor.name=bf16", "collective.name=native", "engine.rounds=alltoall"]
    ended = fork("horovod", 2, [*arguments, f"output.dir={folder}"], tmp_path / "logs")
    check_refused(ended, 'engine.rounds: Horovod cannot sum bfloat16; set engine.rounds = "p2p"')
    assert len(ended.errors) == 1, ended.said
    assert (sorted(folder.rglob("*")), (folder / "record.json").read_bytes()) == before


def test_hosts_may_keep_data_in_different_places(tmp_path: Path) -> None:
    arguments = ["data.root=/elsewhere", CONFIG, f"output.dir={tmp_path / 'run'}", "train.max_steps=1"]
    finish("torch", 2, arguments, tmp_path, script=DIFFERS)
    assert (tmp_path / "run" / "record.json").exists()


def test_data_that_differ(tmp_path: Path) -> None:
    """As many images, but one of another class: every rank would shuffle and train on its own."""
    for root, fewer in (("here", "cat"), ("there", "dog")):
        write_images(tmp_path / root, train=7)
        (tmp_path / root / "train" / fewer / "6.jpg").unlink()
    config = tmp_path / "images.toml"
    data = f'name = "imagefolder"\nroot = "{tmp_path / "here"}"\nimage_size = 32\nworkers = 0'
    config.write_text(CONFIG.read_text().replace('name = "mine.blobs"', data))
    arguments = [f"data.root={tmp_path / 'there'}", config, "data.batch_size=2", f"output.dir={tmp_path / 'run'}"]
    ended = fork("torch", 2, arguments, tmp_path, script=DIFFERS)
    check_refused(ended, "the ranks' data differ: checksum of the training labels is '")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_rank_0_cannot_write(tmp_path: Path) -> None:
    """Rank 0 alone writes: it says what is wrong, and the other says whom it lost."""
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file/run"
    ended = fork("torch", 2, [CONFIG, f"output.dir={folder}"], tmp_path)
    assert ended.code != 0
    said = [line for line in ended.errors if line.startswith("error: rank 0: ")]
    assert said == [f"error: rank 0: output.dir: {folder} cannot be written: Not a directory"], ended.said
    assert all("lost rank 0 (pid " in line for line in ended.errors if line not in said), ended.said
