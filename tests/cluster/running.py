"""What tests of running clusters look at."""

import os
import sys
from pathlib import Path
from shlex import quote

from tests.distributed.launch import BIN, ROOT, Job

CLUSTER = [str(BIN / "python"), "-m", "wirebench", "cluster"]
STREAMS = ROOT / "tests/cluster/streams.py"
NOBODY = 65534


def spaces_of(job: Job) -> set[str]:
    """The namespaces of a job's processes that are not this process's."""
    return {name for pid in job.processes() for name in _spaces(pid)} - _spaces(os.getpid())


def still_there(spaces: set[str]) -> set[str]:
    """Those of the namespaces that a process of this machine is in or holds open, or that are mounted somewhere."""
    held = {name for folder in Path("/proc").glob("[0-9]*") for name in _spaces(int(folder.name))}
    mounted = Path("/proc/self/mountinfo").read_text()
    return {name for name in spaces if name in held or name in mounted}


def said(job: Job) -> str:
    """What a job's processes have said so far."""
    return job._said()


def interfaces() -> set[str]:
    """The interfaces of this process's network namespace."""
    return {line.partition(":")[0].strip() for line in Path("/proc/self/net/dev").read_text().splitlines()[2:]}


def table(text: str) -> dict[str, list[str]]:
    """The rows of the table that a run ends with, by host."""
    rows = [line.split() for line in text.splitlines()]
    head = max(number for number, row in enumerate(rows) if row[:2] == ["host", "ranks"])
    return {row[0]: row[1:] for row in rows[head + 1 :]}


def count(cell: str) -> int:
    """A number of the table."""
    return int(cell.replace(",", ""))


def rootless() -> tuple[str, ...]:
    """Words that run a command as a user without any rights, who finds this interpreter even in root's own folder."""
    drop = f"exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups env HOME=/ "
    needed = {path for path in (Path(sys.base_prefix), Path(sys.prefix), ROOT) if _closed(path)}
    needed = {path for path in needed if not any(other in path.parents for other in needed)}
    shown, hidden, moved = [], [], []
    for number, path in enumerate(sorted(needed)):
        shown.append(f"mkdir /mnt/{number}; mount --rbind {quote(str(path))} /mnt/{number}")
        hidden.append(f"mount -t tmpfs -o mode=755 none {quote(str(_closed(path)))}")
        moved.append(f"mkdir -p {quote(str(path))}; mount --rbind /mnt/{number} {quote(str(path))}")
    script = "; ".join(["set -e", "mount -t tmpfs none /mnt", *shown, *dict.fromkeys(hidden), *moved])
    return ("unshare", "--mount", "sh", "-c", f'{script}; {drop} "$@"', "rootless")


def _closed(path: Path) -> Path | None:
    """The uppermost folder above `path` that others may not enter."""
    return next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & 1), None)


def _spaces(pid: int) -> set[str]:
    links = [f"/proc/{pid}/ns/{kind}" for kind in ("net", "pid", "uts", "mnt", "user")]
    found = set()
    for link in [*links, *map(str, Path(f"/proc/{pid}/fd").glob("*"))]:
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target.partition(":")[0] in ("net", "pid", "uts", "mnt", "user"):
            found.add(target)
    return found
