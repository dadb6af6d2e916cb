"""The environment of a record: complete, serialisable, and without secrets."""

import json
import subprocess
import sys

import pytest
import torch

import wirebench
from wirebench.telemetry import environment


def capture():
    return environment.capture(torch.device("cpu"))


def test_says_where_the_run_was():
    found = capture()
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["wirebench"] == wirebench.__version__
    assert found["versions"]["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    flags = ["avx", "avx2", "f16c", "fma"]
    assert found["cpu"] == {"model": "Test Processor", "flags": flags, "cores": 2, "memory_mb": 16_000}
    assert found["threads_per_process"] == torch.get_num_threads()
    assert (found["hostname"], found["kernel"]) == ("test-host", "6.0") and sys.orig_argv[0] in found["command"]
    assert found["utc"].endswith("+00:00")
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_keeps_settings_and_leaves_secrets_out(monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "0")
    monkeypatch.setenv("HOROVOD_SECRET_KEY", "hidden")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "hidden")
    found = capture()
    assert found["variables"]["NCCL_DEBUG"] == "INFO"
    assert found["variables"]["HOROVOD_FUSION_THRESHOLD"] == "0"
    assert "hidden" not in json.dumps(found)


@pytest.fixture
def checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def git(folder, *arguments):
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_commit_and_dirty_flag(checkout):
    git(checkout, "init")
    (checkout / "train.py").write_text("pass\n")
    assert capture()["git"] is None, "no commit yet"
    git(checkout, "add", "train.py")
    git(checkout, "commit", "-m", "first")
    commit = git(checkout, "rev-parse", "HEAD")
    assert capture()["git"] == {"commit": commit, "dirty": False}
    (checkout / "results").mkdir()
    (checkout / "results" / "table.md").write_text("what a run writes does not change what ran\n")
    assert capture()["git"] == {"commit": commit, "dirty": False}
    (checkout / "train.py").write_text("changed\n")
    assert capture()["git"] == {"commit": commit, "dirty": True}


def test_outside_git(checkout, monkeypatch):
    assert capture()["git"] is None
    (checkout / ".git").mkdir()
    assert capture()["git"] is None, "not a checkout"
    monkeypatch.setenv("PATH", str(checkout))
    assert capture()["git"] is None, "no git command"


def test_does_not_import_horovod():
    code = (
        "import sys, torch; from wirebench.telemetry import environment; "
        "environment.capture(torch.device('cpu')); sys.exit('horovod' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=environment.ROOT, timeout=120).returncode == 0
