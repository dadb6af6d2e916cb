"""Cells that the tables of losses share."""

import statistics
from collections.abc import Sequence
from itertools import pairwise

from papers.accuracy.modern import DENSE, SHORTER
from papers.accuracy.rows import MethodRuns, bytes_of, losses
from wirebench.record.notes import NotedRun


def sent(method: MethodRuns) -> str:
    """The bytes of a run, for a cell."""
    count = bytes_of(method)
    return "-" if count is None else f"{count / 1e6:.4g} MB"


def fewer(method: MethodRuns, dense: MethodRuns | None) -> str:
    """How many times fewer bytes a run of a method sends than dense training's, for a cell."""
    mine, base = bytes_of(method), bytes_of(dense)
    if not mine or not base:
        return "-"
    return f"{base / mine:,.0f}x" if base / mine >= 100 else f"{base / mine:.3g}x"


def over(method: MethodRuns, dense: MethodRuns | None, digits: int) -> str:
    """The mean loss over dense training's, for a cell."""
    mine, theirs = losses(method), losses(dense)
    return f"{statistics.mean(mine) / statistics.mean(theirs):.{digits}f}x" if mine and theirs else "-"


def rates(method: MethodRuns) -> str:
    """The largest learning rates of a method's runs, for a cell."""
    return " or ".join(f"{rate:g}" for rate in dict.fromkeys(method.each(_rate))) or "-"


def _rate(run: NotedRun) -> float | None:
    rate: float | None = run.has("config", "optimizer", "lr")
    return rate


def dense_tokens(method: MethodRuns, methods: Sequence[MethodRuns]) -> str:
    """On which share of the tokens dense training ends at a method's loss, in words; "-" without shorter training."""
    by_label = {each.label: each for each in methods}
    forms = [(label, 0.5**power) for power, label in enumerate((DENSE, *SHORTER))]
    known = [(statistics.mean(own), share) for label, share in forms if (own := losses(by_label.get(label)))]
    if not losses(method) or len(known) < 2 or known[0][1] < 1 or known != sorted(known):
        return "-"
    loss = statistics.mean(losses(method))
    for (low, more), (high, less) in pairwise(known):
        if low <= loss <= high:
            return f"{100 * more * (less / more) ** ((loss - low) / (high - low)):.0f} %"
    return "more than all" if loss < known[0][0] else f"less than {100 * known[-1][1]:.0f} %"
