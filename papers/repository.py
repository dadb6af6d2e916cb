"""What git says of committed records: commits, versions of a file, and whether runs went."""

import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from wirebench.errors import UserError
from wirebench.record import recorded
from wirebench.record.recorded import RUNS, SHARED

APPENDED = (RUNS, SHARED)
"""Names of the files that only grow."""


@dataclass(frozen=True)
class Repository:
    """What is known of a repository: the commits of its history, None where that is not whole."""

    commits: frozenset[str] | None

    def knows(self, commit: str) -> bool:
        """Whether the commit is in the history; True where the history is not known."""
        return self.commits is None or commit in self.commits


def history(root: Path) -> Repository:
    """The commits that the checkout at `root` knows.

    They are unknown in a shallow clone, in one of a single commit, which is a copy without its history, or outside.
    """
    shallow = _git(root, "rev-parse", "--is-shallow-repository")
    commits = (_git(root, "rev-list", "HEAD") or "").split() if shallow == "false" else []
    return Repository(None if len(commits) < 2 else frozenset(commits))


def lost_runs(root: Path, base: str, below: Path) -> list[Path]:
    """The files `below` a folder that lack a run, or have changed one, that `base` has.

    A line may be written in another form, as scripts/rewrite_results.py does, where it says the same.
    UserError where git does not know `base`, or for a line that cannot be read.
    """
    if _git(root, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}") is None:
        raise UserError(f"{base}: is no commit of {root}")
    told = _git(root, "diff", "--numstat", "--no-renames", base, "HEAD", "--", below) or ""
    changed = [(Path(name), gone) for _, gone, name in (line.split("\t") for line in told.splitlines())]
    folders = {path.parent for path, gone in changed if path.name in APPENDED and gone != "0"}
    there = map(Path, (_git(root, "ls-tree", "-r", "--name-only", "--full-name", base, "--", below) or "").splitlines())
    # A file of shapes has those of all folders below it.
    asked = [file for file in there if file.name == RUNS and not folders.isdisjoint(file.parents)]
    return [file for file in asked if _runs(root, base, file) - _runs(root, "HEAD", file)]


def _runs(root: Path, commit: str, file: Path) -> Counter[str]:
    runs, *shapes = (
        _git(root, "show", f"{commit}:{path.as_posix()}") or ""
        for path in (file, *(folder / SHARED for folder in reversed(file.parents)))
    )
    try:
        return Counter(recorded.canonical(runs, *shapes))
    except UserError as error:
        raise UserError(f"{file} at {commit}: {error}") from error


def versions_of(root: Path, path: Path) -> list[tuple[float, bytes]]:
    """When each version of a file was committed, and what it held, the oldest first; none outside a whole history."""
    if history(root).commits is None or not path.is_relative_to(root):
        return []
    # Followed over renames: a study's folder has moved.
    listing = _git(root, "log", "--follow", "-M", "--raw", "--no-abbrev", "--format=%ct", "--", path.relative_to(root))
    found: list[tuple[float, str]] = []
    since = 0.0
    for line in (listing or "").splitlines():
        if line.startswith(":"):
            found.append((since, line.split()[3]))
        elif line:
            since = float(line)
    held = _contents(root, {blob for _, blob in found})
    return [(since, held[blob]) for since, blob in reversed(found) if blob in held]


def _contents(root: Path, blobs: set[str]) -> dict[str, bytes]:
    """Contents of git's blobs by name."""
    command = ["git", "-C", str(root), "cat-file", "--batch"]
    names = "\n".join(sorted(blobs)).encode()
    told = subprocess.run(command, input=names, capture_output=True, timeout=60, check=False).stdout
    held, place = {}, 0
    while place < len(told):
        end = told.index(b"\n", place)
        name, kind, *size = told[place:end].split()
        place = end + 1
        if kind != b"missing":
            held[name.decode()] = told[place : place + int(size[0])]
            place += int(size[0]) + 1
    return held


def _git(root: Path, *words: str | Path) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *map(str, words)], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
