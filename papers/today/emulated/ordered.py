"""The planner's order of the methods beside the measured one: table.md of a network, with Kendall's tau of the two.

The planner was asked before the runs (predicted.py). It knew the trace, the links' rate, how long compressors work
on this machine (rates.jsonl beside the runs) and what was fitted to other runs on such a machine
(results/prediction). Nothing that was timed in the runs is used.
"""

import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from scipy.stats import kendalltau

from papers import trust
from papers.claim import Verdict
from papers.estimate import mean
from papers.findings import Finding, claims_table, with_unrun
from papers.page import Page
from papers.prediction import signed
from papers.prediction.signed import Signed
from papers.rows import NEEDS, Row, by_label, cluster, size
from papers.runner import ROOT
from papers.speed.waiting import ms, setting_of, step_seconds
from papers.today.emulated.order import METHODS
from papers.today.emulated.speed import claims_of
from wirebench.errors import UserError
from wirebench.planner.ranges import Between
from wirebench.planner.resimulated import RATES
from wirebench.record import notes, recorded
from wirebench.record.notes import NotedRun, commits
from wirebench.record.rules import moment
from wirebench.simulation.compress_rates import Rates
from wirebench.utils.markdown import table

HEAD = ("planner's place", "method", "predicted ms", "range", "turns", "ms of a step [least to most of the turns]",
        "error", "place", "compressing ms", "waiting for exchanges ms", "bytes of a step")  # fmt: skip
LEAST = 3
"""Methods that make an order."""


class Placed(NamedTuple):
    """A method's row, the seconds of its step by the planner, their range, and the mean step of each turn."""

    row: Row
    predicted: float
    between: Between
    turns: dict[str, float]

    @property
    def expected(self) -> float:
        """Expected seconds of the step, by which the planner ranks."""
        return self.between.expected(self.predicted)

    @property
    def measured(self) -> float:
        """The median of the turns."""
        return statistics.median(self.turns.values())


def load(folder: Path) -> list[Placed]:
    """The methods in the planner's order; empty where there is no run. A method that was not predicted has no place.

    UserError for runs of several settings or machines, and for what is in another order than rates, prediction, runs.
    """
    runs, before = recorded.noted(folder, NEEDS), signed.load(folder)
    if not runs:
        return []
    if before is None:
        raise UserError(f"{folder}: has runs and no {signed.FILE}, which is written before them")
    notes.refuse_mixed(folder, {run.folder.name: setting_of(run) for run in runs})
    _check_times(folder, before, runs)
    rows = [Row(label, those) for label, those in by_label(runs).items()]
    placed = [_placed(row, before.steps[row.label]) for row in rows if row.label in before.steps and step_seconds(row)]
    return sorted(placed, key=lambda each: each.expected)


def _check_times(folder: Path, before: Signed, runs: Sequence[NotedRun]) -> None:
    """UserError for rates that are younger than the predictions, or a run that is older."""
    signed_at, rates = moment(before.utc), folder / RATES
    measured = moment(Rates(rates).utc) if rates.is_file() else None
    began = min((at for run in runs if (at := moment(run.has("environment", "utc")))), default=None)
    if signed_at and measured and measured > signed_at:
        raise UserError(f"{rates}: is of {measured}, and {signed.FILE}, which was made of it, of {signed_at}")
    if signed_at and began and began < signed_at:
        raise UserError(f"{folder}: has a run of {began}, and {signed.FILE}, which comes before all, of {signed_at}")


def _placed(row: Row, step: Mapping[str, float]) -> Placed:
    return Placed(row, step["seconds"], Between(step["low"], step["high"]), step_seconds(row))


def page(folder: Path) -> Page:
    """Table and verdict."""
    placed = load(folder)
    return Page(folder, document(placed, with_unrun(findings(folder, placed), claims_of(folder.name))))


def findings(folder: Path, placed: Sequence[Placed]) -> list[Finding]:
    """Kendall's tau of the planner's order and each turn's; their mean is judged, where all have a place."""
    [claim] = claims_of(folder.name)
    unplaced = unplaced_among(placed)
    if len(placed) < LEAST:
        return []
    turns, of_medians = _by_turn(placed), order([each.measured for each in placed])
    tau = mean(turns or [of_medians])
    here = f"{tau.words('{:.2f}')} of {len(placed)} methods; of median steps {of_medians:.2f}"
    records = tuple(run.folder for each in placed for run in each.row.runs)
    rules = trust.rules_of((each.row.runs for each in placed), "turns")
    verdict = claim.judge(tau)
    if unplaced:
        verdict = Verdict("not decidable", tau.value, f"without {', '.join(unplaced)}")
    return [Finding(claim, here, verdict, records=records, rules=rules)]


