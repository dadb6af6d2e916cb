"""Runs that a study starts."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from papers import series
from papers.runner import BUSY_SECONDS, LAST_LINES, WIREBENCH, Busy, Command, Launch, Part, attempt, measure, run, shown
from papers.trainings import Training
from tests.flexreduce import run_record
from wirebench.cluster.signals import Interrupted
from wirebench.errors import UserError


def test_the_exit_code_is_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([sys.executable, "-c", "print('all is well')"]) == 0
    assert capsys.readouterr().err == ""


def test_of_a_command_that_fails_the_end_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    script = "for line in range(99): print(line, flush=True)\nraise SystemExit('what went wrong')"
    assert run([sys.executable, "-c", script]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-LAST_LINES:] == [*map(str, range(99 - LAST_LINES + 1, 99)), "what went wrong"]
    assert lines[0].startswith("+ python -c 'for line in range(99)") and len(lines) <= LAST_LINES + 2


@pytest.mark.parametrize(
    ("number", "passed_on", "code"),
    [("SIGTERM", "SIGTERM", 143), ("SIGHUP", "SIGTERM", 129), ("SIGINT", "SIGINT", 130)],
)
def test_a_stop_reaches_the_run_that_is_under_way(
    tmp_path: Path, number: str, passed_on: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where no terminal has told the child already.
    monkeypatch.setattr("papers.runner._in_foreground", lambda: False)
    child = tmp_path / "child.py"
    ended, begun = tmp_path / "ended", tmp_path / "begun"
    child.write_text(
        "import signal, sys, time\n"
        f"signal.signal(signal.{passed_on}, lambda *_: (open({str(ended)!r}, 'w').close(), sys.exit(3)))\n"
        f"open({str(begun)!r}, 'w').close()\n"
        "time.sleep(600)\n"
    )

    def stop_soon() -> None:
        while not begun.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), getattr(signal, number))

    threading.Thread(target=stop_soon, daemon=True).start()
    with pytest.raises(Interrupted) as stopped:
        run([sys.executable, str(child)])
    assert stopped.value.exit_code == code
    assert ended.exists()


@pytest.mark.parametrize(
    ("status", "code", "well"),
    [
        ("finished", 0, True),
        ("finished", 1, False),
        ("diverged", 3, True),
        ("diverged", 1, True),  # a launcher's code for any rank that failed
        ("interrupted", 0, False),
        (None, 0, False),
    ],
)
def test_the_record_says_whether_a_run_left_a_result(tmp_path: Path, status: str, code: int, well: bool) -> None:
    def launch(command: list[str]) -> int:
        if status is not None:
            (tmp_path / "record.json").write_text(json.dumps(run_record(status=status)))
        return code

    assert attempt(["python"], tmp_path, launch) is well


@pytest.mark.parametrize(("status", "code"), [("diverged", 3), ("interrupted", 3), ("finished", 0)])
def test_the_record_of_an_earlier_attempt_is_not_this_ones(tmp_path: Path, status: str, code: int) -> None:
    """But a run that had finished still has."""
    (tmp_path / "record.json").write_text(json.dumps(run_record(status=status)))
    assert attempt(["python"], tmp_path, lambda command: code) is (status == "finished")


def test_commands_are_shown_as_one_types_them() -> None:
    assert shown([*WIREBENCH, "cluster", "run", "--", "python"]) == "wirebench cluster run -- python"
    assert shown([sys.executable, "train.py", "a b"]) == "python train.py 'a b'"


class Slow:
    """A run that takes 90 s, or as long as is said, by a clock of its own."""

    def __init__(self, label: str, clock: list[float], works: bool = True, seconds: float = 90.0) -> None:
        self.label, self.clock, self.works, self.seconds = label, clock, works, seconds

    def check(self) -> None:
        pass

    def is_there(self, out: Path) -> bool:
        return False

    def make(self, out: Path, launch: Launch, again: bool = False) -> bool:
        self.clock[0] += self.seconds
        return self.works


def test_a_study_says_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that fails says nothing of the time that others take."""
    clock = [0.0]
    monkeypatch.setattr("papers.runner.time.monotonic", lambda: clock[0])
    planned = [Slow("a-0", clock, works=False), Slow("a-1", clock), Slow("b-0", clock)]
    assert measure({tmp_path: planned}, lambda command: 0) == ["a-0"]
    assert capsys.readouterr().err.splitlines() == [
        "cell 1 of 3: a-0", "cell 2 of 3: a-1", "cell 3 of 3: b-0, about 2 min left",
    ]  # fmt: skip


