"""The claims beside what was measured: points of accuracy, ratios of losses, bytes and rounds, and what is hidden."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from papers import estimate, published, trust
from papers.accuracy import rates
from papers.accuracy.curve import steps_of
from papers.accuracy.rows import MethodRuns, bytes_of, losses, runs_of
from papers.accuracy.task import Task
from papers.accuracy.times import Yardstick, mean_pace, yardstick
from papers.claim import Claim, Verdict
from papers.estimate import ratio_of_means
from papers.findings import Finding, of_rows
from papers.significance import LEAST_RUNS
from wirebench.comm.base import ring_reduce_bytes
from wirebench.compressors.common.intervals import Intervals
from wirebench.record.notes import NotedRun

PUBLISHED = published.load(Path(__file__).parent)
HIDING_GBIT = 1.0


class Judged(NamedTuple):
    """A measurement in words, and its verdict."""

    here: str
    verdict: Verdict


def findings(
    task: Task, methods: Sequence[MethodRuns], others: Sequence[MethodRuns] | None = (), by: Yardstick | None = None
) -> list[Finding]:
    """Every claim about methods of this task that have runs, with its verdict for each of its methods.

    others  runs at other learning rates (rates.py): what a loss decides depends on them; None: each rate was searched
    by      runs that give the times; None: the runs' own
    """
    known = {method.label: method for method in methods}
    by = by or yardstick(methods)
    found = []
    for claim in claims_of(task):
        for label in claim.about["methods"]:
            ours, rival = known.get(label), _rival(claim, known)
            if ours is None or not all(each in known for each in claim.about["rivals"]):
                continue
            several = label if len(claim.about["methods"]) > 1 else ""
            finding = _finding(claim, ours, rival, by, several)
            if claim.about["measure"] == "loss" and others is not None:
                rivals = [known[each] for each in claim.about["rivals"]]
                finding = replace(finding, verdict=settled(claim, finding.verdict, ours, rivals, others))
            found.append(finding)
    return found


def claims_of(task: Task) -> list[Claim]:
    """Claims about this task, or about all of its series."""
    claims = PUBLISHED.claims.values()
    return [each for each in claims if task.name == each.about.get("task") or task.series == each.about.get("series")]


def _rival(claim: Claim, known: Mapping[str, MethodRuns]) -> MethodRuns | None:
    """The rival with the least mean loss; None without any. A claim is judged when all of them have runs."""
    rivals = [known[label] for label in claim.about["rivals"] if label in known]
    return min(rivals, key=lambda each: statistics.mean(losses(each) or [float("inf")]), default=None)


def settled(
    claim: Claim, verdict: Verdict, ours: MethodRuns, rivals: Sequence[MethodRuns], others: Sequence[MethodRuns]
) -> Verdict:
    """The verdict on a loss, unless another learning rate would turn it, or none was tried: then nothing is decided.

    A better rate of a rival's could turn a claim that holds, and one of ours a claim that is missed: all seeds are
    judged once more with the losses that they would have, were they smaller by what the first one gains.
    """
    turning = {"reproduced": rivals, "not reproduced": [ours]}.get(verdict.state, [])
    doubts = [_doubt(claim, verdict, each, ours, rivals, others) for each in turning]
    if not any(doubts):
        return verdict
    return Verdict("not decidable", verdict.measured, "; ".join(filter(None, (verdict.why, *doubts))))


def _doubt(
    claim: Claim,
    verdict: Verdict,
    turning: MethodRuns,
    ours: MethodRuns,
    rivals: Sequence[MethodRuns],
    others: Sequence[MethodRuns],
) -> str:
    """Why other rates of `turning` leave a verdict open; "" where they do not."""
    best = rates.best_rate(turning, others)
    if best is None:
        return f"other rates of {turning.label} were not tried"

    def at_best(method: MethodRuns) -> list[float]:
        return [(best.share if method is turning else 1.0) * loss for loss in losses(method)]

    theirs = min(map(at_best, rivals), key=statistics.mean)
    return "" if _judged(claim, at_best(ours), theirs).verdict.state == verdict.state else best.words


def _finding(claim: Claim, ours: MethodRuns, rival: MethodRuns | None, by: Yardstick, label: str) -> Finding:
    measure = claim.about["measure"]
    those = [method for method in (ours, rival) if method is not None]
    rules = trust.rules_of(_judging(measure, those, by), "" if measure == "hidden" else "seeds")
    records = tuple(run.folder for run in runs_of(those))
    judged = JUDGES[measure](claim, ours, rival, by)
    return Finding(claim, judged.here, judged.verdict, label, records=records, rules=rules)


def _judging(measure: str, those: Sequence[MethodRuns], by: Yardstick) -> list[Sequence[NotedRun]]:
    """The runs that a verdict rests on: of a time those that were alone, where there are any."""
    alone = [by.timed[method.label] for method in those if method.label in by.timed]
    return [alone] if measure == "hidden" and alone else [method.runs for method in those]


def _loss(claim: Claim, ours: MethodRuns, rival: MethodRuns | None, by: Yardstick) -> Judged:
    """The ratio of mean final losses, with Fieller's interval."""
    mine, theirs = losses(ours), losses(rival)
    if rival is None or not mine or not theirs:
        return _without(claim, ours, rival)
    judged = _judged(claim, mine, theirs)
    beside = f" of {rival.label}, the better of {len(claim.about['rivals'])}" if len(claim.about["rivals"]) > 1 else ""
    few = f" ({len(mine)} and {len(theirs)} seeds)" if min(len(mine), len(theirs)) < LEAST_RUNS else ""
    return Judged(f"{judged.here}{beside}{few}", judged.verdict)


