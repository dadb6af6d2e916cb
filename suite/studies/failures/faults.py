"""The trials of `wirebench chaos`: of an elastic job, and of one with checkpoints in its place."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from suite.chaos import bounds, figures, report, trials_file
from suite.chaos.bounds import Bound
from suite.chaos.faults import FAULTS
from suite.chaos.figures import UNDISTURBED
from suite.chaos.job import Setting
from suite.chaos.trials_file import Line
from suite.studies import benchmarks
from suite.studies.claim import Claim, Verdict, shown
from suite.studies.findings import Finding
from suite.studies.significance import mean_between, quantile_between

ELASTIC, PLAIN = "elastic.jsonl", "plain.jsonl"
EACH = 30
"""Faults of each kind before a bound counts as held."""
BESIDE = 5
"""Faults of each kind of the job beside, which holds no bound."""


class Trials(NamedTuple):
    """A file of them: the header, a line for each, and the rules of trust that it breaks."""

    path: Path
    header: Line
    lines: Sequence[Line]
    rules: tuple[str, ...]

    @property
    def lacking(self) -> str:
        """What is not as the claims have it, in words: the job's setting, or too few faults of a kind."""
        usual = {**Setting(elastic=self.path.name == ELASTIC)._asdict(), "kinds": list(FAULTS)}
        others = [
            f"{name} {self.header[name]}, not {value}" for name, value in usual.items() if self.header[name] != value
        ]
        if others:
            return f"another setting: {'; '.join(others)}"
        counts = [len(self.of_kind(kind)) for kind in FAULTS if kind != UNDISTURBED]
        few = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
        return f"{few} faults of each kind, not {EACH}" if min(counts) < EACH else ""

    @property
    def faults(self) -> list[Line]:
        """All trials but the undisturbed ones."""
        return [line for line in self.lines if line["kind"] != UNDISTURBED]

    def of_kind(self, kind: str) -> list[Line]:
        """The trials of a kind."""
        return [line for line in self.lines if line["kind"] == kind]

    def findings(self, claims: Mapping[str, Claim]) -> list[Finding]:
        """Of each bound its claim. One fault is enough to break what holds for all; a mean and a percentile have
        intervals, and nothing is held by few faults.
        """
        rate = figures.calm_rate(self.lines)
        found = []
        for bound in bounds.bounds_of(self.lines, self.header, rate):
            claim, between = claims[bound.id], self._between(bound.id, rate)
            verdict, here = self._judged(claim, bound, between), bound.seen
            if between:
                here += f" [{shown(between, claim.unit)}]"
            found.append(Finding(claim, here, verdict, records=(self.path,), rules=self.rules))
        return found

    def _judged(self, claim: Claim, bound: Bound, between: tuple[float, float] | None) -> Verdict:
        verdict = claim.judge_interval(bound.value, between) if between else claim.judge(bound.value)
        if verdict.good and not bound.held:  # less than its number shows
            return Verdict("not reproduced", bound.value, bound.seen)
        if self.lacking and (verdict.good or self.lacking.startswith("another")):
            return Verdict("not decidable", bound.value, self.lacking)
        return verdict

    def _between(self, bound: str, rate: float) -> tuple[float, float] | None:
        """Between which a mean or a percentile lies; None for what one fault decides, or has no spread."""
        if bound == "recovery":
            pauses = [math.inf if line["hang"] else line["pause_seconds"] for line in self.faults]
            return quantile_between(pauses, 0.95)
        if bound == "goodput" and len(self.faults) > 1:
            costs = [figures.cost(line, rate) for line in self.faults]
            low, high = mean_between(costs)
            return 1 - high / bounds.EVERY_SECONDS, 1 - low / bounds.EVERY_SECONDS
        return None

    def table(self) -> list[str]:
        """The report's lines without its bounds, which are claims here."""
        told = report.report_of(self.lines, self.header).lines
        return told[: told.index("Bounds:")]


def load(folder: Path, name: str) -> Trials | None:
    """The file, None where there is none yet; UserError for a damaged one."""
    path = folder / name
    if not path.exists():
        return None
    header, lines = trials_file.load(path)
    return Trials(path, header, lines, benchmarks.rules(path)) if lines else None
