"""A folder is one run's at a time: who holds it is said, and whoever is gone holds nothing."""

import errno
import fcntl
import itertools
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.distributed.ends import record
from tests.distributed.forked import fork
from tests.distributed.launch import CONFIG, here, trouble
from tests.forkserver import forkserver
from wirebench.compose import run as train
from wirebench.errors import Unwritable, UserError
from wirebench.record import folder_lock
from wirebench.record.folder_lock import NAME, FolderLock, Holder

Change = Callable[[Holder], Holder]


def take(folder: Path, told: Path, job: str = "") -> None:
    """In a process of its own: take the folder, note whether that succeeds, and stay."""
    try:
        FolderLock(folder, job)
        said = "held"
    except UserError as error:
        said = str(error)
    (told / f"{os.getpid()}.tmp").write_text(said)
    (told / f"{os.getpid()}.tmp").rename(told / str(os.getpid()))
    time.sleep(600)


@contextmanager
def holding(folder: Path, told: Path, processes: int = 1) -> Iterator[dict[int, str]]:
    """Processes that want the folder, by number: what became of that. They are killed at the end."""
    told.mkdir()
    started = [forkserver().Process(target=take, args=(folder, told), daemon=True) for _ in range(processes)]
    for process in started:
        process.start()
    try:
        deadline = time.monotonic() + 60
        while len(said := [each for each in told.iterdir() if each.suffix != ".tmp"]) < processes:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield {int(each.name): each.read_text() for each in said}
    finally:
        for process in started:
            process.kill()
            process.join()


def left_by(folder: Path, change: Change, age: float = 0.0) -> Path:
    """The file of a holder that is this process but for `change`, and that has touched it `age` seconds ago."""
    lock = FolderLock(folder)
    lock._over.set()
    path = folder / NAME
    path.write_text(json.dumps(asdict(change(lock._mine))))
    os.utime(path, times=(time.time() - age,) * 2)
    return path


