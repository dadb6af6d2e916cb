"""What methods come to in the time of dense training, by link rate: a sentence of the study today's language model."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from suite.studies import trust
from suite.studies.convergence.rows import Method
from suite.studies.significance import LEAST_RUNS, LEVEL
from suite.studies.today import alone
from suite.studies.today.outcome import losses
from suite.studies.today.report import methods_of
from suite.studies.today.tasks import DENSE, SHORTER
from suite.studies.today.times import RATES, Yardstick, beside_dense, yardstick

TOLD = 3
"""Of the methods that are better than dense training, those with the least losses."""


def equal_time(folder: Path, link: Callable[[Path], str]) -> Iterator[str]:
    """How many methods have a smaller loss than dense training after as long, and the best; none without such runs."""
    if not folder.is_dir():
        return
    methods = [method for method in methods_of(folder) if len(losses(method)) >= LEAST_RUNS]
    by = yardstick(methods, alone.timed(folder, methods))
    dense = [method for method in methods if method.label in (DENSE, *SHORTER)]
    others = [method for method in methods if method not in dense]
    at_rate = [(rate, _told(others, dense, rate, by)) for rate in RATES]
    if not dense or dense[0].label != DENSE or not all(told for _, told in at_rate):
        return
    said = [
        f"at {_listed([f'{rate:g}' for rate, _ in those])} Gbit/s {words}"
        for words, those in ((words, list(those)) for words, those in groupby(at_rate, key=lambda each: each[1]))
    ]
    run = dense[0].runs[0]
    broken = trust.rules_of((method.runs for method in methods), "seeds")
    rules = f" (these records break rules of trust: {', '.join(broken)})" if broken else ""
    yield (
        f"**A GPT of {run.record['parameters'] / 1e6:.2g} million parameters, {run.record['world_size']} workers, loss "
        f"over that of dense training (AdamW) for as long:** {'; '.join(said)} (p < {LEVEL:g}). Computing is measured, "
        f"{1e3 * by.passes:.0f} ms for the passes of a step, and the exchange simulated, that of gradients beside the "
        f"backward pass. After all tokens dense training's loss is {statistics.mean(losses(dense[0])):.2f}{rules} "
        f"([table]({link(folder)}))."
    )


def _told(others: Sequence[Method], dense: Sequence[Method], rate: float, by: Yardstick) -> str:
    """How many are below dense training at this rate, and the lowest of them; "" where nothing is compared."""
    found = {method.label: beside_dense(method, dense, rate, by, overlapped=True) for method in others}
    known = {label: (each.ratio, each.compared.said) for label, each in found.items() if each and each.compared}
    lower = sorted((ratio, label) for label, (ratio, said) in known.items() if said == "better")
    if not known:
        return ""
    if not lower:
        return f"none of {len(known)} methods is lower"
    verb, more = ("are" if lower[1:] else "is"), (", ..." if lower[TOLD:] else "")
    lowest = ", ".join(f"{label} {ratio:.2f}x" for ratio, label in lower[:TOLD])
    return f"{len(lower)} of {len(known)} methods {verb} lower, {lowest}{more}"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))
