"""Jobs whose ranks are forked from one process that has imported everything, for what ranks do once they are launched.

A launcher's ranks import torch each for itself, which takes a core two to three seconds apiece, more than most of these
jobs. Here they get the environment that torchrun or horovodrun would give them and run the same script to its end; what
launchers add, that they pass on signals and exit codes, is tested with `launch.launch`.
"""

import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.distributed.launch import LIMIT_SECONDS, PLUGINS, ROOT, Ended, last_of_each
from tests.forkserver import forkserver, sync_nothing
from wirebench.cluster.plan import make_plan
from wirebench.cluster.ranks import environment as cluster_environment

KILL_SECONDS = 30.0
"""What a launcher gives the other ranks, after one has failed, to answer SIGTERM."""


def fork(
    engine: str,
    size: int,
    arguments: Sequence[object],
    logs: Path,
    environment: Mapping[str, str] | None = None,
    script: str = "train.py",
) -> Ended:
    """Run a job of `size` ranks to its end as `launch` does, without its launcher; `codes` are the ranks' exit codes.

    After a rank's failure the others are told to end, as launchers do. AssertionError where the job takes too long or
    leaves a process.
    """
    began = time.monotonic()
    logs.mkdir(parents=True, exist_ok=True)
    out, err = (logs / f"{engine}-{time.monotonic_ns()}.{kind}" for kind in ("out", "err"))
    for path in (out, err):
        path.touch()
    words = [*script.split(), *last_of_each(arguments)]
    with _meeting_point(engine, size) as port:
        ranks = []
        for rank in range(size):
            place = _environment(engine, size, rank, port, environment or {})
            ranks.append(forkserver().Process(target=_run, args=(words, place, str(out), str(err))))
        for process in ranks:
            process.start()
        in_time = _wait(ranks, began + LIMIT_SECONDS)
    stay = _left_over([process.pid or 0 for process in ranks])
    for pid in stay:
        os.kill(pid, signal.SIGKILL)
    codes = tuple(process.exitcode or 0 for process in ranks)
    ended = Ended(max(map(abs, codes)), out.read_text(), err.read_text(), time.monotonic() - began, codes)
    assert in_time, f"no end within {LIMIT_SECONDS} s\n{ended.said}"
    assert not stay, f"processes stay: {stay}\n{ended.said}"
    return ended


def finish(*job: Any, **more: Any) -> Ended:
    """`fork` a job, with its arguments, that has to end well."""
    ended = fork(*job, **more)
    assert ended.code == 0, ended.said
    return ended


def _run(words: list[str], environment: dict[str, str], out: str, err: str) -> None:
    """Become a rank: in a session of its own, with its environment, its words going to these files."""
    os.setsid()
    for number, path in ((1, out), (2, err)):
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(target, number)
        os.close(target)
    os.environ.clear()
    os.environ.update(environment)
    sync_nothing()
    # PyTorch was imported before, and so has not read it; ranks that take all cores each slow each other down.
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    os.chdir(ROOT)
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(str(ROOT / words[0]), run_name="__main__")


def _wait(ranks: Sequence[BaseProcess], deadline: float) -> bool:
    """Wait for the ranks' ends; whether they came in time, and without being killed."""
    told: float | None = None
    while any(process.is_alive() for process in ranks):
        now = time.monotonic()
        if told is None and any(process.exitcode for process in ranks):
            told = now
            _each(ranks, lambda process: process.terminate())
        if now > deadline or (told is not None and now > told + KILL_SECONDS):
            _each(ranks, lambda process: process.kill())
            return now <= deadline
        time.sleep(0.02)
    return True


def _each(ranks: Sequence[BaseProcess], do: Callable[[BaseProcess], None]) -> None:
    for process in ranks:
        if process.is_alive():
            do(process)


@contextmanager
def _meeting_point(engine: str, size: int) -> Iterator[int]:
    """The port at which ranks find each other: of the store that torchrun keeps, or of Horovod's rendezvous server."""
    if engine == "torch":
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        yield store.port
        return
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = int(server.start())
    server.init(get_host_assignments(parse_hosts(f"127.0.0.1:{size}"), size))
    try:
        yield port
    finally:
        server.stop()


def _environment(engine: str, size: int, rank: int, port: int, more: Mapping[str, str]) -> dict[str, str]:
    """What the launcher of `engine` would tell this rank on one host."""
    told = cluster_environment(os.environ, engine, make_plan(str(size), "1gbit"), rank, port, "", "pytest")
    del told["WIREBENCH_COUNTS"]
    host = "127.0.0.1"
    here = {"MASTER_ADDR": host, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    if engine == "horovod":
        here = {"HOROVOD_HOSTNAME": host, "HOROVOD_GLOO_RENDEZVOUS_ADDR": host}
    path = [str(PLUGINS), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**told, **here, "PYTHONPATH": ":".join(filter(None, path)), "OMP_NUM_THREADS": "1", **more}


def _left_over(sessions: Sequence[int], seconds: float = 60.0) -> list[int]:
    """The processes of the ranks' sessions that still live `seconds` after the end."""
    deadline = time.monotonic() + seconds
    while (found := _living(sessions)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def _living(sessions: Sequence[int]) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) in sessions and state != "Z":
            found.append(int(folder.name))
    return found
