"""Two hosts with sshd, each in its own network namespace, and horovodrun or mpirun across them."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from papers import cli as study
from papers.gs_sgd import report as gs_sgd
from papers.iwp import report as iwp
from tests.cluster.running import CLUSTER
from tests.data.samples import write_cifar10, write_images
from tests.distributed.ends import losses, record
from tests.distributed.launch import BIN, ROOT, launch
from wirebench.record import schema

CONFIG = ["configs/smoke.toml", "train.max_steps=6", "train.eval_every=0", "output.tensorboard=false"]


@pytest.fixture
def ssh(namespaces: None, tmp_path: Path) -> Path:
    """What ~/.ssh holds on every host: a key, and the settings that the images have."""
    if not Path("/usr/sbin/sshd").exists() or shutil.which("ssh") is None:
        pytest.skip("needs sshd and ssh: apt-get install openssh-server openssh-client")
    folder = tmp_path / "ssh"
    folder.mkdir(mode=0o700)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "id_rsa"], check=True)
    shutil.copy(folder / "id_rsa.pub", folder / "authorized_keys")
    shutil.copy(ROOT / "launch/ssh_config", folder / "config")
    (Path.home() / ".ssh").mkdir(mode=0o700, exist_ok=True)
    return folder


def across_two_hosts(
    folder: Path, command: Sequence[object], environment: Mapping[str, str] | None = None, seconds: float = 200
) -> None:
    """Run a command on the first of two hosts that reach each other by ssh; AssertionError where it fails."""
    script = ROOT / "tests/launch/on_each_host.sh"
    run = [*CLUSTER, "run", "--hosts", "2", "--link", "1gbit", "--", script, folder, *command]
    done = subprocess.run(
        list(map(str, run)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, **(environment or {})},
    )
    logs = "\n".join(path.read_text() for path in folder.glob("sshd-*.log"))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"


@pytest.mark.weekly
def test_two_hosts_train_as_one(ssh: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not built here (HOROVOD=0)")
    across_two_hosts(tmp_path, ["launch/horovodrun-hosts.sh", "h0:2,h1:2", *CONFIG, f"output.dir={tmp_path / 'two'}"])
    one = launch("horovod", 4, [*CONFIG, f"output.dir={tmp_path / 'one'}"], tmp_path)
    assert one.code == 0, one.said
    hosts = record(tmp_path / "two")["environment"]["hosts"]
    assert [sorted(each["ranks"]) for each in hosts] == [[0, 1], [2, 3]]
    assert losses(tmp_path / "two") == losses(tmp_path / "one")


def mpi_job(engine: str, folder: Path) -> list[str]:
    """What the launcher of launch/mpijob.yaml runs, of two ranks a host, on this machine's files and with `engine`.

    torch needs to be told where rank 0 is, Horovod finds it by MPI.
    """
    job = yaml.safe_load((ROOT / "launch/mpijob.yaml").read_text())
    launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    words = [*launcher["command"], *launcher["args"]]
    words[words.index("-np") + 1] = "4"
    program = words.index("python")
    place = ["-x", "MASTER_ADDR=h0", "-x", "MASTER_PORT=29500"] if engine == "torch" else []
    settings = [word.replace("/app/", "") for word in words[program:] if not word.startswith(("engine.", "output."))]
    changed = [f"engine.name={engine}", f"output.dir={folder}", *CONFIG[1:]]
    return ["env", f"PATH={BIN}:/usr/bin:/bin", *words[:program], *place, "--wdir", str(ROOT), *settings, *changed]


@pytest.mark.weekly
@pytest.mark.parametrize("engine", ["torch", "horovod"])
def test_the_mpi_job_trains_across_two_hosts(engine: str, ssh: Path, tmp_path: Path) -> None:
    """As the operator runs it: hosts and slots come from a file, options of ssh by Open MPI's variables."""
    if shutil.which("mpirun") is None:
        pytest.skip("needs Open MPI: apt-get install openmpi-bin")
    if engine == "horovod" and not _has_mpi():
        pytest.skip("needs a Horovod with MPI: MPI=1 make setup, with libopenmpi-dev")
    (tmp_path / "hostfile").write_text("h0 slots=2\nh1 slots=2\n")
    told = {
        "OMPI_MCA_orte_default_hostfile": str(tmp_path / "hostfile"),
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    across_two_hosts(tmp_path, mpi_job(engine, tmp_path / "two"), told)
    found = record(tmp_path / "two")
    assert (found["engine"], found["status"], found["world_size"]) == (engine, "finished", 4)
    assert [sorted(each["ranks"]) for each in found["environment"]["hosts"]] == [[0, 1], [2, 3]]


def _has_mpi() -> bool:
    asked = "import horovod.torch as hvd; raise SystemExit(not hvd.mpi_built())"
    return subprocess.run([sys.executable, "-c", asked], capture_output=True).returncode == 0


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


FEW = "train.max_steps=6 train.warmup_steps=2 data.batch_size=2 train.precision=fp32 output.tensorboard=false"
PAPERS = f"""
set -e
address=$(getent ahostsv4 h1 | awk 'NR == 1 {{ print $1 }}')
interface=$(ip -o route get "$address" | sed -n 's/.* dev \\([^ ]*\\).*/\\1/p')
options="--gloo --network-interface $interface --gloo-timeout-seconds 120"
study() {{ wirebench study "$1" run --launch "horovodrun -np {{ranks}} -H {{hosts}} $options" --machines h0 h1 \\
    --out "$OUT/$1" --link 1gbit "${{@:2}}"; }}
study gs_sgd --parts speed --layouts 2+2 --repeats 2 --data "$DATA/cifar" --set {FEW} \\
    --rows "resnet20 gtopk" "resnet20 gs_sgd literal" "resnet20 sketched_sgd literal"
study flexreduce --layouts 2+2 --repeats 2 --sizes 3kf 60kf --seconds 1 --images "$DATA/images" \\
    --set {FEW} data.image_size=32 data.train_size=0 data.workers=0
study iwp --parts network --layouts 1+1 --repeats 2 --images "$DATA/images" \\
    --rows "resnet50 dense" "resnet50 fixed 0.05" --set {FEW} data.image_size=32 data.workers=0
study iwp --parts table --layouts 1+1 --repeats 1 --images "$DATA/images" \\
    --rows "resnet50 baseline" "resnet50 fixed 0.05" --set train.epochs=1 data.batch_size=2 train.precision=fp32 \\
    data.image_size=32 data.workers=0 output.health_every=2 optimizer.warmup_epochs=0
study mg_wfbp --parts all_reduce computing --layouts 1+1 --repeats 2 --sizes 3kf 60kf --seconds 1 \\
    --rows "googlenet wfbp" "googlenet mg_wfbp" --set {FEW} data.image_size=32 data.num_classes=10
"""


@pytest.mark.weekly
@pytest.mark.timeout(1200)
def test_the_papers_experiments_run_across_two_hosts_and_are_judged(
    ssh: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All four, at toy size, as somebody with a cluster types them; nothing of the records is made by hand."""
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not built here (HOROVOD=0)")
    write_cifar10(tmp_path / "data/cifar/cifar-10-batches-bin")
    write_images(tmp_path / "data/images", train=8, val=2)
    path = f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin"
    told = {"OUT": str(tmp_path / "out"), "DATA": str(tmp_path / "data"), "PATH": path}
    across_two_hosts(tmp_path, ["bash", "-c", PAPERS], told | {"OMP_NUM_THREADS": "1"}, seconds=1100)
    records = {path: schema.read(path) for path in (tmp_path / "out").rglob("record.json")}
    assert len(records) == 6 + 8 + 6 + 4
    for made in records.values():
        assert (made["engine"], made["status"], len(made["environment"]["hosts"])) == ("horovod", "finished", 2)
    judged = {}
    for name in ("gs_sgd", "flexreduce", "iwp", "mg_wfbp"):
        shutil.copytree(ROOT / "results" / name.replace("_", "-"), tmp_path / "reports" / name, dirs_exist_ok=True)
        where = [] if name == "flexreduce" else ["--dir", str(tmp_path / "reports" / name)]
        assert study.main([name, "report", "--cluster", str(tmp_path / "out" / name), *where]) == 0
        judged[name] = Path(capsys.readouterr().out.splitlines()[0]).read_text()
    assert "| ResNet-20: gs-SGD's throughput over gTop-k's |" in judged["gs_sgd"]
    found = gs_sgd.of_cluster(tmp_path / "out/gs_sgd")
    assert {each.claim.id for each in found} >= {"resnet20_over_gtopk", "resnet20_over_sketched_sgd", "complexity"}
    states = {each.claim.id: each.verdict.state for each in iwp.of_cluster(tmp_path / "out/iwp")}
    assert states.keys() >= {"baseline_io", "iwp_io"}
    assert {states["resnet50_baseline"], states["resnet50_fixed_accuracy"]} == {"other setting"}, "16 images"
    assert "| 2+2 | 4 | 60,000 |" in judged["flexreduce"] and "| 2+3 | 5 |" not in judged["flexreduce"]
    assert "## On a cluster" in judged["mg_wfbp"], "and no claim: two hosts of one machine are one machine"
