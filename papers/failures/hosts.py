"""Train with a host that is lost and one that comes, and without: both runs of an engine and a seed.

python -m papers.failures.hosts --engine torch --seed 0 --data FOLDER --out results/failures/worlds

ResNet-8 learns CIFAR-10 at 16 x 16 pixels with the largest 1 % of the gradient, on four hosts of one rank each. All of
them are this machine: an emulated cluster on torch, and names that lead to this machine on Horovod, whose launcher
would else need ssh. A broken run loses a host after at least 1,000 of 3,120 steps, and gets one at least 1,000 steps of
the three later. Runs that --out has are not made again. It needs root, to give hosts names.
"""

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import psutil

from papers.failures import worlds
from wirebench.chaos import trial
from wirebench.chaos.job import Job, JobSetting, commits_below, running
from wirebench.cluster.namespaces import JOB
from wirebench.record import recorded
from wirebench.training.elastic.host_memory import TMPFS
from wirebench.utils.files import write_atomically
from wirebench.utils.package import TOP

WORDS = (
    "configs/tables/convergence_quick.toml", "engine.workers=0", "compressor.name=topk", "compressor.density=0.01",
    "train.elastic=true", "train.mirror=1",
)  # fmt: skip
LEAST_STEPS, AGAIN_STEPS = 1000, 1000
LIMIT_SECONDS = 3600.0


class OnTorch:
    """A job of four hosts of an emulated cluster, of which one is lost and comes back.

    first, lost, new  a host that stays, the one that is lost, and the one that comes after it
    """

    first, lost, new = "h0", "h3", "h3"

    def __init__(self, job: Job) -> None:
        self.job, self.commits = job, job.commits

    def lose(self) -> None:
        """The host `lost` is gone, at once."""
        self.until(lambda: self.job.lose(self.lost), LIMIT_SECONDS)

    def gain(self) -> None:
        """The host `new` joins the job."""
        self.job.gain(self.new)

    def until(self, condition: Callable[[], bool], limit_seconds: float) -> None:
        """Wait until `condition` holds; AssertionError, with what was said, where that takes too long."""
        assert trial.until(self.job, condition, limit_seconds), "\n".join(line.text for line in self.job.lines)

    def finish(self, limit_seconds: float) -> None:
        """Wait for the job's end; AssertionError where that is none as it should be."""
        self.until(lambda: self.job.is_done, limit_seconds)


@contextmanager
def on_torch(folder: Path, words: Sequence[str]) -> Iterator[OnTorch]:
    """A job of train.py with these words."""
    with running(folder, JobSetting(link="1gbit"), ["train.py", *words]) as job:
        yield OnTorch(job)


class OnHorovod:
    """A job of four hosts, of which a script tells horovodrun, whose process this is, with OnTorch's attributes.

    folder  has the script and what was said
    """

    first, lost, new = "hv0", "hv3", "hv4"
    names = ("hv0", "hv1", "hv2", "hv3", "hv4")

    def __init__(self, folder: Path, process: "subprocess.Popen[bytes]") -> None:
        self.folder, self.process = folder, process

    def lose(self) -> None:
        """Kill the rank of the host `lost`: horovodrun gives up a host of which a rank has ended."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        [rank] = [each for each in below if _is_rank(each, self.lost)]
        rank.kill()

    def gain(self) -> None:
        """The host `new` joins the job."""
        _tell(self.folder, self.names)

    def commits(self, host: str, size: int) -> list[int]:
        """After how many steps a host's commits were made of a world of `size` ranks."""
        return commits_below(TMPFS, host, size)

    def until(self, condition: Callable[[], bool], limit_seconds: float) -> None:
        """Wait until `condition` holds; AssertionError, with what was said, where that takes too long."""
        deadline = time.monotonic() + limit_seconds
        while not condition():
            assert self.process.poll() is None and time.monotonic() < deadline, self._said()
            time.sleep(0.05)

    def finish(self, limit_seconds: float) -> None:
        """Wait for the job's end, before which the three that went on after a loss have named each whom they lost."""
        assert self.process.wait(limit_seconds) == 0, self._said()
        named = re.findall(rf"error: rank \d+.*: lost rank .*on {self.lost}\)", self._said())
        assert len(named) in (0, 3), self._said()

    def _said(self) -> str:
        return (self.folder / "horovodrun.log").read_text(errors="replace")


