"""The study's own claims, of published.toml: each about the accuracies of two methods, or about the bytes of one."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from papers import estimate, published, trust
from papers.claim import Claim, Verdict
from papers.convergence.rows import Method
from papers.findings import Finding
from papers.significance import LEAST_RUNS

PUBLISHED = published.load(Path(__file__).parent)


def findings(methods: Sequence[Method]) -> list[Finding]:
    """Every claim about methods that have runs, with its verdict."""
    known = {method.label: method for method in methods}
    found = []
    for claim in PUBLISHED.claims.values():
        ours, rival = known.get(claim.about["method"]), known.get(claim.about["rival"])
        if ours is not None and rival is not None:
            here, verdict = judge_points(claim, ours, rival) if claim.unit == "points" else _ratio(claim, ours, rival)
            records = tuple(run.folder for method in (ours, rival) for run in method.runs)
            rules = trust.rules_of((ours.runs, rival.runs), "seeds")
            found.append(Finding(claim, here, verdict, records=records, rules=rules))
    return found


def judge_points(claim: Claim, ours: Method, rival: Method) -> tuple[str, Verdict]:
    """Judge the points above or below the rival: the interval of Welch's test over seeds has to confirm the claim."""
    mine, theirs = ours.judged, rival.judged
    if not mine or not theirs:
        diverged = [method.title for method in (ours, rival) if method.ends]
        return "-", Verdict("not decidable", why=", ".join(diverged)) if diverged else claim.judge(None)
    loss, seeds = estimate.difference(theirs, mine), f"{len(mine)} and {len(theirs)} seeds"
    if min(len(mine), len(theirs)) < LEAST_RUNS:
        return f"{_points_below(loss.value)} ({seeds})", Verdict("not decidable", loss.value, "too few seeds")
    low, high = loss.ends
    return f"{_points_below(loss.value)} [{low:.2f} to {high:.2f}] ({seeds})", claim.judge(loss)


def _points_below(loss: float) -> str:
    return f"{abs(loss):.2f} points {'below' if loss >= 0 else 'above'}"


def _ratio(claim: Claim, ours: Method, rival: Method) -> tuple[str, Verdict]:
    """Judge the ratio of bytes in a whole run; a count, which needs no test."""
    if not ours.wire_bytes or not rival.wire_bytes:
        return "-", claim.judge(None)
    ratio = statistics.mean(rival.wire_bytes) / statistics.mean(ours.wire_bytes)
    return f"{ratio:.2f}x", claim.judge(ratio)
