"""Horovod's elastic launcher: hosts that are lost and hosts that join, without a step since the last commit lost."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.distributed.ends import record
from tests.distributed.launch import BIN, CONFIG, PAUSE, Job
from wirebench.training.elastic.host_memory import TMPFS

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give hosts names")]

HOSTS = ("hv0", "hv1", "hv2", "hv3")
# Names that lead to this machine, so that horovodrun starts their ranks without ssh.
INSIDE = 'ip link set lo up; (cat /etc/hosts; echo "127.0.0.1 $0") > hosts; mount --bind hosts /etc/hosts; exec "$@"'


def memory_of(host: str) -> list[str]:
    return sorted(path.name for path in TMPFS.glob(f"wirebench-*/{host}/step-*"))


def test_a_world_shrinks_and_grows_again(tmp_path: Path) -> None:
    now, script = tmp_path / "now", tmp_path / "discover.sh"
    now.write_text("".join(f"{host}:1\n" for host in HOSTS[:3]))
    script.write_text(f"#!/bin/sh\ncat {now}\n")
    script.chmod(0o755)
    words = [
        "unshare", "--net", "--mount", "sh", "-e", "-c", f"cd {tmp_path}; {INSIDE}", " ".join(HOSTS), "env", "-C",
        os.getcwd(), str(BIN / "horovodrun"), "-np", "3", "--min-np", "2", "--max-np", "3", "--host-discovery-script",
        str(script), "--network-interface", "lo", "--gloo", "--disable-cache", str(BIN / "python"), "train.py",
        str(CONFIG), f"output.dir={tmp_path / 'run'}", "train.max_steps=160", "train.elastic=true", "train.mirror=1",
        "train.commit_every_steps=3", "train.checkpoint_every_steps=0",
    ]  # fmt: skip
    job = Job(words, tmp_path / "logs", {PAUSE: "60"})
    try:
        job.until(lambda: any("of-0003" in name for name in memory_of("hv0")))
        [lost] = [pid for pid, told in job.processes().items() if _is_rank(pid) and told["HOROVOD_HOSTNAME"] == "hv2"]
        os.kill(lost, signal.SIGKILL)
        job.until(lambda: any("of-0002" in name for name in memory_of("hv0")))
        now.write_text("".join(f"{host}:1\n" for host in HOSTS))
        job.until(lambda: any("of-0003" in name for name in memory_of("hv3")))
        ended = job.wait()
        assert ended.code == 0 and not job.left_over(), ended.said
    finally:
        job.end()
        for memory in TMPFS.glob("wirebench-*/hv2"):  # of the host that is gone, where nobody gives it back
            shutil.rmtree(memory.parent)
    assert sum(": lost rank " in line and "on hv2)" in line for line in ended.errors) == 2, ended.said
    told = record(tmp_path / "run")
    assert (told["status"], told["world_size"], told["engine"]) == ("finished", 3, "horovod")
    shrunk, grown = told["worlds"]
    assert (shrunk["workers_before"], shrunk["workers"], grown["workers_before"], grown["workers"]) == (3, 2, 2, 3)
    assert shrunk["lost_ranks"] == grown["lost_ranks"] == [] and 0 <= shrunk["steps_lost"] <= 3
    assert [entry["epoch"] for entry in told["history"]] == list(range(len(told["history"])))
    assert not any(map(memory_of, HOSTS))


def _is_rank(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return "python" in Path(words[0]).name and words[1:2] == ["train.py"]