def test_the_cells_of_several_settings_are_one_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell is expected to take what its own setting's cells took, before there is one what any took."""
    clock = [0.0]
    monkeypatch.setattr("papers.runner.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("papers.runner.AFTER_SECONDS", 100.0)
    planned = {
        tmp_path / "vgg16": [Slow("topk", clock), Slow("topk", clock)],
        tmp_path / "resnet20": [Slow("topk", clock, seconds=30.0), Slow("topk", clock, works=False, seconds=30.0)],
    }
    shown_after: list[str] = []
    assert measure(planned, lambda command: 0, after=lambda out: shown_after.append(out.name)) == ["resnet20: topk"]
    assert capsys.readouterr().err.splitlines() == [
        "cell 1 of 4: vgg16: topk",
        "cell 2 of 4: vgg16: topk, about 4 min left",
        "cell 3 of 4: resnet20: topk, about 3 min left",
        "cell 4 of 4: resnet20: topk, about 0 min left",
    ]
    # After 80 seconds not yet, after 160; then resnet20 for the first time after 190, and at 220 not again.
    assert shown_after == ["vgg16", "resnet20"]


class Shared(Slow):
    """A run that another call makes now: at the third look it is there."""

    looks = 0

    def is_there(self, out: Path) -> bool:
        return self.looks > 2

    def make(self, out: Path, launch: Launch, again: bool = False) -> bool:
        self.looks += 1
        raise Busy(f"{self.label}: another call makes this run now")


def test_two_calls_share_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left waits for the other call: nothing is made twice, and nothing counts as failed."""
    clock, waits = [0.0], list[float]()
    monkeypatch.setattr("papers.runner.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("papers.runner.time.sleep", waits.append)
    theirs, mine = Shared("a-0", clock), [Slow("b-0", clock), Slow("c-0", clock)]
    assert measure({tmp_path: [theirs, *mine]}, lambda command: 0) == []
    assert clock == [180.0] and theirs.looks == 3 and waits == [BUSY_SECONDS, BUSY_SECONDS]
    assert capsys.readouterr().err.splitlines() == [
        "cell 1 of 3: a-0", "a-0: another call makes this run now", "cell 2 of 3: b-0",
        "cell 3 of 3: c-0, about 3 min left",
    ]  # fmt: skip


def test_a_training_that_another_call_makes_is_left_alone(tmp_path: Path) -> None:
    training = Training("dense-0", "dense", None, Path("configs/smoke.toml"), ())
    lock = tmp_path / ".dense-0.part.lock"

    def launch(command: list[str]) -> int:
        with pytest.raises(Busy, match="dense-0: another call makes this run now"):
            training.make(tmp_path, launch)
        return 1

    assert not training.make(tmp_path, launch) and not lock.exists(), "and the lock goes with the call"


def test_a_training_that_another_call_has_made_since_is_not_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training("dense-0", "dense", None, Path("configs/smoke.toml"), ())
    monkeypatch.setattr(Training, "is_there", lambda self, out: True)
    launched: list[Command] = []

    def launch(command: Command) -> int:
        launched.append(command)
        return 1

    assert training.make(tmp_path, launch) and not launched
    assert not training.make(tmp_path, launch, again=True) and launched


def test_a_call_that_makes_runs_anew_shares_none(tmp_path: Path) -> None:
    with pytest.raises(Busy, match="a-0: another call makes this run now"):
        measure({tmp_path: [Shared("a-0", [0.0])]}, lambda command: 0, again=True)


class Runs:
    """A study's run.py: its parts, and what runs one of them."""

    def __init__(self, parts: list[Part], run: Callable[[list[str]], list[str]]) -> None:
        self.parts, self.make = parts, run

    def series(self, quick: bool) -> list[Part]:
        return self.parts

    def run(self, words: list[str], launch: Launch) -> list[str]:
        return self.make(words)


def test_all_studies_say_how_long_all_of_them_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "one": [Part(10, ["--turns", "1"]), Part(4, ["--data", "{data}"])],
        "two": [Part(20, ["--images", "{images}", "--x"]), Part(5, ["--fails"])],
        "three": [Part(8, [])],
    }
    ran: list[list[str]] = []

    def ran_as(name: str, words: list[str]) -> list[str]:
        ran.append(words)
        if words == ["--fails"]:
            raise UserError("other settings")
        return []

    monkeypatch.setattr(series, "available", lambda: list(given))
    monkeypatch.setattr(series, "Study", lambda name: SimpleNamespace(runs=Runs(given[name], partial(ran_as, name))))
    monkeypatch.setattr(series, "options_of", lambda name, words: words)
    assert series.run_all(True, {"data": None, "images": tmp_path}, lambda command: 0) == ["two"]
    assert ran == [["--turns", "1"], ["--images", str(tmp_path), "--x"], ["--fails"], []]
    left = [line.partition("about ")[2].partition(" min")[0] for line in capsys.readouterr().err.splitlines()]
    assert left == ["", "43", "33", "13", "", "8"]


def test_a_folder_that_is_not_there_is_told_before_the_first_study(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^--data: .*absent: is no folder; expected the folder of CIFAR-10$"):
        series.run_all(True, {"data": tmp_path / "absent", "images": tmp_path}, lambda command: 0)
