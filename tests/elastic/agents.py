"""Elastic jobs of torchrun: an agent for each host, hosts that are told apart by their names, and their ends."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch.distributed as dist

from tests.distributed.launch import BIN, CONFIG, PAUSE, PLUGINS, ROOT
from wirebench.training.elastic.host_memory import TMPFS

RENDEZVOUS = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=5,is_host=false"
LIMIT_SECONDS = 150.0
PLAIN = (str(BIN / "torchrun"),)
FORKING = (sys.executable, "-m", "suite", "torchrun")
"""Ways to call torchrun."""


class Agents:
    """Hosts h0, h1 ... of one rank each on this machine, that train tests/distributed/run.toml as one elastic job."""

    def __init__(
        self, folder: Path, sizes: str, arguments: Sequence[str], pause_ms: int, torchrun: Sequence[str]
    ) -> None:
        # Nobody's agent keeps the rendezvous: whichever host is lost, the others find each other.
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.folder, self.run = folder, folder / f"elastic-{self.store.port}"
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.words = [
            *torchrun, "--nnodes", sizes, "--nproc-per-node", "1", "--max-restarts", "9",
            "--monitor-interval", "0.1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.store.port}",
            "--rdzv-id", self.run.name, "--rdzv-conf", RENDEZVOUS, "--local-addr", "127.0.0.1",
            "train.py", str(CONFIG), f"output.dir={self.run}", "train.elastic=true", "train.commit_every_steps=3",
            "train.checkpoint_every_steps=0", *arguments,
        ]  # fmt: skip
        path = f"{ROOT}:{PLUGINS}:{os.environ.get('PYTHONPATH', '')}"
        self.environment = {
            **os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", PAUSE: str(pause_ms),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # see docs/elastic.md
        }  # fmt: skip

    def start(self, host: str) -> None:
        """The host joins the job."""
        name = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host]
        with (self.folder / f"{host}.log").open("ab") as log:
            self.agents[host] = subprocess.Popen(
                [*name, *self.words], cwd=ROOT, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def lose(self, host: str) -> None:
        """The host is gone, at once, with its memory."""
        agent = self.agents.pop(host)
        for process in [psutil.Process(agent.pid), *psutil.Process(agent.pid).children(recursive=True)]:
            process.send_signal(signal.SIGKILL)
        agent.wait()
        for memory in TMPFS.glob(f"wirebench-*/{host}"):
            if any(self.memory_of(host)):
                shutil.rmtree(memory)

    def kill_rank(self, host: str) -> None:
        """The host's rank is killed; its agent and its memory stay."""
        for process in psutil.Process(self.agents[host].pid).children(recursive=True):
            process.send_signal(signal.SIGKILL)

    def memory_of(self, host: str) -> list[str]:
        """Names of the host's commits."""
        return sorted(path.name for path in TMPFS.glob(f"wirebench-*/{host}/step-*"))

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def wait(self) -> dict[str, int]:
        """Exit codes of the agents, by host."""
        self.until(lambda: all(agent.poll() is not None for agent in self.agents.values()))
        return {host: agent.returncode for host, agent in self.agents.items()}

    def said(self) -> str:
        """Everything that was printed."""
        return "\n".join(f"--- {log.name}\n{log.read_text()}" for log in sorted(self.folder.glob("*.log")))

    def end(self) -> None:
        """Nothing of the job stays."""
        for host in list(self.agents):
            if self.agents[host].poll() is None:
                self.lose(host)


@contextmanager
def job(
    folder: Path, sizes: str, arguments: Sequence[str], pause_ms: int = 60, torchrun: Sequence[str] = PLAIN
) -> Iterator[Agents]:
    """An elastic job in which no host is yet; at the end nothing of it lives."""
    agents = Agents(folder, sizes, arguments, pause_ms, torchrun)
    try:
        yield agents
    finally:
        agents.end()
