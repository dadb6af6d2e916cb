"""Check everything that is committed under results/ against wirebench/record/rules.py and against its records.

results/exceptions.toml lists accepted violations: `files`, patterns of paths below results/, `rules`, and `why`. For
the rule "load" it also has `share`, of a machine's cores, up to which others may have used them. A pattern that
excuses no breach of one of its rules is a mistake, too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from papers import benchmarks
from papers.planner import forecast
from papers.repository import Repository
from papers.study import Study, available
from wirebench.config.plugins import check_type
from wirebench.errors import UserError
from wirebench.planner.resimulated import RATES
from wirebench.record import recorded
from wirebench.record.notes import NotedRun
from wirebench.record.recorded import NOTE, RUNS, SHARED
from wirebench.record.rules import DAMAGED, ENOUGH, UNTIMED, Broken, broken, copies, moment
from wirebench.record.submission import broken_by, broken_together, claim_of
from wirebench.simulation.compress_rates import Rates
from wirebench.utils.parsing import toml_of

EXCEPTIONS = "exceptions.toml"
NO_HEADER = (RUNS, SHARED, NOTE, "record.json", "trace.json", "outside.json", "simulated.json", "advice.json",
             "diagnose.json", "loops.json", "picture.json", forecast.FILE)  # fmt: skip
"""JSON files that are no benchmark's: runs, what a study was asked for or computed, and what scripts/front.py makes
for README."""
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
        where = "" if self.file == root else f"{self.file.relative_to(root)}: "
        return f"{where}{self.rule}: {self.how}"


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
    try:
        runs = runs_of(root)
        judged = _judged(root)
    except UserError as error:
        return [Breach(root, "schema", str(error))]
    untimed = [folder for folder, what in judged if what in UNTIMED]
    single = [
        *_of_runs(runs, repository, untimed), *_of_benchmarks(root, repository), *_of_forecasts(root, repository),
    ]  # fmt: skip
    claimed = [run for run in runs if claim_of(run)]
    repeated = [breach for each in judged for breach in _of_rows(*each)]
    repeated += [Breach(path, *each) for path, each in broken_together(claimed)]
    # Every excuse is asked, also after one that covers: it is not in vain.
    found = [breach for breach in (*single, *repeated) if not any([each.covers(breach, root) for each in listed])]
    # Where a file cannot be read, not all rules were asked.
    unreadable = any(breach.rule == "schema" for breach in single)
    unused = [] if unreadable else [words for excuse in listed for words in excuse.unused]
    return found + [Breach(root / EXCEPTIONS, "exceptions", f"{words} excuses nothing") for words in unused]


def runs_of(root: Path) -> list[NotedRun]:
    """All runs below `root`, without the user's own trials; UserError for one that cannot be read."""
    return [run for run in recorded.below(root) if run.folder.relative_to(root).parts[0] != OWN_RUNS]


def _of_runs(runs: Sequence[NotedRun], repository: Repository, untimed: Sequence[Path]) -> Iterator[Breach]:
    for run in runs:
        if claim_of(run):
            yield from (Breach(run.folder, *each) for each in broken_by(run, repository.knows))
            continue
        mistakes = broken(run.record, repository.knows)
        is_untimed = any(folder in run.folder.parents for folder in untimed)
        counted = [each for each in mistakes if not (is_untimed and each.rule.startswith("load"))]
        yield from (Breach(run.folder, *each) for each in counted)
    yield from (Breach(path, *each) for path, each in copies((run.folder, run.record) for run in runs))


def _of_benchmarks(root: Path, repository: Repository) -> Iterator[Breach]:
    for path in sorted(each for name in ("*.jsonl", "*.jsonl.gz", "*.json") for each in _below(root, name)):
        if path.name in NO_HEADER:
            continue
        try:
            mistakes = benchmarks.broken(path, repository)
        except DAMAGED as error:
            mistakes = [Broken("schema", f"is no file of a benchmark: {error!r}")]
        yield from (Breach(path, *each) for each in mistakes)


def _of_forecasts(root: Path, repository: Repository) -> Iterator[Breach]:
    """What was forecast before its runs: by a known commit, before the first of them, and after the compressors were
    timed that it rests on.
    """
    for path in _below(root, forecast.FILE):
        try:
            found = _forecast(path.parent, repository)
        except (*DAMAGED, UserError) as error:
            found = [Broken("schema", f"cannot be compared with its runs: {error}")]
        yield from (Breach(path, *each) for each in found)


def _forecast(folder: Path, repository: Repository) -> list[Broken]:
    before, found = forecast.load(folder), []
    assert before is not None
    began = [at for run in recorded.directly_below(folder) if (at := moment(run.has("environment", "utc")))]
    timed = moment(before.given.get("rates_utc"))
    if "rates_utc" not in before.given and "rates" in before.given and (rates := folder / RATES).is_file():
        timed = moment(Rates(rates).utc)  # older files do not say it
    if before.changed:
        found.append(Broken("commit", f"{before.commit[:10]} with changes"))
    elif not repository.knows(before.commit):
        found.append(Broken("commit", f"{before.commit[:10]} is not in this repository's history"))
    if began and before.at and before.at > min(began):
        found.append(Broken("predicted", f"at {before.utc}, and the first of the runs began at {min(began)}"))
    if timed and before.at and timed > before.at:
        found.append(Broken("predicted", f"at {before.utc}, and {RATES}, which it was made of, is of {timed}"))
    return found


def _below(root: Path, pattern: str) -> list[Path]:
    return sorted(path for path in root.rglob(pattern) if path.relative_to(root).parts[0] != OWN_RUNS)


def _judged(root: Path) -> list[tuple[Path, str]]:
    """The folders of runs that studies judge, and what their claims need several of; one may be several studies'."""
    patterns = [each for name in available() for each in Study(name).published.records.items()]
    folders = recorded.series(root)
    found = [(folder, what) for pattern, what in patterns for folder in folders if folder.match(str(root / pattern))]
    return list(dict.fromkeys(found))


def _of_rows(folder: Path, repeats: str) -> Iterator[Breach]:
    """Enough turns, or seeds, of each composition, and each once; a run is named COMPOSITION-N."""
    rows: dict[str, list[NotedRun]] = {}
    for run in recorded.directly_below(folder):
        rows.setdefault(run.composition, []).append(run)
    for label, runs in rows.items():
        yield from (Breach(folder / label, *each) for each in ENOUGH[repeats](runs))


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
