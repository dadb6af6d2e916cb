"""make bench-*: the commands of studies can be run as they stand, up to the first thing that they launch."""

import shlex
import subprocess
from pathlib import Path

import pytest

from suite.cli import study
from suite.studies.methods import run as methods
from suite.studies.runner import ROOT, Command

TARGETS = ("flexreduce", "methods", "schedules", "break-even", "prediction", "convergence", "mgwfbp")


def commands(target: str) -> list[list[str]]:
    """The words after `wirebench study` of each command of a target, with make's variables in their places."""
    dry = ["make", "-n", "--no-print-directory", f"bench-{target}", "TURNS=1", "CIFAR=nowhere"]
    text = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True).stdout.replace("\\\n", " ")
    lines = [line for line in text.splitlines() if "wirebench study" in line]
    parts = [part for line in lines for part in line.replace("&&", ";").replace("||", ";").split(";")]
    return [shlex.split(part)[2:] for part in parts if "wirebench study" in part]


@pytest.mark.parametrize("target", TARGETS)
def test_every_run_of_a_target_is_planned_and_launched(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "RESULTS", tmp_path)
    launched: list[Command] = []

    def failing(command: Command) -> int:
        launched.append(command)
        return 1

    for place, words in enumerate(words for words in commands(target) if words[1] == "run"):
        launched.clear()
        out = [] if words[0] == "methods" else ["--out", str(tmp_path / str(place))]
        assert study.main([*words, *out], failing) == 1, "every run failed, and none of its flags was wrong"
        assert launched


def test_every_study_has_a_target() -> None:
    named = {words[0] for target in TARGETS for words in commands(target)}
    assert named == set(study.available())
