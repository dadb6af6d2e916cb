"""Runs that lost a host and gained another, and runs without, as hosts.py makes them: where both end."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from papers.claim import Claim
from papers.estimate import difference
from papers.findings import Finding, of_rows
from papers.rows import Row, flat
from papers.runner import RESULTS
from papers.significance import LEAST_RUNS
from wirebench.errors import UserError
from wirebench.record import notes, recorded
from wirebench.record.notes import NotedRun
from wirebench.utils.markdown import table

FOLDER = RESULTS / "failures/worlds"
ENGINES = ("torch", "horovod")
SIDES = {False: "unbroken", True: "broken"}
CHANGES = {False: [], True: [(4, 3), (3, 4)]}
"""Changes of the number of workers, by whether the run is broken."""
HEAD = ("engine", "hosts", "seeds", "top-1 % of each", "mean", "seconds a run", "steps done again", "residual lost")


def label(engine: str, broken: bool) -> str:
    """Label of a run's folder, which ends with its seed."""
    return f"{engine}_{SIDES[broken]}"


class ComparedWorlds(NamedTuple):
    """The runs of an engine: those that were broken, and those that were not."""

    engine: str
    broken: tuple[NotedRun, ...]
    unbroken: tuple[NotedRun, ...]

    def finding(self, claim: Claim) -> Finding | None:
        """Finding on the claim about this engine; None where one side has no run."""
        ours, others = _top1(self.broken), _top1(self.unbroken)
        if not ours or not others:
            return None
        loss, seeds = difference(others, ours), min(len(ours), len(others))
        here = loss.words("{:.2f} points", "{:.2f}") if seeds >= LEAST_RUNS else f"{loss.value:.2f} points"
        here += f" ({len(ours)} and {len(others)} seeds)"
        rows = Row(SIDES[True], self.broken), Row(SIDES[False], self.unbroken)
        return of_rows(claim, here, claim.judge_seeds(loss, seeds), rows, needs="seeds")


def load(folder: Path, engine: str) -> ComparedWorlds:
    """An engine's runs below `folder`; UserError for a record that cannot be read, or of another run than its place."""
    sides: dict[bool, tuple[NotedRun, ...]] = {}
    for broken in SIDES:
        there = recorded.directly_below(folder)
        sides[broken] = tuple(run for run in there if run.composition == label(engine, broken))
        for run in sides[broken]:
            _check(run, engine, broken)
    settings = {run.folder.name: _settings(run) for runs in sides.values() for run in runs}
    notes.refuse_mixed(folder, settings)
    return ComparedWorlds(engine, sides[True], sides[False])


def changes(record: Mapping[str, Any]) -> list[tuple[int, int]]:
    """How the number of workers changed."""
    return [(each["workers_before"], each["workers"]) for each in record["worlds"] or ()]


def _check(run: NotedRun, engine: str, broken: bool) -> None:
    found = changes(run.record)
    if found != CHANGES[broken] or run.record["engine"] != engine:
        told = " and ".join(f"{before} -> {after}" for before, after in found) or "no change"
        raise UserError(f"{run.folder}: is a run on {run.record['engine']} with {told} of its world")


def _settings(run: NotedRun) -> dict[str, object]:
    """What runs have in common: all but the seed, and where they lay."""
    return {key: value for key, value in flat(run.record["config"]) if not key.startswith(("train.seed", "output."))}


def lines(all_of: Sequence[ComparedWorlds]) -> list[str]:
    """A Markdown table of both sides of each engine; nothing where there is no run."""
    rows = [
        _cells(each.engine, broken, runs)
        for each in all_of
        for broken, runs in ((False, each.unbroken), (True, each.broken))
        if runs
    ]
    return table(HEAD, rows) if rows else []


def _cells(engine: str, broken: bool, runs: Sequence[NotedRun]) -> list[str]:
    accuracies, changes = _top1(runs), [change for run in runs for change in run.record["worlds"] or ()]
    lost = [change["lost_residual"] for change in changes]
    return [
        engine,
        "4, then 3, then 4" if broken else "4",
        str(len(runs)),
        ", ".join(f"{each:.2f}" for each in accuracies),
        f"{statistics.mean(accuracies):.2f}",
        f"{statistics.mean(run.record['seconds_total'] for run in runs):.0f}",
        f"{max(change['steps_lost'] for change in changes)} at most" if changes else "-",
        "-" if not lost else "unknown" if None in lost else f"{100 * max(lost):.2g} % at most",
    ]


def _top1(runs: Sequence[NotedRun]) -> list[float]:
    return [100 * run.record["final"]["top1"] for run in runs]
