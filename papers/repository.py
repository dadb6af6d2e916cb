"""What git says of committed records: which commits there are, and which versions of a file there were."""

import hashlib
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Repository:
    """What is known of a repository.

    commits   of its history; None where that is not whole, so that commits cannot be checked
    versions  of a file that was committed more than once, or is not as it was committed: what it held then
    """

    commits: frozenset[str] | None
    versions: Mapping[Path, tuple[bytes, ...]] = field(default_factory=dict)

    def knows(self, commit: str) -> bool:
        """Whether the commit is in the history; True where the history is not known."""
        return self.commits is None or commit in self.commits


def history(root: Path, below: Path | None = None) -> Repository:
    """The commits that the checkout at `root` knows, and the versions of the JSON files `below` a folder of it.

    Commits are unknown in a shallow clone, in one of a single commit, which is a copy without its history, or
    outside.
    """
    shallow = _git(root, "rev-parse", "--is-shallow-repository")
    commits = (_git(root, "rev-list", "HEAD") or "").split() if shallow == "false" else []
    if len(commits) < 2:
        return Repository(None)
    return Repository(frozenset(commits), {} if below is None else _versions(root, below))


def _versions(root: Path, below: Path) -> dict[Path, tuple[bytes, ...]]:
    """Every earlier version in the history, for each JSON file that exists and differs from it."""
    if not below.is_relative_to(root):
        return {}
    # ":100644 100644 OLD NEW M<tab>PATH", newest first; a file that was deleted has a NEW of zeros.
    listing = _git(root, "log", "--raw", "--no-abbrev", "--no-renames", "--format=", "--", below.relative_to(root))
    blobs: dict[Path, list[str]] = {}
    for line in (listing or "").splitlines():
        about, _, name = line.partition("\t")
        if name.endswith((".json", ".jsonl")) and (root / name).is_file():
            blobs.setdefault(root / name, []).append(about.split()[3])
    others = {path: [blob for blob in those if blob != _blob(path)] for path, those in blobs.items()}
    held = _contents(root, {blob for those in others.values() for blob in those})
    return {path: tuple(held[blob] for blob in those if blob in held) for path, those in others.items() if those}


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


def _blob(path: Path) -> str:
    """Name under which git would keep the file."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


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
