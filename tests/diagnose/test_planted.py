"""Faults planted into real short runs on an emulated cluster: each is named first, and a healthy run has no finding.

Replayed models wait instead of computing, so that the machine's cores do not decide. Gradients on a GPU that travel
through the host are a record's alone (test_diagnose.py): that needs two ranks on a GPU.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.verbs import run
from tests.cluster.running import CLUSTER
from tests.distributed.launch import BIN, CONFIG, PLUGINS, Ended, Job, launch, slowly
from wirebench.record import schema

pytestmark = [pytest.mark.slow, pytest.mark.clock]

Begin = Callable[..., Job]
REPLAY, DEEP, LARGE = "configs/replay/resnet20.toml", "configs/replay/resnet110.toml", "configs/replay/resnet18.toml"
HIDDEN = "configs/replay/forty_alike.toml"
"""Computes five times as long as its messages take at 1 Gbit/s."""
SHORT = ("train.max_steps=25", "train.eval_every=0", "output.tensorboard=false", "output.trace_steps=10")
TENTH = "tc qdisc change dev eth0 root tbf rate 20mbit burst 20000 limit 2000000"
"""In every host of a cluster with links of 200 Mbit/s."""
LATE = f"test $RANK = 1 && export {' '.join(f'{name}={value}' for name, value in slowly(30).items())}"
ASIDE = """
    echo $$ > {folder}/process-$RANK
    while ! test -s {folder}/process-1; do sleep 0.05; done
    test $RANK = 1 || ip link add slow type veth peer name slow netns $(cat {folder}/process-1)
    while ! ip link show slow > {folder}/shown-$RANK 2>&1; do sleep 0.05; done
    ip address add 10.88.0.$((RANK + 1))/24 dev slow
    ip link set slow up
    tc qdisc add dev slow root tbf rate 50mbit burst 20000 limit 2000000
    export GLOO_SOCKET_IFNAME=slow WIREBENCH_LINK_MBIT=eth0=1000,slow=50
"""
"""A second cable between two hosts, a slow one, which both are told to use."""


def on_cluster(begin: Begin, folder: Path, *shape: object, words: tuple[str, ...], before: str = "true") -> Ended:
    """A short run on an emulated cluster, into `folder`; each rank's shell does `before` first."""
    command = ["sh", "-c", f'{before}\nexec python "$@"', "planted", *words, f"output.dir={folder}"]
    ended = begin("run", *shape, "--", "env", f"PYTHONPATH={PLUGINS}", *command).wait()
    assert ended.code == 0, ended.said
    return ended


def diagnosed(folder: Path, *words: str) -> dict[str, Any]:
    done = run("diagnose", folder, "--json", *words)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def replayed(config: str, *settings: str) -> tuple[str, ...]:
    changed = {each.partition("=")[0] for each in settings}
    return ("train.py", config, *(each for each in SHORT if each.partition("=")[0] not in changed), *settings)


