"""The study's own claims, of published.toml: each about the accuracies of two methods, or about the bytes of one."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from suite.studies import published
from suite.studies.claim import Claim
from suite.studies.convergence.rows import Method
from suite.studies.significance import LEAST_RUNS, LEVEL, larger

PUBLISHED = published.load(Path(__file__).parent)


class Shown(NamedTuple):
    """A verdict in words, and the measurement that it rests on."""

    shown: str
    words: str


def claims(methods: Sequence[Method]) -> Iterator[tuple[Claim, Shown]]:
    """Every claim about methods that have runs, with its verdict."""
    known = {method.label: method for method in methods}
    for claim in PUBLISHED.claims.values():
        ours, rival = known.get(claim.about["method"]), known.get(claim.about["rival"])
        if ours is not None and rival is not None:
            judge = _points if claim.unit == "points" else _ratio
            yield claim, judge(claim, ours, rival)


def _points(claim: Claim, ours: Method, rival: Method) -> Shown:
    """At most, or at least, so many points below the rival: held where a one-sided Welch test says so over seeds."""
    mine, theirs = ([100 * value for value in method.top1] for method in (ours, rival))
    if not mine or not theirs:
        return Shown("-", "not measured")
    loss = statistics.mean(theirs) - statistics.mean(mine)
    shown = f"{loss:.2f} points below ({len(mine)} and {len(theirs)} seeds)"
    if min(len(mine), len(theirs)) < LEAST_RUNS:
        return Shown(shown, "too few seeds")
    edge = [each - claim.number[0] for each in theirs]
    holds, fails = larger(mine, edge), larger(edge, mine)
    if claim.holds == "at least":
        holds, fails = fails, holds
    if holds < LEVEL:
        return Shown(shown, f"holds (p = {holds:.2g})")
    return Shown(shown, f"does not hold (p = {fails:.2g})" if fails < LEVEL else f"not told (p = {holds:.2g})")


def _ratio(claim: Claim, ours: Method, rival: Method) -> Shown:
    """So many times fewer bytes in a whole run; a count, which needs no test."""
    if not ours.wire_bytes or not rival.wire_bytes:
        return Shown("-", "not measured")
    ratio = statistics.mean(rival.wire_bytes) / statistics.mean(ours.wire_bytes)
    return Shown(f"{ratio:.2f}x", "holds" if claim.judge(ratio).good else "does not hold")
