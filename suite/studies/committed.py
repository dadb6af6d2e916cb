"""Everything that is committed under results/, held against the rules of trust.py and against its records.

results/exceptions.toml lists what breaks a rule all the same: `files`, patterns of paths below results/, `rules`, and
`why`; for the rule "load" also `share`, of a machine's cores, up to which others may have used them. An exception that
excuses nothing is a mistake, too.
"""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from suite.studies import trust
from suite.studies.notes import NOTE, NotedRun
from suite.studies.study import Study, available
from suite.studies.trust import Repository
from wirebench.config.plugins import check_type
from wirebench.errors import UserError
from wirebench.record import schema
from wirebench.utils.parsing import json_of, toml_of

EXCEPTIONS = "exceptions.toml"
NO_HEADER = ("record.json", NOTE, "trace.json", "layers.json", "exchange.json", "predicted.json", "cluster.json")
"""JSON files that are no benchmark's: a run's own, and what a study was asked for."""
OWN_RUNS = "runs"
"""Where train.py puts what somebody tries: git ignores it, and no table is made of it."""


class Breach(NamedTuple):
    """A rule that a file breaks."""

    file: Path
    rule: str
    how: str
    share: float = 0.0

    def words(self, root: Path) -> str:
        """In a line."""
        return f"{self.file.relative_to(root)}: {self.rule}: {self.how}"


@dataclass
class Excuse:
    """Of an exceptions.toml: paths by patterns, the rules that they may break, how far, and why."""

    files: list[str]
    rules: list[str]
    why: str
    share: float
    used: bool = False

    def covers(self, breach: Breach, root: Path) -> bool:
        """Whether it is about this one."""
        file = breach.file.relative_to(root).as_posix()
        return breach.rule in self.rules and breach.share <= self.share and any(fnmatch(file, p) for p in self.files)


def breaches(root: Path, repository: Repository) -> list[Breach]:
    """All of the records below `root` that nothing excuses; UserError for a file that cannot be read."""
    excuses = _excuses(root / EXCEPTIONS)
    found = []
    single = list(_of_records(root, repository))
    unreadable = any(breach.rule == "schema" for breach in single)
    for breach in single if unreadable else [*single, *_of_repeats(root)]:
        excused = [excuse for excuse in excuses if excuse.covers(breach, root)]
        for excuse in excused:
            excuse.used = True
        if not excused:
            found.append(breach)
    unused = [excuse for excuse in excuses if not excuse.used]
    return found + [
        Breach(root / EXCEPTIONS, "exceptions", f"{', '.join(each.files)} excuses nothing") for each in unused
    ]


def history(root: Path) -> Repository:
    """The commits that the checkout at `root` knows.

    Nothing can be said in a shallow one, in one of a single commit, which is a copy without its history, or outside.
    """
    shallow = _git(root, "rev-parse", "--is-shallow-repository")
    commits = (_git(root, "rev-list", "HEAD") or "").split() if shallow == "false" else []
    return Repository(frozenset(commits) if len(commits) > 1 else None)


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _of_records(root: Path, repository: Repository) -> Iterator[Breach]:
    records: list[tuple[Path, dict[str, Any]]] = []
    for path in _below(root, "record.json"):
        try:
            record = json_of(path.read_text(encoding="utf-8"))
        except ValueError as error:
            yield Breach(path, "schema", f"not valid JSON: {error}")
            continue
        mistakes = trust.broken(record, repository)
        yield from (Breach(path, *each) for each in mistakes)
        if not any(each.rule == "schema" for each in mistakes):
            records.append((path, record))
    yield from (Breach(path, *each) for path, each in trust.copies(records))
    for path in sorted([*_below(root, "*.jsonl"), *_below(root, "*.json")]):
        if path.name in NO_HEADER:
            continue
        try:
            yield from (Breach(path, *each) for each in trust.broken_header(_header(path), repository))
        except (ValueError, KeyError, TypeError) as error:
            yield Breach(path, "schema", f"has no header: {error!r}")


def _below(root: Path, pattern: str) -> list[Path]:
    return sorted(path for path in root.rglob(pattern) if path.relative_to(root).parts[0] != OWN_RUNS)


def _header(path: Path) -> dict[str, Any]:
    """What the file of a benchmark says of itself: its first line, or all of it."""
    text = path.read_text(encoding="utf-8")
    header = json_of(text.partition("\n")[0] if path.suffix == ".jsonl" else text)
    return dict(header)


def _of_repeats(root: Path) -> Iterator[Breach]:
    """Of each composition that a study judges: enough turns, or seeds, and each once."""
    for name in available():
        for pattern, repeats in Study(name).published.records.items():
            for folder in sorted(root.glob(pattern)):
                yield from _of_rows(folder, repeats)


def _of_rows(folder: Path, repeats: str) -> Iterator[Breach]:
    """A run's folder is named COMPOSITION-N."""
    rows: dict[str, list[NotedRun]] = {}
    for path in sorted(folder.glob("[!.]*/record.json")):
        label = path.parent.name.rpartition("-")[0]
        rows.setdefault(label, []).append(NotedRun(path.parent, {}, schema.read(path)))
    rule = trust.seeds if repeats == "seeds" else trust.turns
    for label, runs in rows.items():
        yield from (Breach(folder / label, *each) for each in rule(runs))


def _excuses(path: Path) -> list[Excuse]:
    if not path.exists():
        return []
    try:
        given = toml_of(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from error
    check_type(f"{path}: exceptions", given.get("exceptions"), list[dict])
    return [_excuse(f"{path}: exceptions[{place}]", each) for place, each in enumerate(given["exceptions"])]


def _excuse(where: str, given: dict[str, Any]) -> Excuse:
    for key, kind in (("files", list[str]), ("rules", list[str]), ("why", str)):
        check_type(f"{where}.{key}", given.get(key), kind)
    share = given.get("share", 0.0)
    check_type(f"{where}.share", share, float)
    return Excuse(given["files"], given["rules"], given["why"], share)
