"""Start runs as a user does, and leave nothing of them behind.

Launchers put their ranks into sessions of their own, so a job's processes are known by a mark in their environment.
"""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from tests.distributed.mine.net import PAUSE, TROUBLE
from wirebench.compose import run as train

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "tests/distributed/run.toml"
MARK = "WIREBENCH_TEST_JOB"
LIMIT_SECONDS = 280.0
BIN = Path(sys.executable).parent
PLUGINS = ROOT / "tests/distributed"
sys.path.append(str(PLUGINS))


class Ended(NamedTuple):
    """A job that has ended: its launcher's exit code, what all its processes said, and the ranks' codes if known."""

    code: int
    out: str
    err: str
    seconds: float
    codes: tuple[int, ...] = ()

    @property
    def errors(self) -> list[str]:
        """The runs' own error lines, without the launcher's prefix."""
        return [line for line in map(_bare, self.err.splitlines()) if line.startswith("error: ")]

    @property
    def said(self) -> str:
        """Everything, for a failing test's message."""
        return f"exit code {self.code} {self.codes or ''} after {self.seconds:.1f} s\n{self.out}\n{self.err}"


class Job:
    """A launched command; `started` gives one and cleans up after it."""

    def __init__(self, command: Sequence[str], logs: Path, environment: Mapping[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        self.began = time.monotonic()
        logs.mkdir(parents=True, exist_ok=True)
        self._out, self._err = logs / f"{self.mark}.out", logs / f"{self.mark}.err"
        path = [str(PLUGINS), os.environ.get("PYTHONPATH", "")]
        settings = {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join(filter(None, path)),
            "OMP_NUM_THREADS": "1",
            MARK: self.mark,
        }
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                list(command),
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, **settings, **environment},
                start_new_session=True,
            )

    def wait(self, limit_seconds: float = LIMIT_SECONDS) -> Ended:
        """Wait for the launcher's end; AssertionError, with what was said, where that takes too long."""
        try:
            code = self.process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"no end within {limit_seconds} s\n{self._said()}") from None
        seconds = time.monotonic() - self.began
        return Ended(code, self._out.read_text(), self._err.read_text(), seconds)

    def until(self, condition: Callable[[], bool], limit_seconds: float = LIMIT_SECONDS) -> None:
        """Wait until `condition` holds while the job runs."""
        deadline = time.monotonic() + limit_seconds
        while not condition():
            assert self.process.poll() is None, f"the job ended before its time\n{self._said()}"
            assert time.monotonic() < deadline, f"waited {limit_seconds} s in vain\n{self._said()}"
            time.sleep(0.01)

    def processes(self) -> dict[int, dict[str, str]]:
        """Environment of each living process of this job, by process number; the launcher is one of them."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            environment = _environment(folder)
            if environment.get(MARK) == self.mark and _state(folder) != "Z":
                found[int(folder.name)] = environment
        return found

    def ranks(self) -> dict[int, int]:
        """Process number of each rank's training process."""
        found = {}
        for pid, environment in self.processes().items():
            rank = environment.get("HOROVOD_RANK") or environment.get("RANK")
            words = _command(pid)
            if rank is not None and "python" in Path(words[0]).name and "train.py" in words[1:3]:
                found[int(rank)] = pid
        return found

    def left_over(self, seconds: float = 60.0) -> dict[int, list[str]]:
        """Commands of the processes that still live `seconds` after the end."""
        deadline = time.monotonic() + seconds
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return {pid: _command(pid) for pid in found}

    def end(self) -> None:
        """Kill whatever lives of the job."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()

    def _said(self) -> str:
        return f"{self._out.read_text()}\n{self._err.read_text()}"


@contextmanager
def started(
    engine: str,
    size: int,
    arguments: Sequence[object],
    logs: Path,
    environment: Mapping[str, str] | None = None,
    script: str = "train.py",
) -> Iterator[Job]:
    """A job of `size` ranks, or of `size` virtual workers where engine is local; at the end nothing of it lives."""
    job = Job([*launcher(engine, size), *script.split(), *last_of_each(arguments)], logs, environment or {})
    try:
        yield job
    finally:
        job.end()


def launch(*words: Any, **more: Any) -> Ended:
    """Run a job that is `started` by these arguments to its end, and check that no process of it stays."""
    with started(*words, **more) as job:
        ended = job.wait()
        stay = job.left_over()
        assert not stay, f"processes stay: {stay}\n{ended.said}"
        return ended


def here(size: int, arguments: Sequence[object], environment: Mapping[str, str] | None = None) -> int:
    """Run train.py on the local engine in this process, which is quicker; returns the exit code."""
    threads = torch.get_num_threads()
    with patch.dict(os.environ, environment or {}):
        try:
            return train.main(last_of_each([*arguments, f"engine.workers={size}"]))
        finally:
            torch.set_num_threads(threads)


def last_of_each(arguments: Sequence[object]) -> list[str]:
    """The words of a command line; of settings that are given twice, which train.py refuses, the later one.

    So a test can change what the settings it shares with others say.
    """
    words = [str(word) for word in arguments]
    last = {word.partition("=")[0]: place for place, word in enumerate(words)}
    return [word for place, word in enumerate(words) if last[word.partition("=")[0]] == place]


def trouble(kind: str, step: int, rank: int = -1) -> dict[str, str]:
    """The environment in which mine.net gets into trouble, in the second of run.toml's two micro-batches of a step."""
    return {TROUBLE: f"{kind} {2 * step + 1} {rank}"}


def slowly(pause_ms: float) -> dict[str, str]:
    """The environment in which mine.net takes so much longer for each of the two micro-batches of a step."""
    return {PAUSE: str(pause_ms)}


def launcher(engine: str, size: int) -> list[str]:
    """The words before the script."""
    if engine == "local":
        return [str(BIN / "python")]
    if engine == "torch":
        # Ranks would come by the host's own name, which leads nowhere on some machines.
        where = ["--standalone", "--local-addr", "127.0.0.1"]
        return [str(BIN / "torchrun"), *where, "--nproc-per-node", str(size)]
    assert engine == "horovod", engine
    # The address instead of a name, which might lead to ssh; no cache in the home folder.
    one_host = ["-np", str(size), "-H", f"127.0.0.1:{size}", "--gloo", "--network-interface", "lo", "--disable-cache"]
    return [str(BIN / "horovodrun"), *one_host, str(BIN / "python")]


def _bare(line: str) -> str:
    return re.sub(r"^\[\d+\]<std(out|err)>:", "", line)


def _environment(folder: Path) -> dict[str, str]:
    try:
        content = (folder / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.split("=", 1) for item in content.decode(errors="replace").split("\0") if "=" in item)
    return {key: value for key, value in pairs}


def _state(folder: Path) -> str:
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return [""]
