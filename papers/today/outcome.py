"""What a method's runs came to: losses, bytes, and whether they differ from another method's."""

import statistics
from collections.abc import Iterable, Sequence

from papers.convergence.rows import Method, history, wire_bytes
from papers.significance import LEVEL, Comparison, compare
from wirebench.record.notes import NotedRun

MARGIN = 0.01
"""Share of a loss that counts as no difference."""


def losses(method: Method) -> list[float]:
    """Final test losses; none where a seed diverged."""
    return [] if method.ends else method.each(lambda run: run.has("final", "loss"))


def bytes_of(method: Method) -> float | None:
    """Bytes that a worker sends in a run, mean over seeds."""
    sent = method.each(lambda run: wire_bytes(history(run)[-1]) if history(run) and not run.diverged else None)
    return statistics.mean(sent) if sent else None


def runs_of(methods: Iterable[Method]) -> list[NotedRun]:
    """All runs."""
    return [run for method in methods for run in method.runs]


def against(mine: Sequence[float], theirs: Sequence[float], margin: float = MARGIN) -> Comparison | None:
    """Whether losses are better, which is smaller; None where one side has none. `margin`: share of their mean."""
    if not mine or not theirs:
        return None
    return compare([-loss for loss in mine], [-loss for loss in theirs], margin * statistics.mean(theirs))


def multiplicity(comparisons: Iterable[Comparison | None]) -> str:
    """How many tests a table makes, and what that means for a reader."""
    count = sum(each is not None and each.p is not None for each in comparisons)
    level = f"{100 * LEVEL:.0f} %"
    if not count:
        return "No methods are compared: that takes three seeds."
    return (
        f"Comparisons in this table: {count}. Each p is that of one of them all, by Holm: at {level} one table of "
        f"{1 / LEVEL:.0f} has a method that is better or worse by chance."
    )
