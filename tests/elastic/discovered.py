"""Elastic jobs of horovodrun, to which a script says which hosts are there."""

import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.distributed.launch import BIN, LIMIT_SECONDS, ROOT, Job
from wirebench.training.elastic.host_memory import TMPFS
from wirebench.utils.files import write_atomically

# Names that lead to this machine, so that horovodrun starts their ranks without ssh.
INSIDE = 'ip link set lo up; (cat /etc/hosts; echo "127.0.0.1 $0") > hosts; mount --bind hosts /etc/hosts; exec "$@"'


class Discovered:
    """Hosts (hosts.py) of three or four ranks in all, which one horovodrun starts; `words` as for Agents."""

    names: tuple[str, ...] = ("hv0", "hv1", "hv2", "hv3", "hv4")

    def __init__(self, folder: Path, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.folder, self.run, self.environment = folder, folder / "run", environment
        self.since = time.time()
        self.there: list[str] = []
        self.lost: list[str] = []
        self.job: Job | None = None
        script = folder / "discover.sh"
        script.write_text(f"#!/bin/sh\ncat {shlex.quote(str(folder / 'there'))}\n")
        script.chmod(0o755)
        self.words = [
            "unshare", "--net", "--mount", "sh", "-e", "-c", f"cd {shlex.quote(str(folder))}; {INSIDE}",
            " ".join(self.names),
            "env", "-C", str(ROOT), str(BIN / "horovodrun"), "-np", "4", "--min-np", "3", "--max-np", "4",
            "--host-discovery-script", shlex.quote(str(script)), "--network-interface", "lo", "--gloo",
            "--disable-cache", str(BIN / "python"), "train.py", *words, f"output.dir={self.run}",
        ]  # fmt: skip

    def start(self, host: str) -> None:
        self.there.append(host)
        write_atomically(self.folder / "there", "".join(f"{each}:1\n" for each in self.there))
        if len(self.there) == 4:
            self.job = Job(self.words, self.folder / "logs", self.environment)

    def lose(self, host: str) -> None:
        """As Hosts.lose: its rank is killed, and horovodrun gives up a host of which a rank has ended."""
        assert self.job is not None
        self.lost.append(host)
        told = self.job.processes()
        [rank] = [pid for pid in told if _is_rank(pid) and told[pid]["HOROVOD_HOSTNAME"] == host]
        os.kill(rank, signal.SIGKILL)

    def until(self, condition: Callable[[], bool], limit_seconds: float = LIMIT_SECONDS) -> None:
        assert self.job is not None
        self.job.until(condition, limit_seconds)

    def finish(self, limit_seconds: float = LIMIT_SECONDS) -> None:
        """As Hosts.finish; the three that went on have named each whom they lost."""
        assert self.job is not None
        ended = self.job.wait(limit_seconds)
        assert ended.code == 0 and not self.job.left_over(), ended.said
        for host in self.lost:
            assert sum(": lost rank " in line and f"on {host})" in line for line in ended.errors) == 3, ended.said

    def end(self) -> None:
        """As Hosts.end; the memory of a lost host is given back, which nobody else does."""
        if self.job is not None:
            self.job.end()
        for host in self.lost:
            for memory in TMPFS.glob(f"wirebench-*/{host}"):
                shutil.rmtree(memory)
                with suppress(OSError):  # other hosts have some
                    memory.parent.rmdir()


def _is_rank(pid: int) -> bool:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        return "python" in Path(words[0]).name and words[1:2] == ["train.py"]
    return False
