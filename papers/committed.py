"""Check everything that is committed under results/ against the rules of trust.py and against its records.

results/exceptions.toml lists accepted violations: `files`, patterns of paths below results/, `rules`, and `why`. For
the rule "load" it also has `share`, of a machine's cores, up to which others may have used them. A pattern that
excuses no breach of one of its rules is a mistake, too.
"""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from papers import benchmarks, trust
from papers.benchmarks import DAMAGED
from papers.prediction import signed
from papers.repository import Repository
from papers.rows import flat
from papers.study import Study, available
from wirebench.config.plugins import check_type
from wirebench.errors import UserError
from wirebench.record import schema
from wirebench.record.notes import NOTE, NotedRun
from wirebench.utils.parsing import json_of, toml_of

EXCEPTIONS = "exceptions.toml"
NO_HEADER = ("record.json", NOTE, "trace.json", "layers.json", "exchange.json", "predicted.json", "cluster.json",
             "outside.json", "simulated.json", "cell.json", "ranking.json", "advice.json", "diagnose.json",
             "loops.json", "picture.json")  # fmt: skip
"""JSON files that are no benchmark's: a run's own, what a study was asked for or computed, and what scripts/front.py
makes for README."""
CONFIG = "config.toml"
OWN_RUNS = "runs"
"""Where train.py puts the user's own trials: git ignores it, and no table is made of it."""


class Breach(NamedTuple):
    """A rule that a file breaks."""

    file: Path
    rule: str
    how: str
    share: float = 0.0

    def words(self, root: Path) -> str:
        """Return the breach as one line."""
        return f"{self.file.relative_to(root)}: {self.rule}: {self.how}"


@dataclass
class Excuse:
    """An entry of an exceptions.toml: paths by patterns, the rules that they may break, how far, and why.

    used  the pairs of a pattern and a rule that excused something
    """

    files: list[str]
    rules: list[str]
    why: str
    share: float
    used: set[tuple[str, str]] = field(default_factory=set)

    def covers(self, breach: Breach, root: Path) -> bool:
        """Whether it is about this one."""
        file = breach.file.relative_to(root).as_posix()
        if breach.rule not in self.rules or breach.share > self.share:
            return False
        patterns = [pattern for pattern in self.files if fnmatch(file, pattern)]
        self.used.update((pattern, breach.rule) for pattern in patterns)
        return bool(patterns)

    @property
    def unused(self) -> list[str]:
        """The patterns and rules that excuse no breach."""
        pairs = ((pattern, rule) for pattern in self.files for rule in self.rules)
        return [f"{pattern}: {rule}" for pattern, rule in pairs if (pattern, rule) not in self.used]


def breaches(root: Path, repository: Repository) -> list[Breach]:
    """All of the records below `root` that nothing excuses; UserError for a file that cannot be read."""
    listed = excuses(root / EXCEPTIONS)
    judged = _judged(root)
    untimed = frozenset(
        path for folder, what in judged if what in trust.UNTIMED for path in folder.rglob("record.json")
    )
    single = [
        *_of_records(root, repository, untimed), *_of_benchmarks(root, repository),
        *_of_predictions(root, repository),
    ]  # fmt: skip
    unreadable = any(breach.rule == "schema" for breach in single)
    repeated = [] if unreadable else [breach for each in judged for breach in _of_rows(*each)]
    # Every excuse is asked, also after one that covers: it is not in vain.
    found = [breach for breach in (*single, *repeated) if not any([each.covers(breach, root) for each in listed])]
    # Where a file cannot be read, not all rules were asked.
    unused = [] if unreadable else [words for excuse in listed for words in excuse.unused]
    return found + [Breach(root / EXCEPTIONS, "exceptions", f"{words} excuses nothing") for words in unused]


def records(root: Path) -> list[Path]:
    """The records of all runs below `root`, without the user's own trials."""
    return _below(root, "record.json")


def _of_records(root: Path, repository: Repository, untimed: frozenset[Path]) -> Iterator[Breach]:
    known: list[tuple[Path, dict[str, Any]]] = []
    for path in records(root):
        try:
            record = json_of(path.read_text(encoding="utf-8"))
        except ValueError as error:
            yield Breach(path, "schema", f"not valid JSON: {error}")
            continue
        try:
            mistakes = [*trust.broken(record, repository), *_another_config(path, record)]
            mistakes += _edited(path, record, repository)
        except DAMAGED as error:
            mistakes = [trust.Broken("schema", f"is no record of a run: {error!r}")]
        counted = [each for each in mistakes if path not in untimed or not each.rule.startswith("load")]
        yield from (Breach(path, *each) for each in counted)
        if not any(each.rule == "schema" for each in mistakes):
            known.append((path, record))
    yield from (Breach(path, *each) for path, each in trust.copies(known))


def _of_benchmarks(root: Path, repository: Repository) -> Iterator[Breach]:
    for path in sorted([*_below(root, "*.jsonl"), *_below(root, "*.json")]):
        if path.name in NO_HEADER:
            continue
        try:
            mistakes = [*benchmarks.broken(path, repository), *_edited(path, benchmarks.header(path), repository)]
        except DAMAGED as error:
            mistakes = [trust.Broken("schema", f"is no file of a benchmark: {error!r}")]
        yield from (Breach(path, *each) for each in mistakes)


def _of_predictions(root: Path, repository: Repository) -> Iterator[Breach]:
    """What was predicted before its runs: by a known commit, before the first of them, and once."""
    for path in _below(root, signed.FILE):
        try:
            found = _predicted(path, repository)
        except (*DAMAGED, UserError) as error:
            found = [trust.Broken("schema", f"cannot be held against its runs: {error}")]
        yield from (Breach(path, *each) for each in found)