def unplaced_among(placed: Sequence[Placed]) -> list[str]:
    """The methods that were not predicted, or have no counted step."""
    return [label for label in METHODS if label not in {each.row.label for each in placed}]


def order(seconds: Sequence[float]) -> float:
    """Kendall's tau of places, the first one first, and these seconds."""
    return float(kendalltau(range(len(seconds)), seconds).statistic)


def _by_turn(placed: Sequence[Placed]) -> list[float]:
    """Kendall's tau of each turn that all methods made."""
    return [order([each.turns[turn] for each in placed]) for turn in _common(placed)]


def _common(placed: Sequence[Placed]) -> list[str]:
    return sorted(set.intersection(*(set(each.turns) for each in placed)))


def decided(placed: Sequence[Placed]) -> list[str]:
    """How many pairs of methods all turns put in one order, and how many of these the planner puts in the same."""
    turns, pairs = _common(placed), list(combinations(placed, 2))
    if len(turns) < 2 or not pairs:
        return []
    later = [[second.turns[turn] > first.turns[turn] for turn in turns] for first, second in pairs]
    alike, right = sum(len(set(each)) == 1 for each in later), sum(all(each) for each in later)
    tau = f", a tau of {2 * right / alike - 1:.2f}" if alike else ""
    return [
        f"Of the {len(pairs)} pairs of methods {alike} are in the same order in all {len(turns)} turns; the planner "
        f"has {right} of these the right way round{tau}.",
        "",
    ]


def document(placed: Sequence[Placed], found: Sequence[Finding]) -> str:
    """The whole file."""
    runs = [run for each in placed for run in each.row.runs]
    rows, run, unplaced = [each.row for each in placed], runs[0], unplaced_among(placed)
    ranked = sorted(placed, key=lambda each: each.measured)
    lines = [
        f"# The methods of today: the planner's order on {cluster(rows)}",
        "",
        f"All hosts are played by one {run.machine}; {commits(runs)}. Links and trace are as much slower than life as "
        "the title says; what workers compute themselves (compressing, sums, updates) is not, so that it counts as on "
        "a device as many times as fast. The planner ranks by the step that is to be expected, (least + 4 x predicted "
        f"+ most) / 6, and was asked before the runs: {_asked(run)} It leaves out loading and the update, so that an "
        "error is over the measured step with them. Counted steps are whole rounds of local steps, and means are of "
        f"them all. Made by `wirebench study today run`, which runs `{run.note['launch']}` and the like.",
        "",
        *table(HEAD, [_cells(place, each, ranked.index(each) + 1) for place, each in enumerate(placed, 1)]),
        *decided(placed),
        *([f"Without a place, for want of a prediction or of a step: {', '.join(unplaced)}.", ""] if unplaced else []),
        *trust.note({row.label: row.runs for row in rows}, "turns"),
        *claims_table(found),
    ]
    return "\n".join(lines)


def _asked(run: NotedRun) -> str:
    """When, by which commit, and of what."""
    before = signed.load(run.folder.parent)
    assert before is not None
    rates, theirs = run.folder.parent / RATES, recorded.machine_of((ROOT / before.fitted_to).parent)
    timed = f"how long compressors work ([{RATES}]({RATES}))" if rates.is_file() else "the shipped rates"
    others = {theirs, notes.machine(Rates(rates).cpu) if rates.is_file() else run.machine} - {run.machine, None}
    elsewhere = (
        f" Not all of that is of this machine: {', '.join(map(str, sorted(map(str, others))))}." if others else ""
    )
    return (
        f"at {before.utc}, by commit {before.commit[:10]}, from the trace, the links' rate, the constants of "
        f"{before.fitted_to}, and {timed}.{elsewhere}"
    )


def _cells(place: int, each: Placed, measured: int) -> list[str]:
    low, high = min(each.turns.values()), max(each.turns.values())
    row = each.row
    return [
        str(place),
        row.title,
        ms(each.predicted),
        f"{ms(each.between.low)}-{ms(each.between.high)}",
        str(len(each.turns)),
        f"{ms(each.measured)} [{ms(low)} - {ms(high)}]",
        f"{100 * (each.predicted / each.measured - 1):+.1f} %",
        str(measured),
        ms(row.median("phases", "compress")),
        ms(row.median("phases", "exchange_exposed")),
        size(row.median("bytes_per_step", "wire_mean")),
    ]