@contextmanager
def on_horovod(folder: Path, words: Sequence[str]) -> Iterator[OnHorovod]:
    """A job of train.py with these words; nothing of it stays."""
    script, names = folder / "discover.sh", OnHorovod.names
    script.write_text(f"#!/bin/sh\ncat {shlex.quote(str(folder / 'there'))}\n")
    script.chmod(0o755)
    _tell(folder, names[:-1])
    _forget(names)
    # Names that lead to this machine, so that horovodrun starts their ranks without ssh.
    inside = (
        'ip link set lo up; (cat /etc/hosts; echo "127.0.0.1 $0") > hosts; mount --bind hosts /etc/hosts; exec "$@"'
    )
    bin_folder = Path(sys.executable).parent
    command = [
        *JOB, "--net", "sh", "-e", "-c", f"cd {shlex.quote(str(folder))}; {inside}", " ".join(names),
        "env", "-C", str(TOP), f"PATH={bin_folder}:/usr/sbin:/sbin:/usr/bin:/bin", "OMP_NUM_THREADS=1",
        "WIREBENCH_SHARED_BY=4", str(bin_folder / "horovodrun"), "-np", "4", "--min-np", "3", "--max-np", "4",
        "--host-discovery-script", shlex.quote(str(script)), "--network-interface", "lo", "--gloo",
        "--disable-cache", str(bin_folder / "python"), "train.py", *words,
    ]  # fmt: skip
    with (folder / "horovodrun.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        yield OnHorovod(folder, process)
    finally:
        process.kill()  # and with it all in its namespace
        process.wait()
        _forget(names)


def _tell(folder: Path, names: Sequence[str]) -> None:
    write_atomically(folder / "there", "".join(f"{each}:1\n" for each in names))


def _forget(names: Sequence[str]) -> None:
    """Give back the memory of hosts: a host that was lost did not."""
    for memory in (path for name in names for path in TMPFS.glob(f"wirebench-*/{name}")):
        shutil.rmtree(memory)
        with suppress(OSError):  # another host has some
            memory.parent.rmdir()


def _is_rank(process: psutil.Process, host: str) -> bool:
    with suppress(psutil.Error):
        words = process.cmdline()
        is_training = "python" in Path(words[0]).name and words[1:2] == ["train.py"] if words else False
        return is_training and process.environ().get("HOROVOD_HOSTNAME") == host
    return False


Hosts = OnTorch | OnHorovod


def lose_and_gain(hosts: Hosts, least: int, again: int, limit_seconds: float) -> None:
    """Lose a host after `least` steps, and gain one `again` steps of the rest later.

    Each waits for what was to come before, however long that takes: nothing here is a matter of time.
    """
    first = hosts.first
    hosts.until(lambda: max(hosts.commits(first, 4), default=0) >= least, limit_seconds)
    hosts.lose()
    hosts.until(lambda: bool(hosts.commits(first, 3)), limit_seconds)
    began = max(hosts.commits(first, 3))
    hosts.until(lambda: max(hosts.commits(first, 3), default=0) >= began + again, limit_seconds)
    hosts.gain()
    hosts.until(lambda: bool(hosts.commits(hosts.new, 4)), limit_seconds)


ENGINES: dict[str, Callable[[Path, Sequence[str]], AbstractContextManager[Hosts]]] = {
    "torch": on_torch,
    "horovod": on_horovod,
}


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--again", action="store_true")
    return parser.parse_args(words)


def main() -> None:
    """Make the runs that are not there yet."""
    options = parse(sys.argv[1:])
    for broken in worlds.SIDES:
        kept = options.out / f"{worlds.label(options.engine, broken)}-{options.seed}"
        if options.again or recorded.at(kept) is None:
            _run(options.engine, options.data, options.seed, broken, kept)


def _run(engine: str, data: Path, seed: int, broken: bool, kept: Path) -> None:
    """Train once, as the run of the path `kept`."""
    with tempfile.TemporaryDirectory(prefix="worlds-") as folder:
        run = Path(folder) / "run"
        words = [*WORDS, f"engine.name={engine}", f"data.root={data.resolve()}", f"train.seed={seed}"]
        with ENGINES[engine](Path(folder), [*words, f"output.dir={run}"]) as hosts:
            if broken:
                lose_and_gain(hosts, LEAST_STEPS, AGAIN_STEPS, LIMIT_SECONDS)
            hosts.finish(LIMIT_SECONDS)
        changes = worlds.changes(json.loads((run / "record.json").read_text()))
        assert changes == worlds.CHANGES[broken], f"another world came or went: {changes}"
        recorded.append(kept.parent, kept.name, {}, run)


if __name__ == "__main__":
    main()