TWO = ("--hosts", 2, "--link")
PLANTED = {
    "slow rank": ((*TWO, "1gbit"), replayed(str(CONFIG)), LATE),
    "compressor": (
        (*TWO, "10gbit"),
        replayed(LARGE, "compressor.name=sketched_sgd", "train.max_steps=10", "train.warmup_steps=3"),
        "true",
    ),
    "full link": ((*TWO, "200mbit"), replayed(DEEP), "true"),
    "interface": ((*TWO, "1gbit"), replayed(REPLAY), ASIDE),
    "data": ((*TWO, "1gbit"), replayed(str(CONFIG), "data.name=mine.late"), "true"),
    "shared processor": (
        ("--hosts", 6, "--link", "1gbit"),
        replayed("configs/synthetic/resnet20.toml", "data.batch_size=8", "train.max_steps=12"),
        "true",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_it_is_named_first(name: str, begin: Begin, tmp_path: Path) -> None:
    if name == "interface" and os.geteuid():
        pytest.skip("only root may lay a cable between hosts")
    shape, words, before = PLANTED[name]
    on_cluster(begin, tmp_path / "run", *shape, words=words, before=before.format(folder=tmp_path))
    found = diagnosed(tmp_path / "run")["findings"]
    assert found and found[0]["name"] == name, found


def test_a_link_at_a_tenth_of_its_rate(begin: Begin, tmp_path: Path) -> None:
    """The launcher tells the ranks the link's rate; measured alone, too, it carries a tenth of that."""
    folder = tmp_path / "run"
    on_cluster(begin, folder, *TWO, "200mbit", words=replayed(REPLAY, "train.max_steps=16"), before=TENTH)
    told = diagnosed(folder)
    assert told["findings"][0]["name"] == "link", told
    assert told["link"]["nominal_bytes_per_second"] == pytest.approx(25e6)
    words = ("-m", "wirebench", "diagnose", str(folder), "--measure", "--json")
    job = begin("run", *TWO, "200mbit", "--", "sh", "-c", f'{TENTH}; exec python "$@"', "planted", *words)
    ended = job.wait()
    assert ended.code == 0, ended.said
    measured = json.loads(ended.out)
    assert measured["alone"]["bytes_per_second"] == pytest.approx(2.5e6, rel=0.2)
    assert "poor alone, too" in measured["findings"][0]["changes"][0]["what"]


def test_threads_oversubscribed(tmp_path: Path) -> None:
    words = [*replayed("configs/synthetic/resnet20.toml")[1:], "data.batch_size=8", "engine.threads=8"]
    ended = launch("torch", 2, [*words, "train.max_steps=12", f"output.dir={tmp_path / 'run'}"], tmp_path / "logs")
    assert ended.code == 0, ended.said
    assert diagnosed(tmp_path / "run")["findings"][0]["name"] == "threads"


def test_a_healthy_run_and_its_network(begin: Begin, tmp_path: Path) -> None:
    """No finding, nor while it goes on; alone its link carries what it should. The record has what was typed."""
    folder = tmp_path / "run"
    words = ("python", *replayed(HIDDEN, "scheduler.name=wfbp", "train.max_steps=45"), f"output.dir={folder}")
    job = begin("run", *TWO, "1gbit", "--", *words)
    job.until(lambda: (folder / "steps.jsonl").exists() and (folder / "steps.jsonl").read_text().count("\n") > 15)
    live = diagnosed(folder)
    assert live["under_way"]["steps"] > 15 and live["under_way"]["total"] == 45
    assert live["findings"] == [], live
    assert job.wait().code == 0
    told = diagnosed(folder)
    assert told["under_way"] is None and told["findings"] == [], told
    typed = " ".join([*CLUSTER[1:], "run", *map(str, TWO), "1gbit", "--", *words])
    assert schema.read(folder)["environment"]["command"].endswith(typed)
    ended = begin("run", *TWO, "1gbit", "--", "wirebench", "diagnose", folder, "--measure", "--json").wait()
    assert ended.code == 0, ended.said
    measured = json.loads(ended.out)
    assert measured["alone"]["bytes_per_second"] == pytest.approx(125e6, rel=0.15)
    assert measured["link"]["nominal_bytes_per_second"] == pytest.approx(125e6)


def test_what_is_suggested_helps(begin: Begin, tmp_path: Path) -> None:
    """Too many small messages are named first, and the short runs of --try show that merging saves time."""
    folder = tmp_path / "run"
    words = replayed(REPLAY, "scheduler.name=wfbp")
    ended = begin("run", *TWO, "1gbit", "--", "python", *words, f"output.dir={folder}").wait()
    assert ended.code == 0, ended.said
    assert diagnosed(folder)["findings"][0]["name"] == "small messages"
    command = [str(BIN / "python"), "-m", "wirebench", "diagnose", str(folder), "--try", "--steps", "10", "--json"]
    ended = Job(command, tmp_path / "logs", {"XDG_RUNTIME_DIR": str(tmp_path)}).wait()
    assert ended.code == 0, ended.said
    tried = json.loads(ended.out)["trial"]["tried"][0]
    assert tried["finding"] == "small messages" and tried["command"].endswith(" scheduler.name=mg_wfbp")
    assert tried["predicted_saving_seconds"] > 0 and tried["measured_saving_seconds"] > 0


@pytest.mark.weekly
def test_what_fewer_bytes_save_on_a_full_link(begin: Begin, tmp_path: Path) -> None:
    """What --try measures comes near to what was predicted."""
    folder = tmp_path / "run"
    shape, words, _ = PLANTED["full link"]
    ended = begin("run", *shape, "--", "python", *words, f"output.dir={folder}").wait()
    assert ended.code == 0, ended.said
    command = [str(BIN / "python"), "-m", "wirebench", "diagnose", str(folder), "--try", "--steps", "15", "--json"]
    ended = Job(command, tmp_path / "logs", {"XDG_RUNTIME_DIR": str(tmp_path)}).wait()
    assert ended.code == 0, ended.said
    tried = json.loads(ended.out)["trial"]["tried"]
    assert len(tried) == 2
    for each in tried:
        predicted, measured = each["predicted_saving_seconds"], each["measured_saving_seconds"]
        assert each["finding"] == "full link" and measured == pytest.approx(predicted, rel=0.25), each
