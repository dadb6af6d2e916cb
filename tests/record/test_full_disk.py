"""A disk that fills up ends a run in one line, which names the last checkpoint; nothing of ours fails after that."""

import errno
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
import torch.distributed as dist

from tests.distributed.ends import assert_same_end, checkpoints, losses, record
from tests.distributed.launch import CONFIG, here
from wirebench.comm.peers import leave_word, word_left
from wirebench.errors import Unwritable
from wirebench.record import writer as record_module
from wirebench.record.writer import RunRecord
from wirebench.utils import files

FULL = "No space left on device"


def fill_up_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of steps.jsonl go to a device that is always full, once `steps` of them are written."""
    open_steps = record_module.open_steps

    class Filling:
        def __init__(self, file: TextIO) -> None:
            self.file, self.left = file, steps

        def write(self, text: str) -> None:
            self.left -= 1
            if self.left == -1:
                os.dup2(os.open("/dev/full", os.O_WRONLY), self.file.fileno())
            self.file.write(text)

        def __getattr__(self, name: str) -> object:
            return getattr(self.file, name)

    monkeypatch.setattr(record_module, "open_steps", lambda *where: Filling(open_steps(*where)))


@pytest.mark.parametrize(
    ("steps", "advice"),
    [
        (5, "resume with output.dir={folder} train.resume=auto (newest checkpoint: step-00000004)"),
        (1, "no checkpoint was saved (train.checkpoint_every_steps)"),
    ],
)
def test_a_step_that_cannot_be_logged_ends_the_run_in_one_line(
    steps: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_up_after(steps, monkeypatch)
    run = [CONFIG, f"output.dir={tmp_path}", "train.resume=auto"]
    assert here(2, run) == 2
    expected = f"error: {tmp_path / 'steps.jsonl'}: cannot be written: {FULL}; {advice.format(folder=tmp_path)}\n"
    assert capsys.readouterr().err == expected
    assert not (tmp_path / "record.json").exists()
    assert len(losses(tmp_path)) == steps
    monkeypatch.undo()
    assert here(2, run) == 0
    assert record(tmp_path)["resumed_at"] == (4 if steps > 4 else None)
    assert len(losses(tmp_path)) == 12
    assert checkpoints(tmp_path)[-1].name == "step-00000012"


@pytest.mark.parametrize("name", ["record.json", "trace.json"])
def test_what_is_written_at_the_end_is_named_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace = os.replace

    def fail_for_one(source: Path, target: Path) -> None:
        if target.name == name:
            raise OSError(errno.ENOSPC, FULL)
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", fail_for_one)
    assert here(2, [CONFIG, f"output.dir={tmp_path}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path / name}: cannot be written: {FULL}; resume with ")
    assert line.endswith("(newest checkpoint: step-00000012)")


def test_tensorboards_thread_shows_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[object] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)
    plain = {section: {"name": "none"} for section in ("compressor", "scheduler", "collective")}
    book = RunRecord(tmp_path, plain, "", {}, True, 1, print)
    with pytest.raises(Unwritable, match=rf"^{tmp_path}/tb: cannot be written: {FULL}$"):
        write_scalars_until_full(book)
    book.close()
    assert shown == []
    assert threading.excepthook == shown.append, "the hook is given back"


def write_scalars_until_full(book: RunRecord) -> None:
    """Turn the event file into a device that is full, then go on."""
    book.epoch({"epoch": 0, "loss": 1.0})
    [events] = (book.directory / "tb").glob("*/events.*")
    full = events.with_name("full")
    full.symlink_to("/dev/full")
    full.replace(events)  # in one step: the writing thread would create the file anew
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        book.epoch({"epoch": 0, "loss": 1.0})
        book._scalars._writer.file_writer.event_writer._async_writer._worker._next_flush_time = 0  # type: ignore[union-attr]
        time.sleep(0.01)


def test_the_others_hear_why_a_rank_ends() -> None:
    store = dist.HashStore()
    assert word_left(store, 1) == ""
    assert not store.check(["leaving/1"])
    leave_word(store, "rank 0 cannot go on: its disk is full")
    assert word_left(store, 1) == "rank 0 cannot go on: its disk is full"
    assert store.check(["leaving/1"]), "rank 0 waits no longer for a rank that has read it"
    assert word_left(None, 0) == ""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "wirebench-test", folder], capture_output=True)
    if done.returncode:
        pytest.skip("needs root, who may mount a tmpfs")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path, but_bytes: int) -> Path:
    """Take all room of the file system but so many bytes; the file that takes it."""
    space = os.statvfs(folder)
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(space.f_bavail * space.f_frsize - but_bytes))
    return ballast


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("left", "every", "what"),
    [(16_384, 2, "the checkpoint cannot be written"), (8_192, 1000, "steps.jsonl: cannot be written")],
    ids=["mid-checkpoint", "mid-run"],
)
def test_what_was_saved_outlives_a_small_disk_that_fills(
    left: int, every: int, what: str, small_disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small_disk / "run"
    base = [CONFIG, "train.epochs=99", "train.eval_every=0"]
    run = [*base, f"output.dir={folder}", "train.resume=auto"]
    assert here(2, [*run, "train.max_steps=4"]) == 0
    ballast = fill(small_disk, left)
    assert here(2, [*run, "train.max_steps=300", f"train.checkpoint_every_steps={every}"]) == 2
    [line] = [each for each in capsys.readouterr().err.splitlines() if each.startswith("error: ")]
    newest = checkpoints(folder)[-1].name
    assert what in line and FULL in line and line.endswith(f"(newest checkpoint: {newest})"), line
    ballast.unlink()
    assert here(2, [*run, "train.max_steps=80"]) == 0
    assert record(folder)["resumed_at"] == int(newest.removeprefix("step-")) < 80
    unbroken = tmp_path / "unbroken"
    assert here(2, [*base, f"output.dir={unbroken}", "train.max_steps=80"]) == 0
    assert_same_end(folder, unbroken)
