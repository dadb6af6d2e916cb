"""Checkpoints are written beside training, from a copy: it goes on meanwhile, and what fails or is slow is not lost."""

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.ends import checkpoints, losses, record, tensors
from tests.distributed.launch import CONFIG, here, slowly, trouble
from wirebench.training import checkpoint, state_files
from wirebench.training.state_files import Contents
from wirebench.utils.background import Background

LIMIT_SECONDS = 60.0
SLOW_SECONDS = 0.4
Write = Callable[[Path, Contents, int], None]


def run(folder: Path, *overrides: str, environment: Mapping[str, str] | None = None) -> int:
    return here(2, [CONFIG, f"output.dir={folder}", *overrides], environment)


def write_after(monkeypatch: pytest.MonkeyPatch, before: Callable[[Path], None]) -> None:
    """`before` is called with each checkpoint's path, before it is written."""

    def write(final: Path, contents: Contents, keep: int) -> None:
        before(final)
        state_files.write(final, contents, keep)

    monkeypatch.setattr(checkpoint, "write", write)


def sleep(final: Path) -> None:
    time.sleep(SLOW_SECONDS)


def steps_done(folder: Path) -> int:
    return len((folder / "steps.jsonl").read_text().splitlines())


def fill_up_at(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The disk is full once the checkpoint `name` has its model."""
    write_file = state_files.write_file

    def pack_until_full(path: Path, tree: Mapping[str, Any]) -> None:
        if name in str(path) and path.name.startswith("rank"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write_file(path, tree)

    monkeypatch.setattr(state_files, "write_file", pack_until_full)


def said_of_full_disk(folder: Path, failed: str, newest: str) -> str:
    advice = f"resume with output.dir={folder} train.resume=auto (newest checkpoint: {newest})"
    where = folder / "checkpoints" / failed
    return f"error: {where}: the checkpoint cannot be written: No space left on device; {advice}\n"


@pytest.mark.parametrize(
    "composition",
    [[], ["scheduler.name=dear", "compressor.name=none"], ["scheduler.name=easgd", "compressor.name=none"]],
    ids=["topk", "dear", "easgd"],
)
def test_training_goes_on_and_the_file_has_the_state_of_its_step(
    composition: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of step 2 is not begun before step 4 is done: a writer that training waited for would wait on."""
    slow, waited = tmp_path / "slow", list[bool]()

    def wait_for_later_steps(final: Path) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while final.name == "step-00000002" and steps_done(slow) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        waited.append(steps_done(slow) >= 4)

    each = [*composition, "train.epochs=2", "train.checkpoint_every_steps=2"]
    for steps in (2, 5):
        assert run(tmp_path / f"plain-{steps}", *each, f"train.max_steps={steps}") == 0
    write_after(monkeypatch, wait_for_later_steps)
    # Step 5 of the second run is saved by nobody; the checkpoint of step 4 waits for that of step 2.
    assert run(slow, *each, "train.max_steps=5") == 0
    assert waited == [True, True]
    assert [path.name for path in checkpoints(slow)] == ["step-00000002", "step-00000004"]
    early, late = checkpoints(slow)
    for name in ("model", "rank-0000", "rank-0001"):
        mine = (early / f"{name}.safetensors").read_bytes()
        assert mine == (tmp_path / f"plain-2/checkpoints/{early.name}/{name}.safetensors").read_bytes()
        assert mine != (late / f"{name}.safetensors").read_bytes()
    progress = json.loads((early / "state.json").read_text())["progress"]
    assert (progress["step"], progress["history"], progress["open_epoch"]) == (2, [], None)
    assert losses(slow) == losses(tmp_path / "plain-5")
    newest, expected = tensors(slow), tensors(tmp_path / "plain-5")
    assert all(torch.equal(newest[name], expected[name]) for name in expected)


def test_the_record_has_how_long_training_stood_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each checkpoint but the first waits for the one before, and the end for the last: none is written before that."""
    assert run(tmp_path / "none", "train.checkpoint_every_steps=0", "train.max_steps=3") == 0
    assert record(tmp_path / "none")["checkpoints"] == {"saved": 0, "stall_seconds": 0.0}
    waits, wait = threading.Event(), Background.wait

    def noted(background: Background) -> None:
        if background._name == "wirebench-checkpoint":
            waits.set()
        wait(background)
        waits.clear()

    def late(final: Path) -> None:
        assert waits.wait(LIMIT_SECONDS)
        time.sleep(0.1)

    monkeypatch.setattr(Background, "wait", noted)
    write_after(monkeypatch, late)
    each = ["train.max_steps=3", "train.checkpoint_every_steps=1"]
    assert run(tmp_path / "busy", *each) == 0
    busy = record(tmp_path / "busy")["checkpoints"]
    assert busy["saved"] == 3
    assert 0.3 <= busy["stall_seconds"] < record(tmp_path / "busy")["seconds_total"]


def test_a_disk_that_is_full_ends_the_run_at_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not at the next checkpoint only, which may be an epoch away."""
    fill_up_at(monkeypatch, "step-00000008")
    assert run(tmp_path, "train.checkpoint_every_steps=4", environment=slowly(50)) == 2
    assert capsys.readouterr().err == said_of_full_disk(tmp_path, "step-00000008", "step-00000004")
    assert len(losses(tmp_path)) in range(8, 12)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000004"]
    assert not (tmp_path / "record.json").exists()
    monkeypatch.undo()
    assert run(tmp_path, "train.resume=auto") == 0
    assert record(tmp_path)["resumed_at"] == 4


def test_a_disk_that_is_full_at_the_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_up_at(monkeypatch, "step-00000012")
    assert run(tmp_path) == 2
    assert capsys.readouterr().err == said_of_full_disk(tmp_path, "step-00000012", "step-00000010")
    assert checkpoints(tmp_path)[-1].name == "step-00000010"
    assert not (tmp_path / "record.json").exists()


@pytest.mark.parametrize(
    ("kind", "code", "saved"), [("terminate", 0, 3), ("not_a_number", 3, 2), ("error", 1, 2)], ids=str
)
def test_whatever_ends_a_run_what_was_copied_is_complete(
    kind: str, code: int, saved: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the third step, while the checkpoint of two steps is being written."""
    write_after(monkeypatch, sleep)
    assert run(tmp_path, environment=trouble(kind, 2)) == code
    assert checkpoints(tmp_path)[-1].name == f"step-{saved:08d}"
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_a_failure_beside_another_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process ends for its first reason, and says that the checkpoint is not there either."""
    fill_up_at(monkeypatch, "step-00000002")
    write_after(monkeypatch, sleep)
    assert run(tmp_path, environment=trouble("error", 2)) == 1
    said = capsys.readouterr()
    assert "RuntimeError: the model broke" in said.err
    where = tmp_path / "checkpoints/step-00000002"
    assert f"warning: {where}: the checkpoint cannot be written: No space left on device" in said.out.splitlines()


@pytest.mark.parametrize("keep", [1, 2])
def test_the_oldest_go_only_once_a_newer_one_is_complete(
    keep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[list[str]] = []
    write_after(monkeypatch, lambda final: there.append([path.name for path in checkpoints(tmp_path)]))
    assert run(tmp_path, f"train.keep={keep}", "train.max_steps=6") == 0
    assert [len(names) for names in there] == [0, *range(1, keep), *[keep] * (3 - keep)]
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000002", "step-00000004", "step-00000006"][-keep:]


class Killed(BaseException):
    """The process is gone: nothing after it is done, no clean-up either."""


OPERATIONS = ("rename", "replace", "unlink", "rmdir", "mkdir", "fsync")


def killed_at(patch: pytest.MonkeyPatch, number: int) -> list[str]:
    """From the file operation `number` on none is done any more; returns the list into which their names are put."""
    seen: list[str] = []

    def counted(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def operation(*arguments: object, **options: object) -> object:
            seen.append(name)
            if len(seen) > number:
                raise Killed(name)
            return real(*arguments, **options)

        return operation

    for name in OPERATIONS:
        patch.setattr(os, name, counted(name, getattr(os, name)))
    return seen


@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("step", [2, 3], ids=["the-same-step", "a-later-step"])
def test_a_kill_at_any_file_operation_leaves_a_whole_checkpoint(
    step: int, keep: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contents(value: float) -> Contents:
        tree = {"value": torch.full((3,), value)}
        return Contents(tree, [tree], {"size": 1, "steps_per_epoch": 9}, {}, {"value": value})

    number, dead = 0, True
    while dead:
        folder = tmp_path / str(number)
        for earlier in (1, 2):
            state_files.write(folder / f"step-{earlier:08d}", contents(earlier), keep)
        with monkeypatch.context() as patch:
            killed_at(patch, number)
            dead = False
            try:
                state_files.write(folder / f"step-{step:08d}", contents(7), keep)
            except Killed:
                dead = True
        newest = state_files.candidates(folder, "auto")[0]
        state = state_files.read_state(newest)
        state_files.read_files(newest, state["files"], 1)
        assert state["progress"]["value"] in ({2.0, 7.0} if dead else {7.0}), newest
        named = state_files.candidates(folder, str(folder / f"step-{2:08d}" if newest.stem.endswith("2") else folder))
        assert newest in named
        state_files.write(folder / f"step-{step:08d}", contents(8), keep)
        left = sorted(path.name for path in folder.iterdir())
        assert left == [f"step-{kept:08d}" for kept in ([step - 1, step] if keep > 1 else [step])], number
        number += 1
    assert number > 10