def _predicted(path: Path, repository: Repository) -> list[trust.Broken]:
    content = path.read_bytes()
    if json_of(content.decode()).get(signed.KEY) is None:  # another study's, which does not sign
        return []
    runs = [schema.read(each) for each in path.parent.glob("*/record.json")]
    began = min((at for run in runs if (at := trust.moment(run["environment"].get("utc")))), default=None)
    found = _prediction(content, began, repository)
    others = (each for each in repository.versions.get(path, ()) if not _prediction(each, began, repository))
    if not found and any(others):
        found = [trust.Broken("edited", "other predictions of before these runs were committed")]
    return found


def _prediction(content: bytes, began: datetime.datetime | None, repository: Repository) -> list[trust.Broken]:
    """What keeps a file from being a prediction of runs of which the first began then."""
    told = json_of(content.decode())
    at, found = trust.moment(told.get("utc")), []
    if not repository.knows(str(told.get("commit"))):
        found.append(trust.Broken("commit", f"{str(told.get('commit'))[:10]} is not in this repository's history"))
    if at is None or (began is not None and at > began):
        found.append(trust.Broken("predicted", f"at {told.get('utc')}, and the first of the runs began at {began}"))
    return found


def _another_config(path: Path, record: Mapping[str, Any]) -> Iterator[trust.Broken]:
    """The config.toml beside a record, from which the run would be repeated, differs from the run's config."""
    beside = path.with_name(CONFIG)
    if not beside.is_file():
        return
    try:
        told = dict(flat(toml_of(beside.read_text(encoding="utf-8"))))
    except ValueError as error:
        yield trust.Broken("config", f"{CONFIG} beside it is no TOML: {error}")
        return
    own = dict(flat(record["config"]))
    # TOML has no word for None: such a key is left out.
    other = sorted(key for key in told.keys() | own.keys() if told.get(key) != own.get(key))
    if other:
        yield trust.Broken("config", f"{CONFIG} beside it has another {', '.join(other)}")


def _edited(path: Path, content: Mapping[str, Any], repository: Repository) -> Iterator[trust.Broken]:
    """A run that was committed with another content: a new run begins at another time, and takes another."""
    own = _marks(content)
    if "calls" in content:
        yield from _rewritten(path, content, repository)
    for version in repository.versions.get(path, ()):
        same = own & _marks(_first(version, path.suffix))
        if same:
            told = ", ".join(sorted(name for name, *_ in same))
            yield trust.Broken("edited", f"a run with the same {told} was committed with another content")
            return


def _rewritten(path: Path, header: Mapping[str, Any], repository: Repository) -> Iterator[trust.Broken]:
    """A file that later calls add to does not have what was committed of it: results, calls, or what they are about.

    Of the last call of a version the load may change, as more results of its own may follow.
    """
    held = [json_of(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    took = {line["seconds"] for line in held}
    for version in repository.versions.get(path, ()):
        earlier = _first(version, path.suffix)
        results = [json_of(line) for line in version.decode().splitlines()[1:]]
        if not took & {line["seconds"] for line in results}:
            continue  # another campaign's
        same = {key: value for key, value in earlier.items() if key != "calls"}.items() <= dict(header).items()
        if held[: len(results)] != results or not same or not _goes_on(earlier["calls"], header["calls"]):
            yield trust.Broken("edited", "what was committed of these calls and their results is not there as it was")
            return


def _goes_on(earlier: Sequence[Mapping[str, Any]], calls: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the calls begin with the earlier ones, of which the last may have gone on."""
    *whole, last = [*earlier]
    now = calls[len(whole)] if len(calls) >= len(earlier) else {}
    begun = now.get("beginnings", [])[: len(last["beginnings"])]
    kept = {**now, "beginnings": begun, "load": last["load"]}
    return list(calls[: len(whole)]) == whole and kept == last


def _marks(content: Mapping[str, Any]) -> set[Any]:
    """Marks by which a run is recognised in another version of the file."""
    began = trust.moment(content.get("environment", {}).get("utc"))
    return {*trust.times(content), *([] if began is None else [("utc", began)])}


def _first(version: bytes, suffix: str) -> Mapping[str, Any]:
    """A version's record, or the header of its lines; {} for what is neither."""
    try:
        found = json_of(version.partition(b"\n")[0].decode() if suffix == ".jsonl" else version.decode())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _below(root: Path, pattern: str) -> list[Path]:
    return sorted(path for path in root.rglob(pattern) if path.relative_to(root).parts[0] != OWN_RUNS)


def _judged(root: Path) -> list[tuple[Path, str]]:
    """The folders of runs that studies judge, and what their claims need several of; one may be several studies'."""
    patterns = [each for name in available() for each in Study(name).published.records.items()]
    found = [(folder, repeats) for pattern, repeats in patterns for folder in sorted(root.glob(pattern))]
    return list(dict.fromkeys(found))


def _of_rows(folder: Path, repeats: str) -> Iterator[Breach]:
    """Enough turns, or seeds, of each composition, and each once; a run's folder is named COMPOSITION-N."""
    rows: dict[str, list[NotedRun]] = {}
    for path in sorted(folder.glob("[!.]*/record.json")):
        label = path.parent.name.rpartition("-")[0]
        rows.setdefault(label, []).append(NotedRun(path.parent, {}, schema.read(path)))
    for label, runs in rows.items():
        yield from (Breach(folder / label, *each) for each in trust.ENOUGH[repeats](runs))


def excuses(path: Path) -> list[Excuse]:
    """What the file lists, nothing without it; UserError for one that is damaged."""
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
