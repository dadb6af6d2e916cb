"""A job on an emulated cluster: keeps a launcher running on every host, and collects printed lines and progress."""

import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

import psutil

from wirebench.cluster import launcher
from wirebench.cluster.launcher import Cluster
from wirebench.cluster.namespaces import environment, inside
from wirebench.cluster.network import INTERFACE
from wirebench.cluster.plan import SWITCH_ADDRESS, make_plan
from wirebench.cluster.signals import ends_with_parent
from wirebench.errors import UserError
from wirebench.training.elastic import torchrun
from wirebench.training.elastic.host_memory import TMPFS
from wirebench.training.state_files import STATE
from wirebench.utils.own import ours
from wirebench.utils.package import CONFIGS, TOP

FOLDER = "WIREBENCH_CHAOS"
"""Variable with the folder in which rank 0 writes how far the job is; ranks are started with it alone."""
STEPS = "steps.log"
HOLD_LOCK, NAN = signal.SIGUSR1, signal.SIGUSR2
"""Signals that ask a rank for a fault inside it."""
SPOILED_LAYER = "linear.bias"
"""The layer of the toy model whose gradient becomes NaN."""
PORT = 29400
TORCHRUN = ours(["wirebench", "torchrun"])
AGAIN_SECONDS = 1.0
"""After which a host whose launcher has ended gets a new one, as a scheduler does."""
DISK_BYTES = 32 * 2**20
COMMIT_STEPS, BATCH_SIZE = 10, 8
TRAINING = (
    "model.hidden=256", f"data.batch_size={BATCH_SIZE}", "data.train_size=1000000", "data.test_size=0",
    "train.max_steps=1000000000", "train.eval_every=0", "output.tensorboard=false", "output.trace_steps=0",
)  # fmt: skip
COMPRESSOR = ("compressor.name=topk", "compressor.density=0.05")
"""Of a job whose settings name no other."""
ELASTIC = ("train.elastic=true", f"train.commit_every_steps={COMMIT_STEPS}")
PLAIN = ("train.resume=auto", f"train.checkpoint_every_steps={COMMIT_STEPS}")


class JobSetting(NamedTuple):
    """What a job is.

    elastic  with commits in memory, and going on with a host less; else with checkpoints, and waiting for the host
    mirror   of an elastic job: each rank's residual is also in another host's memory
    timeout_seconds  engine.timeout_seconds
    more     settings of train.py that are laid over the job's: its compressor, its schedule
    """

    hosts: int = 4
    link: str = "100mbit"
    elastic: bool = True
    mirror: bool = True
    timeout_seconds: float = 4.0
    more: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """The settings of train.py."""
        own = [*ELASTIC, f"train.mirror={int(self.mirror)}"] if self.elastic else PLAIN
        compressor = () if any(word.startswith("compressor.") for word in self.more) else COMPRESSOR
        timeout = f"engine.timeout_seconds={self.timeout_seconds:g}"
        return [*TRAINING, *compressor, *own, timeout, *self.more]


class JobLine(NamedTuple):
    """What a launcher or its rank has said, and when."""

    at: float
    host: str
    text: str


class JobStep(NamedTuple):
    """A step that has ended: when, how many images the job has trained on, and how many workers there were."""

    at: float
    images: int
    workers: int


