"""What a claim of the FlexReduce paper rests on: files, and the rules of trust that they break."""

from pathlib import Path

from papers import benchmarks, trust
from papers.claim import Claim
from papers.flexreduce.measured import LAYOUTS, TRAININGS
from papers.repository import Repository
from wirebench.record import recorded
from wirebench.record.notes import NotedRun


def records(folder: Path, claim: Claim) -> tuple[Path, ...]:
    """Trainings of a claim about epochs, cells of one about latency; none where calls are counted from plans."""
    if claim.unit == "calls":
        return ()
    if claim.id.startswith("epoch_"):
        return tuple(run.folder for runs in _trainings(folder).values() for run in runs)
    files = (folder / "cells" / f"{layout}.jsonl" for layout in LAYOUTS)
    return tuple(file for file in files if file.exists())


def command(claim: Claim) -> str:
    """What makes them; "" where the study's `run` without flags does, or nothing is needed."""
    return "wirebench study flexreduce run --end-to-end --link 400mbit" if claim.id.startswith("epoch_") else ""


def rules(folder: Path, claim: Claim) -> tuple[str, ...]:
    """The names of the rules that they break."""
    if claim.id.startswith("epoch_"):
        found = [rule for runs in _trainings(folder).values() for rule in trust.rules(runs, "turns")]
    else:
        found = [each.rule for file in records(folder, claim) for each in benchmarks.broken(file, Repository(None))]
    return tuple(dict.fromkeys(found))


def _trainings(folder: Path) -> dict[Path, list[NotedRun]]:
    """By layout and collective, as the folder of the first turn is called without its number."""
    runs: dict[Path, list[NotedRun]] = {}
    for run in recorded.below(folder / TRAININGS):
        runs.setdefault(run.folder.with_name(run.composition), []).append(run)
    return runs
