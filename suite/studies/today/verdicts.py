"""The papers' headlines beside what was measured: a ratio of losses, a ratio of bytes, or a share that is hidden."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from suite.studies import published, trust
from suite.studies.claim import Claim, Verdict
from suite.studies.convergence.network import quietest
from suite.studies.convergence.rows import Method
from suite.studies.findings import Finding
from suite.studies.significance import LEAST_RUNS, difference_between
from suite.studies.today.table import bytes_of, losses, mean_pace, runs_of

PUBLISHED = published.load(Path(__file__).parent)
HIDING_GBIT = 1.0

Judged = tuple[str, Verdict]


def findings(task: str, methods: Sequence[Method]) -> list[Finding]:
    """Every claim about methods of this task that have runs, with its verdict."""
    known = {method.label: method for method in methods}
    passes = quietest(runs_of(methods))
    found = []
    for claim in claims_of(task):
        ours, rival = known.get(claim.about["method"]), known.get(claim.about["rival"])
        if ours is None or (claim.about["rival"] and rival is None):
            continue
        here, verdict = JUDGES[claim.about["measure"]](claim, ours, rival, passes)
        those = [method for method in (ours, rival) if method is not None]
        rules = trust.rules_of([method.runs for method in those], "seeds")
        records = tuple(run.folder for run in runs_of(those))
        found.append(Finding(claim, here, verdict, records=records, rules=rules))
    return found


def claims_of(task: str) -> list[Claim]:
    """Those about this task."""
    return [claim for claim in PUBLISHED.claims.values() if claim.about["task"] == task]


def _loss(claim: Claim, ours: Method, rival: Method | None, passes: float) -> Judged:
    """The ratio of mean final losses, with the interval that Welch's test leaves."""
    mine, theirs = losses(ours), losses(rival) if rival else []
    if not mine or not theirs:
        return _without(claim, ours, rival)
    base = statistics.mean(theirs)
    ratio = statistics.mean(mine) / base
    if min(len(mine), len(theirs)) < LEAST_RUNS:
        return f"{ratio:.3f}x ({len(mine)} and {len(theirs)} seeds)", Verdict("not decidable", ratio, "too few seeds")
    low, high = (1 + difference / base for difference in difference_between(mine, theirs))
    return f"{ratio:.3f}x [{low:.3f} to {high:.3f}]", claim.judge_interval(ratio, (low, high))


def _bytes(claim: Claim, ours: Method, rival: Method | None, passes: float) -> Judged:
    """How many times fewer bytes in a whole run; a count, which needs no test."""
    mine, theirs = bytes_of(ours), bytes_of(rival) if rival else None
    if not mine or not theirs:
        return _without(claim, ours, rival)
    return f"{theirs / mine:.2f}x", claim.judge(theirs / mine)


def _hidden(claim: Claim, ours: Method, rival: Method | None, passes: float) -> Judged:
    """The share of the exchange beside which the local steps go on."""
    pace = mean_pace(ours, HIDING_GBIT, passes)
    if pace is None or not pace.exposed + pace.hidden:
        return _without(claim, ours, rival)
    share = pace.hidden / (pace.exposed + pace.hidden)
    return f"{100 * share:.1f} %", claim.judge(share)


def _without(claim: Claim, ours: Method, rival: Method | None) -> Judged:
    """Of a claim whose runs give no number, because one diverged or a record lacks it."""
    ends = [method.title for method in (ours, rival) if method is not None and method.ends]
    return "-", Verdict("not decidable", why=", ".join(ends) or "the records do not have the numbers")


JUDGES: dict[str, Callable[[Claim, Method, Method | None, float], Judged]] = {
    "loss": _loss, "bytes": _bytes, "hidden": _hidden,
}  # fmt: skip
"""By the claim's `measure`."""