class Job:
    """A job; times are time.monotonic's.

    program  what the launchers start; () the toy model with chaos/rank.py around its steps
    lines    what was said so far; steps: those noted by rank 0 of the toy model, as `look` has read them
    """

    def __init__(self, cluster: Cluster, folder: Path, setting: JobSetting, program: Sequence[str] = ()) -> None:
        self.cluster, self.folder, self.setting = cluster, folder, setting
        self.holders = cluster.find_hosts()
        self.lines: list[JobLine] = []
        self.steps: list[JobStep] = []
        self._launchers: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: dict[str, float] = {}
        self._away: set[str] = set()
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._name, self._read = f"chaos-{uuid.uuid4().hex[:8]}", 0
        toy = ["-m", "wirebench.chaos.rank", str(CONFIGS / "synthetic/toy.toml")]
        self._program = program or [*toy, f"output.dir={folder / 'disk' / self._name}", *setting.words()]
        (folder / STEPS).write_text("")
        for mounted, size in ((folder / "disk", DISK_BYTES), (TMPFS, 2**29)):
            mounted.mkdir(exist_ok=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(mounted)]
            done = subprocess.run([*inside(cluster.pid, "mount"), *command], capture_output=True, text=True)
            if done.returncode:
                raise UserError(f"{mounted}: cannot be mounted in the cluster: {done.stderr.strip()}")

    @property
    def disk(self) -> Path:
        """The job's own small disk, as this process sees it."""
        return self.seen(self.folder / "disk")

    def seen(self, path: Path) -> Path:
        """A path of the cluster's, as this process sees it."""
        return Path(f"/proc/{self.cluster.pid}/root{path}")

    def start(self) -> None:
        """Start the store and all launchers."""
        words = [sys.executable, "-m", "wirebench.chaos.store", SWITCH_ADDRESS, str(PORT)]
        store = subprocess.Popen(
            self._enter(self.cluster.pid, words), stdout=subprocess.PIPE, cwd=TOP, env=environment(),
            preexec_fn=ends_with_parent(signal.SIGKILL),
        )  # fmt: skip
        self._helpers.append(store)
        assert store.stdout is not None
        if store.stdout.readline() != b"ready\n":
            raise UserError("the launchers' store could not be started")
        for host in self.holders:
            self._launch(host)

    def look(self) -> None:
        """Read the steps that were made since, and start launchers anew that have failed on a host that is there."""
        with (self.folder / STEPS).open() as file:
            file.seek(self._read)
            content = file.read()
        whole = content[: content.rfind("\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            at, images, workers = line.split()
            self.steps.append(JobStep(float(at), int(images), int(workers)))
        for host, process in self._launchers.items():
            if process.poll() not in (None, 0) and host not in self._away:
                ended = self._ended.setdefault(host, time.monotonic())
                if time.monotonic() - ended > AGAIN_SECONDS:
                    self._launch(host)

    def lose(self, host: str) -> bool:
        """Take a host away at once with its memory, until `gain`; False where it has no rank."""
        if self.rank_of(host) is None:
            return False
        self._away.add(host)
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self._launchers[host].pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):  # it has ended with its launcher
                    process.kill()
        for memory in self.seen(TMPFS).glob(f"wirebench-*/{host}"):
            shutil.rmtree(memory, ignore_errors=True)
        return True

    def gain(self, host: str) -> None:
        """Let a lost host, with nothing in its memory, join the job again."""
        self._away.discard(host)

    def commits(self, host: str, size: int) -> list[int]:
        """After how many steps the commits in a host's memory were made that a world of `size` ranks has made."""
        return commits_below(self.seen(TMPFS), host, size)

    @property
    def is_done(self) -> bool:
        """Whether every launcher has ended, and none has failed."""
        return all(process.poll() == 0 for process in self._launchers.values())

    def end(self) -> None:
        """Kill the commands that entered the cluster: each holds a namespace of it as long as it lives."""
        for process in (*self._helpers, *self._launchers.values()):
            process.kill()
            process.wait()

    def launcher_of(self, host: str) -> psutil.Process | None:
        """The launcher's process on a host; None while there is none."""
        try:
            return next(iter(psutil.Process(self._launchers[host].pid).children()), None)
        except psutil.NoSuchProcess:
            return None

    def rank_of(self, host: str) -> psutil.Process | None:
        """The rank's process on a host; None while there is none."""
        try:
            below = psutil.Process(self._launchers[host].pid).children(recursive=True)
            return next((each for each in below if _is_rank(each)), None)
        except psutil.NoSuchProcess:
            return None

    def inside(self, host: str) -> list[str]:
        """Words that enter a host's network."""
        return inside(self.holders[host], "net")

    def _launch(self, host: str) -> None:
        self._ended.pop(host, None)
        address = next(each.address for each in self.cluster.plan.hosts if each.name == host)
        size = self.setting.hosts
        words = [
            *TORCHRUN, "--nproc-per-node", "1", "--max-restarts", "1000000",
            "--nnodes", f"{max(2, size - 1)}:{size}" if self.setting.elastic else str(size),
            "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{SWITCH_ADDRESS}:{PORT}", "--rdzv-id", self._name,
            "--rdzv-conf", f"{torchrun.RENDEZVOUS},is_host=false", "--local-addr", address, *self._program,
        ]  # fmt: skip
        told = {
            FOLDER: str(self.folder), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": INTERFACE,
            "WIREBENCH_SHARED_BY": str(size),
        }  # fmt: skip
        process = subprocess.Popen(
            self._enter(self.holders[host], words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, cwd=TOP, env={**environment(), **told}, start_new_session=True,
            preexec_fn=ends_with_parent(signal.SIGKILL),
        )  # fmt: skip
        assert process.stdout is not None
        self._launchers[host] = process
        threading.Thread(target=self._listen, args=(host, process.stdout), daemon=True).start()

    def _enter(self, pid: int, words: list[str]) -> list[str]:
        """A command in a host, or in the switch, of the cluster."""
        # A command that enters a mount namespace begins in its root folder.
        return [*inside(pid, "net", "uts", "pid", "mount"), "sh", "-c", 'cd "$0" && exec "$@"', str(TOP), *words]

    def _listen(self, host: str, source: IO[bytes]) -> None:
        with (self.folder / f"{host}.log").open("a") as log:
            for raw in source:
                line = JobLine(time.monotonic(), host, raw.decode(errors="replace").rstrip("\n"))
                self.lines.append(line)
                log.write(f"{line.at:.2f} {line.text}\n")
                log.flush()


def _is_rank(process: psutil.Process) -> bool:
    """Whether a launcher has started it: torchrun with a rank in its environment; ours by a fork server, which was
    started without one.
    """
    try:
        parent = process.parent()
        forked = parent is not None and _is_forked(process) and _is_forked(parent)
        return forked or (not _is_forked(process) and "RANK" in process.environ())
    except psutil.Error:
        return False


def _is_forked(process: psutil.Process) -> bool:
    return any("multiprocessing.forkserver" in word for word in process.cmdline())


def commits_below(memory: Path, host: str, size: int) -> list[int]:
    """After how many steps the commits of a world of `size` ranks were made that `memory` has of a host."""
    found = []
    for path in memory.glob(f"wirebench-*/{host}/step-*/{STATE}"):
        _, step, _, world, *_ = path.parent.name.split("-")
        if int(world) == size:
            found.append(int(step))
    return found


@contextmanager
def running(folder: Path, setting: JobSetting, program: Sequence[str] = ()) -> Iterator[Job]:
    """A job that has begun; at the end of the block nothing of it lives. `folder` gets its logs."""
    folder.mkdir(parents=True, exist_ok=True)
    with launcher.attached(make_plan("+".join(["1"] * setting.hosts), setting.link)) as cluster:
        job = Job(cluster, folder, setting, program)
        try:
            job.start()
            yield job
        finally:
            job.end()