def _judged(claim: Claim, mine: Sequence[float], theirs: Sequence[float]) -> Judged:
    """Judge the ratio of losses with its interval, which takes three seeds of both."""
    ratio, seeds = ratio_of_means(mine, theirs), min(len(mine), len(theirs))
    here = ratio.words("{:.3f}x", "{:.3f}") if seeds >= LEAST_RUNS else f"{ratio.value:.3f}x"
    return Judged(here, claim.judge_seeds(ratio, seeds))


def _points(claim: Claim, ours: MethodRuns, rival: MethodRuns | None, by: Yardstick) -> Judged:
    """The points of accuracy below the rival."""
    return Judged(*judge_points(claim, ours, rival)) if rival else _without(claim, ours, rival)


def judge_points(claim: Claim, ours: MethodRuns, rival: MethodRuns) -> tuple[str, Verdict]:
    """Judge the points above or below the rival: the interval of Welch's test over seeds has to confirm the claim."""
    mine, theirs = ours.judged, rival.judged
    if not mine or not theirs:
        diverged = [method.title for method in (ours, rival) if method.ends]
        return "-", Verdict("not decidable", why=", ".join(diverged)) if diverged else claim.judge(None)
    loss, seeds = estimate.difference(theirs, mine), min(len(mine), len(theirs))
    here, (low, high) = f"{abs(loss.value):.2f} points {'below' if loss.value >= 0 else 'above'}", loss.ends
    interval = f" [{low:.2f} to {high:.2f}]" if seeds >= LEAST_RUNS else ""
    return f"{here}{interval} ({len(mine)} and {len(theirs)} seeds)", claim.judge_seeds(loss, seeds)


def points_below(claim: Claim, ours: MethodRuns, rival: MethodRuns, about: str, command: str = "") -> Finding:
    """The finding on a claim about points of accuracy."""
    judged = judge_points(claim, ours, rival)
    return of_rows(claim, *judged, (ours, rival), about, needs="seeds", command=command)


def _fewer(claim: Claim, ours: MethodRuns, rival: MethodRuns | None, by: Yardstick) -> Judged:
    """How many times fewer bytes in a whole run; a count, which needs no test."""
    mine, theirs = bytes_of(ours), bytes_of(rival)
    if not mine or not theirs:
        return _without(claim, ours, rival)
    return Judged(f"{theirs / mine:.2f}x", claim.judge(theirs / mine))


def _bytes(claim: Claim, ours: MethodRuns, rival: MethodRuns | None, by: Yardstick) -> Judged:
    """Judge the bytes as `_fewer` does, and name the ratio of the losses."""
    judged = _fewer(claim, ours, rival, by)
    both = losses(ours), losses(rival)
    at = f" at {statistics.mean(both[0]) / statistics.mean(both[1]):.3f}x the loss" if all(both) else ""
    return judged._replace(here=f"{judged.here}{at}") if judged.verdict.measured else judged


def _zero_one_bytes(claim: Claim, ours: MethodRuns, rival: MethodRuns | None, by: Yardstick) -> Judged:
    """The bytes of both runs, beside what their constants and the authors' give."""
    mine, theirs = bytes_of(ours), bytes_of(rival)
    expected = expected_bytes(ours, rival) if rival else None
    if not mine or not theirs or not expected:
        return _without(claim, ours, rival)
    computed = f"{expected:.2f}x, by the authors' in {AUTHORS_STEPS:,} steps {authors_bytes():.2f}x"
    return Judged(f"{theirs / mine:.2f}x; by its constants {computed}", claim.judge(theirs / mine))


def _rounds(claim: Claim, ours: MethodRuns, rival: MethodRuns | None, by: Yardstick) -> Judged:
    """The share of the rival's rounds that a run does without; a count."""
    expected = expected_fewer_rounds(ours, rival) if rival else None
    if rival is None or ours.ends or rival.ends or not expected:
        return _without(claim, ours, rival)
    mine, theirs = (statistics.mean(run.note["rounds"] for run in each.runs) for each in (ours, rival))
    share, authors = 1 - mine / theirs if theirs else 0.0, authors_fewer_rounds()
    here = f"{100 * share:.1f} % ({mine:.0f} of {theirs:.0f})"
    computed = f"{100 * expected:.1f} %, by the authors' in {AUTHORS_STEPS:,} steps {100 * authors:.1f} %"
    return Judged(f"{here}; by its constants {computed}", claim.judge(share))


