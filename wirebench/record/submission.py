"""Runs from other machines, as they come into results/: named, noted with a claim, and held to the rules."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.errors import UserError
from wirebench.record import recorded
from wirebench.record.notes import NotedRun
from wirebench.record.rules import ENOUGH, UNTIMED, Broken, broken, copies

CLAIMS = {"speed": "turns", "accuracy": "seeds", "counts": "counts"}
"""What a claim about it needs several of (rules.ENOUGH)."""
FREE = (
    ("name",), ("output",), ("expected",), ("asked",), ("train", "seed"), ("train", "resume"), ("train", "keep"),
    ("train", "checkpoint_every_steps"), ("train", "checkpoint_every_epochs"), ("data", "root"), ("data", "download"),
)  # fmt: skip
"""What the runs of a composition may differ in."""


class Submitted(NamedTuple):
    """A run with the path that the user gave it by, and its path to be, below a folder of results."""

    source: Path
    run: NotedRun


def gathered(paths: Sequence[Path], claim: str | None = None, series: str = "") -> list[Submitted]:
    """The runs of folders and of files that `packed` wrote; a file's runs keep their names and their claim.

    claim   of CLAIMS; None: accuracy where the runs of any composition have several seeds, else speed
    series  folder of the runs; "": the first one's config and when it began
    Raises UserError for what is no run, or one that was interrupted.
    """
    known = [Submitted(path, run) for path in paths if path.suffix == ".jsonl" for run in recorded.unpacked(path)]
    made = [Submitted(path, _run(path)) for path in paths if path.suffix != ".jsonl"]
    for each in (*known, *made):
        if each.run.record["status"] == "interrupted":
            raise UserError(f"{each.source}: the run was interrupted; resume it, and submit it when it has ended")
        if each in known and each.run.note.get("claim") not in CLAIMS:
            raise UserError(f"{each.source}: {each.run.folder}: its note has no claim; was it made by submit?")
    return [*known, *_named(made, claim, series)]


def breaches(submitted: Sequence[Submitted]) -> list[tuple[Path, Broken]]:
    """The rules that runs break by themselves, as copies of each other, or as too few of a composition."""
    found = [
        (each.source, mistake)
        for each in submitted
        for mistake in broken(each.run.record)
        if not (mistake.rule.startswith("load") and CLAIMS[each.run.note["claim"]] in UNTIMED)
    ]
    found += copies((each.source / each.run.folder.name, each.run.record) for each in submitted)
    rows: dict[tuple[Path, str, str], list[NotedRun]] = {}
    for _, run in submitted:
        rows.setdefault((run.folder.parent, run.composition, run.note["claim"]), []).append(run)
    for (folder, composition, claim), runs in rows.items():
        found += [(folder / composition, mistake) for mistake in ENOUGH[CLAIMS[claim]](runs)]
    return found


def _run(path: Path) -> NotedRun:
    run = recorded.at(path.parent if path.name == "record.json" else path)
    if run is None:
        recorded.read(path)  # says what there is in its place
        raise UserError(f"{path}: is no run")
    return run


def _named(made: Sequence[Submitted], claim: str | None, series: str) -> list[Submitted]:
    """Each as SERIES/COMPOSITION-N, N its seed where seeds count and its turn else, with its note."""
    rows: dict[str, list[Submitted]] = {}
    for each in sorted(made, key=lambda each: str(each.run.has("environment", "utc"))):
        rows.setdefault(_composition(each.run), []).append(each)
    folder = Path(series or _series(next(iter(rows.values()))[0].run)) if rows else Path()
    seeds = {label: [each.run.has("config", "train", "seed") for each in row] for label, row in rows.items()}
    meant = claim or ("accuracy" if any(len(set(those)) > 1 for those in seeds.values()) else "speed")
    named: list[Submitted] = []
    labels: set[str] = set()
    for composition, row in rows.items():
        label = _label(row[0].run, labels)
        numbers = seeds[composition] if meant == "accuracy" else range(len(row))
        for each, number in zip(row, numbers, strict=True):
            note = {"label": label, "claim": meant}
            run = NotedRun(folder / f"{label}-{number}", note, each.run.record)
            named.append(Submitted(each.source, run))
    return named


def _composition(run: NotedRun) -> str:
    """All of its config that tells compositions apart, with the number of workers."""
    config: dict[str, Any] = json.loads(json.dumps(run.record["config"]))
    for *above, last in FREE:
        table = config
        for key in above:
            table = table.get(key, {})
        table.pop(last, None)
    return json.dumps([config, run.record["world_size"]], sort_keys=True)


def _label(run: NotedRun, taken: set[str]) -> str:
    """A name of the composition that no other one has."""
    parts = [run.has("config", section, "name") for section in ("compressor", "scheduler", "collective")]
    name = "_".join(str(part) for part in parts if part not in (None, "", "native")).replace("/", "_")
    names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(2)))
    label = next(each for each in names if each not in taken)
    taken.add(label)
    return label


def _series(run: NotedRun) -> str:
    began = "".join(letter for letter in str(run.has("environment", "utc"))[:19] if letter not in "-:")
    return f"{run.has('config', 'name')}-{began}"
