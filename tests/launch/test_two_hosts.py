"""Two hosts with sshd, each in its own network namespace, and horovodrun across them: losses are those of one host."""

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster.running import CLUSTER
from tests.distributed.launch import ROOT, launch
from wirebench.cluster import namespaces
from wirebench.errors import UserError

CONFIG = ["configs/smoke.toml", "train.max_steps=6", "train.eval_every=0", "output.tensorboard=false"]


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "steps.jsonl").read_text().splitlines()]


@pytest.fixture
def ssh(tmp_path: Path) -> Path:
    """What ~/.ssh holds on every host: a key, and the settings that the images have."""
    if not Path("/usr/sbin/sshd").exists() or shutil.which("ssh") is None:
        pytest.skip("needs sshd and ssh: apt-get install openssh-server openssh-client")
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not built here (WIREBENCH_NO_HOROVOD)")
    try:
        namespaces.check()
    except UserError as error:
        pytest.skip(str(error))
    folder = tmp_path / "ssh"
    folder.mkdir(mode=0o700)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "id_rsa"], check=True)
    shutil.copy(folder / "id_rsa.pub", folder / "authorized_keys")
    shutil.copy(ROOT / "launch/ssh_config", folder / "config")
    (Path.home() / ".ssh").mkdir(mode=0o700, exist_ok=True)
    return folder


@pytest.mark.slow
def test_two_hosts_train_as_one(ssh: Path, tmp_path: Path) -> None:
    script = ROOT / "tests/launch/on_each_host.sh"
    words = ["h0:2,h1:2", *CONFIG, f"output.dir={tmp_path / 'two'}"]
    run = [*CLUSTER, "run", "--hosts", "2", "--link", "1gbit", "--", script, tmp_path, *words]
    done = subprocess.run(list(map(str, run)), cwd=ROOT, capture_output=True, text=True, timeout=200)
    logs = "\n".join(path.read_text() for path in tmp_path.glob("sshd-*.log"))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    one = launch("horovod", 4, [*CONFIG, f"output.dir={tmp_path / 'one'}"], tmp_path)
    assert one.code == 0, one.said
    record = json.loads((tmp_path / "two/record.json").read_text())
    assert [sorted(each["ranks"]) for each in record["environment"]["hosts"]] == [[0, 1], [2, 3]]
    assert losses(tmp_path / "two") == losses(tmp_path / "one")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "usage: launch/horovodrun-hosts.sh HOST:RANKS,HOST:RANKS..."),
        (["h1,h2"], "usage: launch/horovodrun-hosts.sh HOST:RANKS,HOST:RANKS..."),
        (["no-such-host.invalid:2"], "horovodrun-hosts: no-such-host.invalid: no address is known for this name"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], line: str) -> None:
    done = subprocess.run([ROOT / "launch/horovodrun-hosts.sh", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(line) and done.stderr.count("\n") == 1