def _hidden(claim: Claim, ours: MethodRuns, rival: MethodRuns | None, by: Yardstick) -> Judged:
    """The share of the exchange beside which local steps go on, by the cost model: no measurement, so no verdict."""
    pace = mean_pace(ours, HIDING_GBIT, by)
    share = pace.hidden / (pace.exposed + pace.hidden) if pace and pace.exposed + pace.hidden else None
    return Judged("-" if share is None else f"{100 * share:.1f} %", claim.judge(None))


def _without(claim: Claim, ours: MethodRuns, rival: MethodRuns | None) -> Judged:
    """Verdict on a claim whose runs give no number, because one diverged or a record lacks it."""
    ends = [method.title for method in (ours, rival) if method is not None and method.ends]
    return Judged("-", Verdict("not decidable", why=", ".join(ends) or "the records do not have the numbers"))


JUDGES: dict[str, Callable[[Claim, MethodRuns, MethodRuns | None, Yardstick], Judged]] = {
    "points": _points, "fewer": _fewer, "loss": _loss, "bytes": _bytes,
    "zero_one_bytes": _zero_one_bytes, "rounds": _rounds, "hidden": _hidden,
}  # fmt: skip
"""Judges by the claim's `measure`."""


AUTHORS_STEPS, AUTHORS_DENSE = 152_000, 23_000
"""Steps of BERT-Large's first phase, and how many of these 1-bit Adam makes before it freezes the variance."""
AUTHORS = Intervals(kappa=16, freeze_step=12_500, double_every=32_678, longest=16)
"""Intervals of 0/1 Adam there: the variance is updated until the learning rate has risen."""
AUTHORS_BITS = 16
"""Bits of a dense step's value: they train in half precision."""
_CONSTANTS = Intervals._fields


class Rounds(NamedTuple):
    """Steps of a run that exchange: dense ones, and those that sum one bit."""

    dense: int
    onebit: int

    @property
    def all(self) -> int:
        """Both."""
        return self.dense + self.onebit


@lru_cache
def rounds_of(intervals: Intervals, steps: int) -> Rounds:
    """Return the rounds of a run of `steps` steps."""
    dense = intervals.dense_steps(steps - 1)
    ends = sum(begin + length - 1 == step for step in range(steps) for begin, length in (intervals.around(step),))
    return Rounds(dense, ends - dense)


def authors_bytes() -> float:
    """How many times as much 1-bit Adam sends as 0/1 Adam in the authors' setting, by the bits of a value."""
    mine = rounds_of(AUTHORS, AUTHORS_STEPS)
    theirs = AUTHORS_DENSE * AUTHORS_BITS + AUTHORS_STEPS - AUTHORS_DENSE
    return theirs / (mine.dense * AUTHORS_BITS + mine.onebit)


def authors_fewer_rounds() -> float:
    """Share of 1-bit Adam's rounds, one a step, that 0/1 Adam does without in the authors' setting."""
    return 1 - rounds_of(AUTHORS, AUTHORS_STEPS).all / AUTHORS_STEPS


def expected_bytes(ours: MethodRuns, rival: MethodRuns) -> float | None:
    """How many times as much the rival's run has to send by the constants of both; None where a record lacks them."""
    mine, theirs = _bytes_by_constants(ours.runs[0]), _bytes_by_constants(rival.runs[0])
    return theirs / mine if mine and theirs else None


def expected_fewer_rounds(ours: MethodRuns, rival: MethodRuns) -> float | None:
    """Share of the rival's rounds that this run's constants do without; None where a record lacks them."""
    mine, theirs = _rounds_by_constants(ours.runs[0]), _rounds_by_constants(rival.runs[0])
    return 1 - mine.all / theirs.all if mine and theirs else None


def _rounds_by_constants(run: NotedRun) -> Rounds | None:
    constants = [run.has("config", "compressor", name) for name in _CONSTANTS]
    if None in constants or not steps_of(run):
        return None
    return rounds_of(Intervals(*constants), steps_of(run))


def _bytes_by_constants(run: NotedRun) -> float | None:
    """Bytes of a run, by its own constants."""
    found, numel, size = _rounds_by_constants(run), run.record["parameters"], run.record["world_size"]
    if found is None:
        return None
    # A sum of bits, too, sends as much as a ring: the others' shares, then the sum of a rank's own to all others.
    return found.dense * ring_reduce_bytes(4 * numel, size) + found.onebit * ring_reduce_bytes(numel // 8, size)
