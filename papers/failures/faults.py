"""The trials of `wirebench chaos`: of an elastic job, and of one with checkpoints in its place."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from papers import benchmarks
from papers.claim import Claim, Verdict, shown
from papers.estimate import Estimate, exact, mean, most_of_none, quantile
from papers.findings import Finding
from wirebench.chaos import bounds, campaign, figures, report, trials_file
from wirebench.chaos.bounds import Bound
from wirebench.chaos.faults import FAULTS
from wirebench.chaos.figures import UNDISTURBED
from wirebench.chaos.job import JobSetting
from wirebench.chaos.trials_file import Line

ELASTIC, PLAIN = "elastic.jsonl", "plain.jsonl"
MINUTELY = {
    "dense": ("compressor.name=none",),
    "diloco": ("compressor.name=none", "scheduler.name=outer", "scheduler.every=32"),
    "sparseloco": (
        "compressor.name=chunk_topk", "scheduler.name=outer", "scheduler.every=32", "scheduler.rate=1",
        "scheduler.momentum=0", "scheduler.nesterov=false",
    ),
}  # fmt: skip
"""Elastic jobs of which a rank is killed every 60 s, by their method: what is laid over the job's settings."""
FOLDER = "minutely"
EACH = 30
"""Faults of each kind before a bound counts as held."""
BESIDE = 5
"""Faults of each kind of the job beside, which holds no bound."""


class FaultTrials(NamedTuple):
    """A file of them: the header, a line for each, and the rules of trust that it breaks."""

    path: Path
    header: Line
    lines: Sequence[Line]
    rules: tuple[str, ...]

    @property
    def lacking(self) -> str:
        """What is not as the claims have it, in words: the job's setting, or too few faults of one kind."""
        usual = {**JobSetting(elastic=self.path.name == ELASTIC)._asdict(), "kinds": list(FAULTS)}
        had = {**campaign.of(self.header).setting._asdict(), "kinds": self.header["kinds"]}
        others = [f"{name} {had[name]}, not {value}" for name, value in usual.items() if had[name] != value]
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
        """The trials of one kind of fault."""
        return [line for line in self.lines if line["kind"] == kind]

    def findings(self, claims: Mapping[str, Claim]) -> list[Finding]:
        """The findings on the claim of each bound.

        One fault is enough to break a bound on all faults. A mean and a percentile have intervals. Few faults confirm
        no bound.
        """
        rate = figures.calm_rate(self.lines)
        found = []
        for bound in bounds.bounds_of(self.lines, self.header, rate):
            claim, measured = claims[bound.id], self._measured(bound, rate)
            here = bound.seen
            if measured.ends != (measured.value, measured.value):
                here += f" [{shown(measured.ends, claim.unit)}]"
            elif bound.id in NEVER and measured.value >= 1:
                most = most_of_none(len(NEVER[bound.id](self)))
                here += f"; at 95 % it fails in at most {100 * most:.2g} % of all cases"
            verdict = self._judged(claim, bound, measured)
            found.append(Finding(claim, here, verdict, records=(self.path,), rules=self.rules))
        return found

    def _judged(self, claim: Claim, bound: Bound, measured: Estimate) -> Verdict:
        verdict = claim.judge(measured)
        if verdict.good and not bound.held:  # less than its number shows
            return Verdict("not reproduced", bound.value, bound.seen)
        if self.lacking and (verdict.good or self.lacking.startswith("another")):
            return Verdict("not decidable", bound.value, self.lacking)
        return verdict

    def _measured(self, bound: Bound, rate: float) -> Estimate:
        """A mean and a percentile with their intervals; exact is what one fault decides."""
        if bound.id == "recovery":
            pauses = [math.inf if line["hang"] else line["pause_seconds"] for line in self.faults]
            return quantile(pauses, 0.95)
        if bound.id == "goodput" and len(self.faults) > 1:
            costs = [figures.cost(line, rate) for line in self.faults]
            return Estimate(bound.value, mean(costs).mapped(lambda cost: 1 - cost / bounds.EVERY_SECONDS).between)
        return exact(bound.value)

    def goodput(self, claim: Claim) -> Finding:
        """The finding on the goodput of a job of MINUTELY, which is measured and not extrapolated."""
        rate, method = figures.calm_rate(self.lines), self.path.parent.name
        value = figures.goodput(self.lines, rate)
        costs = [figures.cost(line, rate) for line in self.lines]
        every = sum(line["seconds"] for line in self.lines) / len(self.lines)
        measured = Estimate(value, mean(costs).mapped(lambda cost: 1 - cost / every).between)
        here = f"{100 * value:.1f} % [{shown(measured.ends, claim.unit)}], a rank killed every {every:.0f} s"
        hangs = sum(line["hang"] for line in self.lines)
        verdict = claim.judge(measured)
        if hangs:
            verdict = Verdict("not reproduced", value, f"{hangs} trials hang")
        elif self.lost_twice:
            verdict = Verdict("not reproduced", value, f"{self.lost_twice} kills lost steps a second time")
        elif verdict.good and len(self.lines) < EACH:
            verdict = Verdict("not decidable", value, f"{len(self.lines)} kills, not {EACH}")
        return Finding(claim, here, verdict, about=method, records=(self.path,), rules=self.rules)

    @property
    def lost_twice(self) -> int:
        """Faults that threw the job back behind where the fault before them met it: some steps were lost again."""
        rate = figures.calm_rate(self.lines)

        def after(line: Line) -> float:  # images from the fault to the trial's end
            return float(line["images"] - rate * line["wait_seconds"])

        return sum(
            two["images_redone"] > after(one) + rate * two["wait_seconds"]
            for one, two in pairwise(self.lines)
            if not one["hang"]
        )

    def table(self) -> list[str]:
        """The report's lines without its bounds, which are claims here."""
        told = report.report_of(self.lines, self.header).lines
        return told[: told.index("Bounds:")]


NEVER: Mapping[str, Callable[[FaultTrials], Sequence[Line]]] = {
    "hangs": lambda trials: trials.lines,
    "named": lambda trials: [line for line in trials.faults if line["due_to_name"]],
    "residual": lambda trials: trials.faults,
}
"""Bounds that one trial breaks: the trials in which the event did not happen, from which its largest rate follows."""


def load(folder: Path, name: str) -> FaultTrials | None:
    """The file, or None if it does not exist; UserError for a damaged one."""
    path = folder / name
    if not path.exists():
        return None
    header, lines = trials_file.load(path)
    return FaultTrials(path, header, lines, benchmarks.rules(path)) if lines else None
