"""What a verdict has to keep besides its records: the setting that its source speaks of, and its tolerance."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from papers import benchmarks, repository
from papers.claim import SCALES, Claim, Verdict
from papers.published import FILE
from wirebench.errors import UserError
from wirebench.record import recorded
from wirebench.record.rules import Broken, moment
from wirebench.utils.parsing import toml_of

FIGURE = ("number", "holds", "tolerance")
"""Keys of a claim by which it is met or missed."""


class Version(NamedTuple):
    """The figures of a study's claims by FIGURE, as they were from this time on."""

    since: datetime.datetime
    figures: Mapping[str, Mapping[str, Any]]


def placed(claim: Claim, verdict: Verdict, records: Sequence[Path]) -> Verdict:
    """The verdict, or "other setting" where the runs are beyond where the claim's source says that it holds."""
    if not claim.least or not records or verdict.state == "not run here":
        return verdict
    beyond = claim.outside(counts(records))
    return Verdict("other setting", verdict.measured, beyond) if beyond else verdict


def counts(folders: Sequence[Path]) -> dict[str, float]:
    """By SCALES, the least of these runs; without what a record does not say. A benchmark's file counts nothing."""
    found: dict[str, float] = {}
    for run in filter(None, map(recorded.at, folders)):
        record, rounds = run.record, run.note.get("rounds")
        steps, workers, data = record.get("steps_done"), record.get("world_size"), record["config"].get("data", {})
        length = data.get("length")
        tokens = steps * workers * data["batch_size"] * length if steps and workers and length else None
        told = record.get("parameters"), steps, rounds, workers, tokens
        for name, count in zip(SCALES, told, strict=True):
            if count is not None:
                found[name] = min(count, found.get(name, count))
    return found


def faults(claim: Claim, text: str, records: Sequence[Path], table: str) -> Iterator[Broken]:
    """The rule that a table's line breaks by the setting in which it was found, whatever made the line.

    text   the claim as a line begins with it
    table  in Markdown
    """
    beyond = claim.outside(counts(records)) if claim.least and records else ""
    for line in table.splitlines() if beyond else ():
        if line.startswith(f"| {text} | ") and "| other setting" not in line and "| not run here" not in line:
            yield Broken("setting", f"{claim.id}: is judged, and its runs have {beyond}")


def changed(claim: Claim, records: Sequence[Path], versions: Sequence[Version]) -> Iterator[Broken]:
    """The rule that a claim's figure breaks if it was changed after there was a result, without a mark.

    A claim that is younger than its runs has the figure that it came with; what is computed has a result at once. The
    mark (`retold`) names the earlier tolerance.
    """
    first = _first_result(records)
    known = [version for version in versions if claim.id in version.figures]
    if not known:
        return
    before = [version for version in known if first is not None and version.since <= first]
    was = (before[-1] if before else known[0]).figures[claim.id]
    now = {"number": claim.number, "holds": claim.holds, "tolerance": claim.tolerance}
    for key in FIGURE:
        if was[key] != now[key] and not (claim.retold and f"{_shown(was[key])} until " in claim.retold):
            yield Broken(
                "tolerance", f"{claim.id}: {key} was {_shown(was[key])} and is {_shown(now[key])}, with results at hand"
            )


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " to ".join(f"{each:g}" for each in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _first_result(records: Sequence[Path]) -> datetime.datetime | None:
    """When all that is compared had begun its first run; None where nothing was run.

    A run is named COMPOSITION-N; a benchmark's file says in its first line when it was made.
    """
    began: dict[str, datetime.datetime] = {}
    for path in records:
        run = recorded.at(path)
        made = benchmarks.header(path) if run is None else run.record
        at = moment(made.get("environment", {}).get("utc"))
        if at is not None:
            label = path.name if run is None else run.composition
            began[label] = min(at, began.get(label, at))
    return max(began.values(), default=None)


def versions(root: Path, folder: Path) -> list[Version]:
    """Committed versions of a study's published.toml, the oldest first; none where the history is not known."""
    found = []
    for since, content in repository.versions_of(root, folder / FILE):
        try:
            claims: Any = toml_of(content.decode()).get("claims", [])
        except (UserError, ValueError):  # one that was not whole when it was committed
            continue
        figures = {
            str(each.get("id")): _figure(each) for each in claims if isinstance(each.get("tolerance"), float | int)
        }
        found.append(Version(datetime.datetime.fromtimestamp(since, datetime.UTC), figures))
    return found


def _figure(entry: Mapping[str, Any]) -> dict[str, Any]:
    number = entry["number"]
    numbers = tuple(map(float, number)) if isinstance(number, list) else (float(number),)
    return {"number": numbers, "holds": entry.get("holds", "about"), "tolerance": float(entry["tolerance"])}
