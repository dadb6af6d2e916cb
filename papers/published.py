"""published.toml: where a study's claims stand, the claims, and what else is published; read and checked here."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from papers.claim import SCALES, Claim
from wirebench.config.plugins import check_type
from wirebench.errors import UserError
from wirebench.utils.names import suggest
from wirebench.utils.parsing import toml_of

FILE = "published.toml"
REPEATS = ("turns", "seeds", "timed seeds", "counts")
ACCURACY = ("points", "% top-1")
"""Units of claims about an accuracy."""
SOURCE = ("authors", "title", "published")
TYPES = {**get_type_hints(Claim), "number": float | list[float], "about": dict, "least": dict[str, float]}


@dataclass(frozen=True)
class Published:
    """A study's published.toml.

    about    the study in a line
    finding  the result as one sentence; "" for a study that states none
    source   authors, title, and where it was published
    claims   by id
    tables   numbers that belong together, by name; each says `where` it stands and its `unit`
    records  folders of runs below results/, as patterns: whether a claim about them needs several `turns` or `seeds`,
             `timed seeds`, which are of a quiet machine, or is about `counts`, which one run tells
    excluded the source's other numbers, none of which is a claim
    """

    about: str
    source: Mapping[str, str]
    claims: Mapping[str, Claim]
    tables: Mapping[str, Mapping[str, Any]]
    records: Mapping[str, str]
    excluded: Sequence["Excluded"] = ()
    finding: str = ""


class Excluded(NamedTuple):
    """Numbers of a source that are no claims: in words, where they stand, and why they are none."""

    text: str
    where: str
    why: str


def load(folder: Path) -> Published:
    """The file of a study's folder; UserError, with the key, for what is wrong in it."""
    path = folder / FILE
    try:
        given = toml_of(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from error
    _refuse_unknown(str(path), given, ("about", "finding", "source", "claims", "tables", "records", "excluded"))
    check_type(f"{path}: about", given.get("about"), str)
    check_type(f"{path}: finding", given.get("finding", ""), str)
    source, tables = _table(path, given, "source"), _table(path, given, "tables")
    _refuse_unknown(f"{path}: source", source, SOURCE)
    for key in SOURCE:
        check_type(f"{path}: source.{key}", source.get(key), str)
    for name in tables:
        for key in ("where", "unit"):
            check_type(f"{path}: tables.{name}.{key}", _table(path, tables, name).get(key), str)
    records = _table(path, given, "records")
    for pattern, repeats in records.items():
        if repeats not in REPEATS:
            raise UserError(f"{path}: records.{pattern}: needs one of {', '.join(REPEATS)}, got {repeats!r}")
    claims, excluded = _claims(path, given.get("claims", [])), _excluded(path, given.get("excluded", []))
    judged = next((claim.id for claim in claims.values() if claim.unit in ACCURACY), None)
    if judged is not None and "seeds" not in records.values():
        raise UserError(f"{path}: claims[{judged}]: is about an accuracy, and no folder of records has seeds")
    return Published(given["about"], source, claims, tables, records, excluded, given.get("finding", ""))


def _claims(path: Path, given: Any) -> dict[str, Claim]:
    check_type(f"{path}: claims", given, list[dict])
    claims: dict[str, Claim] = {}
    for place, entry in enumerate(given):
        claim = _claim(f"{path}: claims[{entry.get('id', place)}]", entry)
        if claim.id in claims:
            raise UserError(f"{path}: claims: two have the id {claim.id!r}")
        claims[claim.id] = claim
    return claims


def _excluded(path: Path, given: Any) -> tuple[Excluded, ...]:
    check_type(f"{path}: excluded", given, list[dict])
    for place, entry in enumerate(given):
        _refuse_unknown(f"{path}: excluded[{place}]", entry, Excluded._fields)
        for key in Excluded._fields:
            check_type(f"{path}: excluded[{place}].{key}", entry.get(key), str)
    return tuple(Excluded(**entry) for entry in given)


def _claim(where: str, entry: Mapping[str, Any]) -> Claim:
    _refuse_unknown(where, entry, [each.name for each in fields(Claim)])
    for each in fields(Claim):
        needed = each.default is MISSING and each.default_factory is MISSING
        if needed or each.name in entry:
            check_type(f"{where}.{each.name}", entry.get(each.name), TYPES[each.name])
    number, tolerance = entry["number"], entry["tolerance"]
    numbers = tuple(number) if isinstance(number, list) else (number,)
    ascending = list(numbers) == sorted(numbers) or entry.get("holds") == "one of"
    if not numbers or min(numbers) <= 0 or not ascending:
        raise UserError(f"{where}.number: needs one number above 0, or both ends of a range, got {number}")
    if not 0 <= tolerance < 1:
        raise UserError(f"{where}.tolerance: lies in [0, 1), got {tolerance:g}")
    _refuse_unknown(f"{where}.least", entry.get("least", {}), SCALES)
    for name, least in entry.get("least", {}).items():
        check_type(f"{where}.least.{name}", least, float)
        if least <= 0:
            raise UserError(f"{where}.least.{name}: needs a number above 0, got {least:g}")
    return Claim(**{**entry, "number": numbers})


def _table(path: Path, given: Mapping[str, Any], key: str) -> dict[str, Any]:
    table = given.get(key, {})
    check_type(f"{path}: {key}", table, dict)
    return dict(table)


def _refuse_unknown(where: str, given: Mapping[str, Any], known: Any) -> None:
    for key in given:
        if key not in known:
            raise UserError(f"{where}: {key}: no such key; {suggest(key, list(known))}")
