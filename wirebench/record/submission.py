"""Runs from other machines, as they come into results/: named, noted with a claim, and held to the rules."""

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.errors import UserError
from wirebench.record import recorded
from wirebench.record.notes import NotedRun
from wirebench.record.rules import ENOUGH, UNTIMED, Broken, Knows, broken, copies

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

    claim   of CLAIMS, of the runs of folders; None: accuracy where any composition's runs have several seeds,
            else speed
    series  folder of the runs; "": the first one's config and when it began, and of a file's runs the one they have
    Raises UserError for what is no run, or one that was interrupted, and for two of one name.
    """
    if series:
        recorded.check_below("--series", series)
    known = [Submitted(path, run) for path in paths if path.suffix == ".jsonl" for run in recorded.unpacked(path)]
    made = [Submitted(path, _run(path)) for path in paths if path.suffix != ".jsonl"]
    if claim and not made:
        raise UserError("--claim: the runs of a file keep the claim that they came with")
    for each in (*known, *made):
        if each.run.record["status"] == "interrupted":
            raise UserError(f"{each.source}: the run was interrupted; resume it, and submit it when it has ended")
    for source, run in known:
        if claim_of(run) is None:
            raise UserError(f"{source}: {run.folder}: its note has no claim; was it made by submit?")
        if not (run.composition and run.turn.isdecimal()):
            raise UserError(f"{source}: {run.folder}: needs a name that ends in a number, such as topk-0")
    if series:
        known = [Submitted(source, run._replace(folder=Path(series, run.folder.name))) for source, run in known]
    named = _named(made, claim, series)
    # The runs of folders have one name where they have one seed, which is a rule of their claim.
    names = [*(run.folder for _, run in known), *{run.folder for _, run in named}]
    if twice := sorted(str(name) for name in set(names) if names.count(name) > 1):
        raise UserError(f"{twice[0]}: two of these runs have this name; submit them one by one, with --series")
    return [*known, *named]


def claim_of(run: NotedRun) -> str | None:
    """The claim that a run came with; None for one that was not submitted."""
    claim = run.note.get("claim")
    return claim if isinstance(claim, str) and claim in CLAIMS else None


def breaches(submitted: Sequence[Submitted]) -> list[tuple[Path, Broken]]:
    """The rules that runs break by themselves, as copies of each other, or as too few of a composition."""
    found = [(each.source, mistake) for each in submitted for mistake in broken_by(each.run)]
    found += copies((each.source / each.run.folder.name, each.run.record) for each in submitted)
    return found + broken_together([run for _, run in submitted])


def broken_by(run: NotedRun, knows: Knows | None = None) -> list[Broken]:
    """The rules that a run with a claim breaks by itself, as rules.broken asks them."""
    untimed = CLAIMS[run.note["claim"]] in UNTIMED
    return [each for each in broken(run.record, knows) if not (untimed and each.rule.startswith("load"))]


def broken_together(runs: Sequence[NotedRun]) -> list[tuple[Path, Broken]]:
    """The rules that runs with claims break as repeats of a composition, by the composition's path."""
    rows: dict[tuple[Path, str, str], list[NotedRun]] = {}
    for run in runs:
        rows.setdefault((run.folder.parent, run.composition, run.note["claim"]), []).append(run)
    return [
        (folder / composition, mistake)
        for (folder, composition, claim), repeats in rows.items()
        for mistake in (*ENOUGH[CLAIMS[claim]](repeats), *_unlike(claim, repeats))
    ]


def _unlike(claim: str, runs: Sequence[NotedRun]) -> Iterator[Broken]:
    """What runs of a composition may not differ in for a speed, and may not have for an accuracy."""
    if claim == "speed":
        for rule, found in (("machines", {run.machine for run in runs}), ("commit", {run.commit for run in runs})):
            if len(found) > 1:
                yield Broken(rule, f"a claim about speed needs one, and these are of {' and '.join(sorted(found))}")
    if claim == "accuracy":
        for run in runs:
            if not run.is_whole:
                yield Broken("seeds", f"{run.folder.name} has train.max_steps, and its accuracy says nothing")


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
