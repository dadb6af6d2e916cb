"""Files of named clusters, and processes that are not theirs any more."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from wirebench.cli.jobs import cluster
from wirebench.cluster import namespaces, state
from wirebench.cluster.launcher import Cluster
from wirebench.cluster.plan import make_plan
from wirebench.errors import UserError

PLAN = make_plan("1+1", "1gbit")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def process():
    with subprocess.Popen(["sleep", "100"]) as process:
        yield process
        process.kill()


def test_python_and_wirebench_are_those_of_this_environment():
    assert cluster._command(["python", "train.py"], PLAN) == [sys.executable, "train.py"]
    assert cluster._command(["wirebench", "show"], PLAN) == [sys.executable, "-m", "wirebench", "show"]


@pytest.mark.parametrize("words", ["python train.py C", "wirebench train C", "python -m wirebench train C"])
def test_what_trains_is_told_how_slow_its_cluster_is(words: str) -> None:
    slow = replace(PLAN, dilation=10)
    assert cluster._command(words.split(), slow)[-1] == "network.dilation=10"


def test_found_again(process: subprocess.Popen):
    given = Cluster(PLAN, process.pid, {"h0": 2, "h1": 3})
    with state.reserve("lab"):
        state.save("lab", given)
    assert state.find("lab").cluster == given
    with pytest.raises(UserError, match="no cluster 'lap' is up; there is: lab"):
        state.find("lap")
    with pytest.raises(UserError, match="up already"), state.reserve("lab"):
        raise AssertionError("the name was had twice")
    assert state.end(state.find("lab"))
    assert process.wait(60) == -9
    assert not state.every()


def test_a_number_that_is_used_again_is_not_killed(process: subprocess.Popen):
    state.save("lab", Cluster(PLAN, process.pid, {}))
    file = state.folder() / "lab.json"
    ticks = state.every()[0].started_ticks
    file.write_text(file.read_text().replace(str(ticks), str(ticks - 1)))
    [known] = state.every()
    assert not known.alive
    assert not state.end(known)
    assert process.poll() is None
    assert not state.every()


def test_a_broken_cluster_does_not_hide_the_others(process: subprocess.Popen, capsys: pytest.CaptureFixture):
    state.save("lab", Cluster(PLAN, process.pid, {"h0": 2, "h1": 3}))
    state.save("map", Cluster(PLAN, process.pid, {"h0": 4, "h1": 5}))
    assert cluster.main(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "cluster lab: 1+1 ranks",
        "  the cluster has lost its host h0: take it down and up again",
        "cluster map: 1+1 ranks",
        "  the cluster has lost its host h0: take it down and up again",
    ]


def test_a_file_of_another_version():
    (state.folder() / "old.json").write_text('{"name": "old"}')
    with pytest.raises(UserError, match=r"old\.json was written by another version"):
        state.every()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_somebody_elses_folder(tmp_path: Path):
    (tmp_path / "wirebench").mkdir()
    os.chown(tmp_path / "wirebench", 65534, 65534)
    with pytest.raises(UserError, match="not a folder of yours"):
        state.folder()


def test_a_missing_program(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(namespaces.shutil, "which", lambda tool, path: None if tool == "tc" else tool)
    with pytest.raises(UserError, match=r"^tc is missing: apt install iproute2$"):
        namespaces.check()


def test_a_kernel_that_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    tool = tmp_path / "unshare"
    tool.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(UserError, match="unshare failed: Operation not permitted"):
        namespaces.check()


def test_what_helps_depends_on_who_asks():
    said = ["unshare: unshare failed: Operation not permitted"]
    assert "kernel.unprivileged_userns_clone=1" in namespaces.refusal(False, said)
    assert "docker run --privileged" in namespaces.refusal(True, said)
    assert "docker run --privileged" in namespaces.refusal(
        False, ["unshare: mount /proc failed: Operation not permitted"]
    )


def test_a_cluster_that_is_taken_down_is_waited_for():
    process = subprocess.Popen(["sleep", "600"])
    ending = Cluster(make_plan("1+1", "1gbit"), process.pid, {})
    assert not ending.ends_within(0.0)
    threading.Timer(0.1, process.kill).start()
    assert ending.ends_within(60.0)
    process.wait()
    assert ending.ends_within(0.0)
