"""A Slurm of one node on this machine, from Debian's packages (slurm-wlm, munge), with daemons and files of its own."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
CONFIG = """
ClusterName=one
SlurmctldHost={host}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
FirstJobId={first_job}
KillWait=60
NodeName={host} CPUs={cores} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
WAIT_SECONDS = 30.0


class Slurm:
    """A running one: `environment` makes sbatch and scancel speak to it."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.environment = folder, environment

    def call(self, *words: object) -> str:
        """What a command of Slurm's says; AssertionError where it fails."""
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=self.environment, timeout=60)
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}\n{self.logs()}"
        return done.stdout

    def state(self, job: str) -> str:
        """The job's state: RUNNING, COMPLETED, FAILED ..."""
        words = dict(word.partition("=")[::2] for word in self.call("scontrol", "show", "job", job).split())
        return words["JobState"]

    def wait(self, job: str, seconds: float) -> str:
        """The state in which the job ends; AssertionError where it does not."""
        deadline = time.monotonic() + seconds
        while (state := self.state(job)) in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
            assert time.monotonic() < deadline, f"job {job} is {state}\n{self.logs()}"
            time.sleep(0.2)
        return state

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.out")))


def missing() -> str:
    """Why there can be no Slurm here; '' where there can."""
    if absent := [name for name in (*DAEMONS, "sbatch") if not _program(name)]:
        return f"needs {', '.join(absent)}: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "needs root"


@contextmanager
def running(folder: Path) -> Iterator[Slurm]:
    """One whose node takes jobs; at the end its daemons are gone."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    conf = folder / "slurm.conf"
    conf.write_text(
        CONFIG.format(
            host=host, folder=folder, ports=_free_ports(2), cores=os.cpu_count(), first_job=100_000 + os.getpid()
        )
    )
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o400)
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    files = {"socket": "munge", "key-file": "key", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
    munge = [f"--{option}={folder / name}" for option, name in files.items()]
    commands = {
        "munged": ["--foreground", "--force", *munge],
        "slurmctld": ["-D", "-f", str(conf)],
        "slurmd": ["-D", "-f", str(conf), "-N", host],
    }
    slurm = Slurm(folder, environment)
    with ExitStack() as daemons:
        for name, words in commands.items():
            log = daemons.enter_context((folder / f"{name}.out").open("w"))
            process = subprocess.Popen([_program(name), *words], stdout=log, stderr=log, env=environment)
            daemons.callback(_end, process)
            if name == "munged":
                _until(lambda: (folder / "munge").exists(), slurm)
        _until(lambda: _node_is_idle(slurm), slurm)
        yield slurm


def _node_is_idle(slurm: Slurm) -> bool:
    done = subprocess.run(
        ["sinfo", "--noheader", "--format=%T"], capture_output=True, text=True, env=slurm.environment, timeout=60
    )
    return done.stdout.strip() == "idle"


def _until(holds: Callable[[], bool], slurm: Slurm) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, slurm.logs()
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _program(name: str) -> str:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or ""


def _free_ports(count: int) -> list[int]:
    with ExitStack() as sockets:
        servers = [sockets.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [int(server.getsockname()[1]) for server in servers]
