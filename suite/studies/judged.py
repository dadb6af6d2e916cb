"""What a verdict has to keep besides its records: the setting that its source speaks of, and its tolerance."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from suite.studies import repository, trust
from suite.studies.claim import SCALES, Claim, Verdict
from suite.studies.notes import NOTE, note
from suite.studies.published import FILE
from wirebench.errors import UserError
from wirebench.record import schema
from wirebench.utils.parsing import toml_of


class Version(NamedTuple):
    """The tolerances of a study's claims, as they were from this time on."""

    since: datetime.datetime
    tolerances: Mapping[str, float]


def placed(claim: Claim, verdict: Verdict, records: Sequence[Path]) -> Verdict:
    """The verdict, or "other setting" where the runs are beyond where the claim's source says that it holds."""
    if not claim.least or not records or verdict.state == "not run here":
        return verdict
    beyond = claim.outside(counts(records))
    return Verdict("other setting", verdict.measured, beyond) if beyond else verdict


def counts(folders: Sequence[Path]) -> dict[str, float]:
    """By SCALES, the least of these runs; without what a record does not say."""
    found: dict[str, float] = {}
    for folder in folders:
        record = schema.read(folder)
        path = folder / NOTE
        rounds = note(path, {}).get("rounds") if path.is_file() else None
        told = record.get("parameters"), record.get("steps_done"), rounds, record.get("world_size")
        known = dict(zip(SCALES, told, strict=True))
        for name, count in known.items():
            if count is not None:
                found[name] = min(count, found.get(name, count))
    return found


def faults(claim: Claim, verdict: Verdict, records: Sequence[Path]) -> Iterator[trust.Broken]:
    """The rule that a verdict breaks by the setting in which it was found."""
    if placed(claim, verdict, records) != verdict:
        yield trust.Broken("setting", f"{claim.id}: {verdict.state}: {claim.outside(counts(records))}")


def changed(claim: Claim, records: Sequence[Path], versions: Sequence[Version]) -> Iterator[trust.Broken]:
    """The rule that a claim's tolerance breaks if it is another than before there was a result, and does not say so.

    A claim that is younger than its runs has the tolerance that it came with.
    """
    first = _first_result(records)
    known = [version for version in versions if claim.id in version.tolerances]
    if claim.retold or first is None or not known:
        return
    before = [version for version in known if version.since <= first]
    was = (before[-1] if before else known[0]).tolerances[claim.id]
    if was != claim.tolerance:
        yield trust.Broken("tolerance", f"{claim.id}: was {was:g} and is {claim.tolerance:g}, with the results at hand")


def _first_result(folders: Sequence[Path]) -> datetime.datetime | None:
    """When all that is compared had begun its first run; None without a run, as of a benchmark's file.

    A run's folder is named COMPOSITION-N.
    """
    began: dict[str, datetime.datetime] = {}
    for folder in folders:
        at = trust.moment(schema.read(folder)["environment"].get("utc")) if folder.is_dir() else None
        if at is not None:
            label = folder.name.rpartition("-")[0]
            began[label] = min(at, began.get(label, at))
    return max(began.values(), default=None)


def versions(root: Path, folder: Path) -> list[Version]:
    """Those of a study's published.toml that were committed, the oldest first; none where the history is not known."""
    found = []
    for since, content in repository.versions_of(root, folder / FILE):
        try:
            claims: Any = toml_of(content.decode()).get("claims", [])
        except (UserError, ValueError):  # one that was not whole when it was committed
            continue
        tolerances = {str(each.get("id")): each["tolerance"] for each in claims if "tolerance" in each}
        found.append(Version(datetime.datetime.fromtimestamp(since, datetime.UTC), tolerances))
    return found
