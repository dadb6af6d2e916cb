"""Elastic jobs of torchrun: an agent for each host, hosts that are told apart by their names, and their ends."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil
import torch.distributed as dist

from tests.distributed.launch import BIN, LIMIT_SECONDS, PLUGINS, ROOT
from wirebench.training.elastic.host_memory import TMPFS

RENDEZVOUS = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=5,is_host=false"
PLAIN = (str(BIN / "torchrun"),)
FORKING = (sys.executable, "-m", "wirebench", "torchrun")
"""Ways to call torchrun."""


class Agents:
    """Hosts (hosts.py) of three or four ranks in all, of which each has an agent that torchrun is.

    words  what train.py is given beside its output.dir; torchrun: the way to call it
    """

    names: tuple[str, ...] = ("h0", "h1", "h2", "h3", "h4")

    def __init__(
        self, folder: Path, words: Sequence[str], environment: Mapping[str, str], torchrun: Sequence[str] = PLAIN
    ) -> None:
        # Nobody's agent keeps the rendezvous: whichever host is lost, the others find each other.
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.folder, self.run = folder, folder / f"elastic-{self.store.port}"
        self.since = time.time()
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.words = [
            *torchrun, "--nnodes", "3:4", "--nproc-per-node", "1", "--max-restarts", "9",
            "--monitor-interval", "0.1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.store.port}",
            "--rdzv-id", self.run.name, "--rdzv-conf", RENDEZVOUS, "--local-addr", "127.0.0.1",
            "train.py", *words, f"output.dir={self.run}",
        ]  # fmt: skip
        path = f"{ROOT}:{PLUGINS}:{os.environ.get('PYTHONPATH', '')}"
        self.environment = {
            **os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # see docs/elastic.md
            **environment,
        }  # fmt: skip

    def start(self, host: str) -> None:
        name = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host]
        with (self.folder / f"{host}.log").open("ab") as log:
            self.agents[host] = subprocess.Popen(
                [*name, *self.words], cwd=ROOT, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def lose(self, host: str) -> None:
        """The host's memory is gone, too."""
        agent = self.agents.pop(host)
        for process in [psutil.Process(agent.pid), *psutil.Process(agent.pid).children(recursive=True)]:
            process.send_signal(signal.SIGKILL)
        agent.wait()
        for memory in TMPFS.glob(f"wirebench-*/{host}"):
            if any(memory.glob("step-*")):
                shutil.rmtree(memory)

    def until(self, condition: Callable[[], bool], limit_seconds: float = LIMIT_SECONDS) -> None:
        deadline = time.monotonic() + limit_seconds
        while not condition():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def finish(self, limit_seconds: float = LIMIT_SECONDS) -> None:
        self.until(lambda: all(agent.poll() is not None for agent in self.agents.values()), limit_seconds)
        assert {agent.returncode for agent in self.agents.values()} == {0}, self.said()

    def said(self) -> str:
        """Everything that was printed."""
        return "\n".join(f"--- {log.name}\n{log.read_text()}" for log in sorted(self.folder.glob("*.log")))

    def end(self) -> None:
        for host in list(self.agents):
            if self.agents[host].poll() is None:
                self.lose(host)
