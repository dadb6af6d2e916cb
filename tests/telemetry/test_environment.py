"""The environment of a record: complete, serialisable, and without secrets."""

import json
import subprocess
import sys

import pytest
import torch

import wirebench
from wirebench.telemetry import environment, secrets
from wirebench.utils.package import TOP


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
    monkeypatch.setenv("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    for name in (
        "HOROVOD_SECRET_KEY", "AWS_SESSION_TOKEN", "NCCL_PASSWD", "NCCL_PASS", "OMP_PASSPHRASE", "GLOO_AUTH",
        "DATABASE", "TORCH_CREDENTIALS", "CUDA_APIKEY", "MKL_PWD",
    ):  # fmt: skip
        monkeypatch.setenv(name, "hidden")
    monkeypatch.setenv("NCCL_PROXY", "https://user:hidden@proxy:8080/path?level=3&token=hidden")
    monkeypatch.setenv("GLOO_HEADERS", "Authorization: Bearer hidden")
    monkeypatch.setenv("HOROVOD_MPI_ARGS", "-x API_TOKEN=hidden -x NCCL_DEBUG=WARN")
    monkeypatch.setattr(
        sys, "orig_argv", ["python", "train.py", "--password", "hidden", "data.root=s3://me:hidden@host/"]
    )
    found = capture()
    assert "hidden" not in json.dumps(found)
    assert found["command"] == "python train.py --password ... data.root=s3://...@host/"
    kept = {
        "NCCL_DEBUG": "INFO",
        "HOROVOD_FUSION_THRESHOLD": "0",
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_PROXY": "https://...@proxy:8080/path?level=3&token=...",
        "HOROVOD_MPI_ARGS": "-x API_TOKEN=... -x NCCL_DEBUG=WARN",
    }
    assert {name: found["variables"].get(name) for name in kept} == kept


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("wirebench bench overhead --password x --out y", "wirebench bench overhead --password ... --out y"),
        ("tool --db-passwd=x -- y", "tool --db-passwd=... -- y"),
        ("tool --api-key x --key y --keep 2", "tool --api-key ... --key ... --keep 2"),
        ("tool --token --verbose", None),
        ("env AWS_SECRET_ACCESS_KEY=a,b/c+d python train.py", "env AWS_SECRET_ACCESS_KEY=... python train.py"),
        ("srun --export=ALL,WANDB_API_KEY=a,b,X=1 true", "srun --export=ALL,WANDB_API_KEY=...,X=1 true"),
        ("curl -H 'authorization: bearer abc.def'", "curl -H 'authorization: ...'"),
        ("git clone https://ghp_0123456789abcdefghij@github.com/a/b", "git clone https://...@github.com/a/b"),
        ("git push https://u:p@ss@host/x@y", "git push https://...@host/x@y"),
        ("tool AKIAIOSFODNN7EXAMPLE hf_abcdefghijklmnopqrst", "tool ... ..."),
        ("tool eyJhbGciOi.eyJzdWIi.c2ln 'it''s", "tool ... 'it''s"),
        ("python train.py a.toml data.password=x model.max_tokens=512 compressor.key=3",
         "python train.py a.toml data.password=... model.max_tokens=512 compressor.key=3"),
        ("torchrun --nproc-per-node 2 --rdzv-endpoint host0:29400 train.py configs/smoke.toml optimizer.lr=1e-3", None),
        ("python train.py 'train.lr_steps=[1, 2]' output.dir=a@b:c data.root=tcp://h:1/x@y", None),
        ("wirebench cluster run --hosts 4 -- horovodrun -np 4 python train.py", None),
    ],
)  # fmt: skip
def test_a_command_is_kept_without_its_secrets(line, kept):
    assert environment.command_without_secrets(line) == (line if kept is None else kept)


@pytest.fixture
def checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "TOP", tmp_path)
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


def test_a_run_does_not_import_what_takes_seconds():
    """Horovod, and a compiler, which functions that no compiler may see load when they are decorated, or called."""
    code = (
        "import sys, torch; from wirebench.compose import run; from wirebench.telemetry import environment; "
        "from wirebench.profiling.layer_timer import LayerTimer; device = torch.device('cpu'); "
        "environment.capture(device); model = torch.nn.Linear(2, 2); timer = LayerTimer(model, [], device); "
        "timer.attach(); model(torch.ones(1, 2)).sum().backward(); "
        "sys.exit(bool({'horovod', 'torch._dynamo'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=TOP, timeout=120).returncode == 0


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("postgres://u:hunter2/w@host/db", "postgres://...@host/db"),
        ("s3://AKIA:hunter9/x@b", "s3://...@b"),
        ("http://me:pa ss@proxy:3128", "http://...@proxy:3128"),
        (f"https://AWS:{'ab/' * 700}@host/a", "https://...@host/a"),
        ("http://h:80/a http://me:p/w@ss@host", "http://h:80/a http://...@host"),
        ("--user me:hunter8 --user me", "--user ... --user me"),
        ('-x OPTS="--password hunter6"', '-x OPTS="--password ...'),
        ('["--password", "hunter6"]', '["--password", ...'),
        ("pypi-AgEIcHlwaS5vcmc sk_live_0123456789abcdef", "... ..."),
        ("Endpoint=sb://x/;SharedAccessKey=abc=;EntityPath=y", "Endpoint=sb://x/;SharedAccessKey=...;EntityPath=y"),
        ('{"password": "hunter3", "level": 3}', '{"password": ..., "level": 3}'),
        ("password: hunter4", "password: ..."),
        ("X-Api-Key: hunter5", "X-Api-Key: ..."),
        ("--level 2 --password hunter6", "--level 2 --password ..."),
        ("user:hunter7@proxy:80", "...@proxy:80"),
        ("mysql -phunter10 -h host", "mysql -p... -h host"),
        ("npm_0123456789abcdefghijABCDEFGHIJ", "..."),
        ("https://hooks.slack.com/services/T0/B0/hunter11", "https://hooks.slack.com/..."),
        ("AccountKey=hunter12==;EndpointSuffix=x", "AccountKey=...;EndpointSuffix=x"),
        ("image:tag@sha256:abc", None), ("git@github.com:owner/repo.git", None), ("a:1,b:2", None),
        ("tcp://10.0.0.1:29500/x@y", None), ("compressor=topk:density=0.01", None),
    ],
)  # fmt: skip
def test_secrets_of_any_look_are_left_out_of_values(text: str, kept: str | None) -> None:
    assert secrets.without_secrets(text) == (text if kept is None else kept)


@pytest.mark.parametrize("name", ["KMP_DBPASS", "MKL_DBPASS", "OMP_PASSCODE", "NCCL_PASSWD"])
def test_names_that_end_as_passwords_do(name: str) -> None:
    assert secrets.is_secret(name) and not secrets.is_secret("KMP_AFFINITY")


@pytest.mark.timeout(120)
@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "part", ["a:", "a", " ", "eyJ", "//", "a=b,", '"', "-p ", "a@", "--a ", "pw:", "mysql -p", "//a:", "1:", "a= "]
)
def test_a_long_text_is_read_once(part: str) -> None:
    """128 KiB, the longest argument: minutes, if a part of it were read again and again."""
    for end in ("", "@", " @"):
        secrets.command_without_secrets(part * (131_072 // len(part)) + end)
