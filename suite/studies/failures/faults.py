"""The trials of `wirebench chaos`: of an elastic job, and of one with checkpoints in its place."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from suite.chaos import bounds, figures, report, trials_file
from suite.chaos.figures import UNDISTURBED
from suite.chaos.trials_file import Line
from suite.studies import benchmarks
from suite.studies.claim import Claim, Verdict
from suite.studies.findings import Finding

ELASTIC, PLAIN = "elastic.jsonl", "plain.jsonl"
EACH = 30
"""Faults of each kind before a bound counts as held."""


class Trials(NamedTuple):
    """A file of them: the header, a line for each, and the rules of trust that it breaks."""

    path: Path
    header: Line
    lines: Sequence[Line]
    rules: tuple[str, ...]

    @property
    def few(self) -> str:
        """The kinds of which there are too few, in words; "" where there is none."""
        counts = {kind: sum(line["kind"] == kind for line in self.lines) for kind in self.header["kinds"]}
        least = min(count for kind, count in counts.items() if kind != UNDISTURBED)
        return f"{least} to {max(counts.values())} faults of each kind, not {EACH}" if least < EACH else ""

    def of_kind(self, kind: str) -> list[Line]:
        """The trials of a kind."""
        return [line for line in self.lines if line["kind"] == kind]

    def findings(self, claims: Mapping[str, Claim]) -> list[Finding]:
        """Of each bound its claim; a bound is held by all faults, so by few of them it is not decidable."""
        found = []
        for bound in bounds.bounds_of(self.lines, self.header, figures.calm_rate(self.lines)):
            verdict = claims[bound.id].judge(bound.value)
            if verdict.good and self.few:
                verdict = Verdict("not decidable", bound.value, self.few)
            found.append(Finding(claims[bound.id], bound.seen, verdict, records=(self.path,), rules=self.rules))
        return found

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
