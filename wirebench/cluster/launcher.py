"""Start a cluster, find its hosts, and run a job in it, from the command that the user typed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from wirebench.cluster.job import Order
from wirebench.cluster.namespaces import CLUSTER, JOB, as_user, check, environment, program
from wirebench.cluster.plan import ClusterPlan
from wirebench.cluster.signals import Relay
from wirebench.comm.launch_command import typed
from wirebench.errors import UserError
from wirebench.utils.package import TOP

PATIENCE_SECONDS = 5.0
TAKEN_DOWN_SECONDS, LOOK_EVERY_SECONDS = 1.0, 0.02
KILLED = 128 + signal.SIGKILL
"""Exit code of a job that the kernel killed, as it does when the first process of a PID namespace around it ends."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster.

    pid      process number of its first process, in the machine's PID namespace
    holders  by host, the number of a process in its namespaces, in the cluster's own PID namespace
    """

    plan: ClusterPlan
    pid: int
    holders: dict[str, int]

    def find_hosts(self) -> dict[str, int]:
        """The holders' process numbers in the machine's PID namespace, by host; UserError where one is gone."""
        try:
            children = psutil.Process(self.pid).children()
        except psutil.NoSuchProcess as error:
            raise UserError("the cluster is gone") from error
        outer = {_inner_pid(child.pid): child.pid for child in children}
        lost = [host for host, pid in self.holders.items() if pid not in outer]
        if lost:
            raise UserError(f"the cluster has lost its host {lost[0]}: take it down and up again")
        return {host: outer[pid] for host, pid in self.holders.items()}

    def ends_within(self, seconds: float) -> bool:
        """Whether the cluster's first process ends within `seconds`, or has already ended."""
        deadline = time.monotonic() + seconds
        while _lives(self.pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_EVERY_SECONDS)
        return True


@contextmanager
def attached(plan: ClusterPlan) -> Iterator[Cluster]:
    """A cluster that ends with this block, or with this process however it ends; UserError where it cannot be made."""
    check()
    process, cluster = _launch(plan)
    try:
        yield cluster
    finally:
        _end(process)


def detached(plan: ClusterPlan, register: Callable[[Cluster], None]) -> Cluster:
    """A cluster that outlives this process; UserError if it cannot be made.

    register  saves how to find the cluster; the cluster stays only after that, so that no unregistered one is left
    """
    check()
    process, cluster = _launch(plan)
    assert process.stdin is not None
    try:
        register(cluster)
        process.stdin.write("stay\n")
        process.stdin.close()
    except BaseException:
        _end(process)
        raise
    # It is meant to run on: without a return code, subprocess would warn that nobody waits for it.
    process.returncode = 0
    return cluster


def run_job(
    cluster: Cluster, engine: str, command: Sequence[str], counts: Path, relay: Relay
) -> tuple[int, dict[str, int]]:
    """Run `command` on every rank.

    counts  an empty folder, over which the job mounts its own: it stays empty
    relay   the signal handler, which passes signals on to the job while it runs
    Returns the exit code of the first rank that failed, else 0, and the bytes by host of traffic.read_counts.
    """
    hosts = cluster.find_hosts()
    with ExitStack() as stack:
        spaces = {host: (_open(stack, pid, "net"), _open(stack, pid, "uts")) for host, pid in hosts.items()}
        enter = {kind: _open(stack, cluster.pid, kind) for kind in ("net", "pid", *(["user"] if as_user() else []))}
        reader, writer = os.pipe()
        stack.callback(os.close, writer)
        order = Order(cluster.plan, engine, list(command), typed(sys.orig_argv), str(counts), writer, spaces)
        words = [f"--{kind}=/proc/self/fd/{number}" for kind, number in enter.items()]
        process = subprocess.Popen(
            ["nsenter", "--preserve-credentials", *words, "--", *JOB, *program("job", order.dump())],
            stdin=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment(),
            pass_fds=[writer, *enter.values(), *(number for pair in spaces.values() for number in pair)],
            # Out of the terminal's reach: a Ctrl-C comes to this process, which passes it on in good order.
            start_new_session=True,
        )
    assert process.stdin is not None
    try:
        with relay.to(process.stdin.fileno()):
            code = process.wait()
    finally:
        _end(process)
        with open(reader) as report:
            said = report.read()
    code = code if code >= 0 else 128 - code
    # A job and its cluster are killed together, but their processes do not disappear in one moment.
    if code == KILLED and cluster.ends_within(TAKEN_DOWN_SECONDS):
        raise UserError("the cluster has been taken down")
    return code, json.loads(said or "{}")


def _launch(plan: ClusterPlan) -> tuple[subprocess.Popen, Cluster]:
    process = subprocess.Popen(
        [*CLUSTER, *as_user(), *program("switch", plan.dump())],
        stdin=subprocess.PIPE,
        # A pipe for errors too: a cluster that stays must hold no descriptor of a terminal or of a file.
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=TOP,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": _why(process.stderr.read())}
        if "error" in answer:
            raise UserError(answer["error"])
        [first] = psutil.Process(process.pid).children()
        return process, Cluster(plan, first.pid, answer["holders"])
    except BaseException:
        _end(process)
        raise


def _end(process: subprocess.Popen) -> None:
    """End the first process of a cluster or job: close its pipes, whose end it sees, and kill it if it does not end.

    What is killed is `unshare`, and the kernel then kills all that runs inside.
    """
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _why(said: str) -> str:
    return f"the cluster could not be started: {(said.strip().splitlines() or ['no reason was given'])[-1]}"


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _inner_pid(pid: int) -> int:
    """A process's number in its own PID namespace; 0 where the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[-1]) for line in lines if line.startswith("NSpid:"))


def _open(stack: ExitStack, pid: int, kind: str) -> int:
    """A descriptor of a process's namespace, closed with the stack."""
    number = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
    stack.callback(os.close, number)
    return number