def test_a_second_run_is_told_who_holds_the_folder_until_that_one_is_killed(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "run"
    words = [CONFIG, f"output.dir={folder}", "train.max_steps=2"]
    with holding(folder, tmp_path / "told") as held:
        [pid] = held
        assert here(2, words) == 2
        who = rf"process {pid} on \S+ since \d{{4}}-\S+\+00:00"
        advice = "wait for its end, stop it, or choose another output.dir"
        line = f"error: output.dir: {re.escape(str(folder))} is in use by another run: {who}; {advice}\n"
        assert re.fullmatch(line, capsys.readouterr().err)
        ended = fork("torch", 2, words, tmp_path / "logs")
        assert set(ended.codes) <= {2, -signal.SIGTERM} and 2 in ended.codes, ended.said
        assert len(ended.errors) == 1 and f"process {pid} on" in ended.errors[0], ended.said
        assert [path.name for path in folder.iterdir()] == [NAME]
    assert here(2, words) == 0
    assert record(folder)["steps_done"] == 2 and not (folder / NAME).exists()


def test_of_runs_that_find_a_stale_file_one_takes_over(tmp_path: Path) -> None:
    left_by(tmp_path / "run", lambda me: replace(me, began=1))
    with holding(tmp_path / "run", tmp_path / "told", 4) as held:
        assert sorted(held.values())[0] == "held" and list(held.values()).count("held") == 1, held
        assert json.loads((tmp_path / "run" / NAME).read_text())["pid"] in held


@pytest.mark.parametrize(
    ("change", "age", "refused"),
    [
        (lambda me: replace(me, pid=os.getppid()), 1e6, False),
        (lambda me: replace(me, pid=2**22 + 1), 0, False),
        (lambda me: me, 0, False),
        (lambda me: replace(me, pid=os.getppid(), began=folder_lock.began(os.getppid())), 1e6, True),
        (lambda me: replace(me, pid=os.getppid(), began=folder_lock.began(os.getppid()), job="a"), 0, True),
        (lambda me: replace(me, machine="another", host="far"), 5, True),
        (lambda me: replace(me, machine="another", host="far"), 130, False),
        (lambda me: replace(me, machine="another", host="far"), -1e7, False),
        (lambda me: replace(me, machine="another", host="far", job="a"), 5, False),
        (lambda me: replace(me, machine="another", host="far", job="b"), 5, True),
    ],
)
@pytest.mark.parametrize("bare", [False, True], ids=["", "no-flock-no-links"])
def test_who_is_gone_holds_nothing(
    change: Change, age: float, refused: bool, bare: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_lock, "TURN_SECONDS", 0.1)
    monkeypatch.setattr(folder_lock, "BEAT_SECONDS", 0.1)
    if bare:
        for module, name in ((fcntl, "flock"), (os, "link")):
            monkeypatch.setattr(module, name, _unsupported)
    path = left_by(tmp_path, change, age)
    before = path.read_text()
    if refused:
        with pytest.raises(UserError, match="is in use by another run: process") as caught:
            FolderLock(tmp_path, "a")
        far = "far" in str(caught.value)
        assert far == ("machine" in before and '"another"' in before)
        assert (f"remove {path}" in str(caught.value)) == far
        assert path.read_text() == before
    else:
        lock = FolderLock(tmp_path, "a")
        assert json.loads(path.read_text())["pid"] == os.getpid() and path.read_text() != before
        lock.release()
    assert [each.name for each in tmp_path.iterdir()] == [NAME] * refused


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', "\0\xff"])
def test_a_file_that_names_nobody_counts_by_its_age(content: str, tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text(content)
    with pytest.raises(UserError, match=f"is in use by another run: the writer of {path}, .* s ago last; .*remove"):
        FolderLock(tmp_path)
    os.utime(path, times=(1.0, 1.0))
    FolderLock(tmp_path).release()
    assert not path.exists()


def _stopped(run: object) -> None:
    raise KeyboardInterrupt


def _broken(run: object) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("words", "conduct", "environment", "code"),
    [
        ([], None, {}, 0),
        ([], _stopped, {}, 130),
        ([], _broken, {}, 1),
        (["train.elastic=true"], None, {}, 2),
        ([], None, trouble("not_a_number", 0), 3),
    ],
    ids=["finished", "ctrl-c", "bug", "mistake", "diverged"],
)
def test_however_a_run_ends_its_folder_is_free(
    words: list[str],
    conduct: Callable[[object], None] | None,
    environment: dict[str, str],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if conduct is not None:
        monkeypatch.setattr(train, "conduct", conduct)
    assert here(2, [CONFIG, f"output.dir={tmp_path / 'run'}", "train.max_steps=2", *words], environment) == code
    assert not (tmp_path / "run" / NAME).exists()
    assert (tmp_path / "run").exists() == (code != 2)


def test_a_holder_touches_its_file_and_hears_that_another_has_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_lock, "BEAT_SECONDS", 0.01)
    lock = FolderLock(tmp_path)
    path = tmp_path / NAME
    os.utime(path, times=(1.0, 1.0))
    _wait(lambda: path.stat().st_mtime > 1)
    lock.check()
    other = replace(lock._mine, pid=7, host="far")
    path.write_text(json.dumps(asdict(other)))
    _wait(lambda: lock._lost_to is not None)
    with pytest.raises(Unwritable, match=f"{tmp_path} was taken over by process 7 on far"):
        lock.check()
    lock.release()
    assert json.loads(path.read_text())["pid"] == 7


def _unsupported(*_: object) -> None:
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_lock_from_the_future_that_is_touched_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a machine whose clock is ahead."""
    path = left_by(tmp_path, lambda me: replace(me, machine="another", host="far"), -1e7)
    looked = itertools.count()
    monkeypatch.setattr(folder_lock.time, "sleep", lambda _: os.utime(path, (4e9, 4e9 + next(looked))))
    with pytest.raises(UserError, match="is in use by another run: process"):
        FolderLock(tmp_path)


def test_a_name_that_is_no_path_is_one_line() -> None:
    with pytest.raises(UserError, match=r"^output.dir: 'a\\x00b' is no path"):
        FolderLock(Path("a\0b"))
