"""What methods come to in the time of dense training, by link rate: a sentence of the study today's language model."""

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

from suite.studies import trust
from suite.studies.convergence.rows import Method
from suite.studies.significance import LEAST_RUNS, LEVEL
from suite.studies.today import alone
from suite.studies.today.outcome import bytes_of, losses
from suite.studies.today.report import methods_of
from suite.studies.today.tasks import DENSE
from suite.studies.today.times import RATES, Beside, Yardstick, beside_dense, corrected_all, mean_pace, sides, yardstick
from suite.webpage.prose import listed

TOLD = 3
"""Of the methods below dense training, the lowest."""


def loss_by_time(folder: Path, link: Callable[[Path], str]) -> Iterator[str]:
    """How many settings that send less end below dense training after as long; nothing without such runs."""
    if not folder.is_dir():
        return
    methods = methods_of(folder)
    by = yardstick(methods, alone.timed(folder, methods))
    dense, others = sides(methods)
    dense = [method for method in dense if len(losses(method)) >= LEAST_RUNS]
    if not dense or dense[0].label != DENSE:
        return
    most = bytes_of(dense[0]) or 0.0
    fewer = [method for method in others if (sent := bytes_of(method)) is not None and sent < most]
    every = [(rate, overlapped, method) for rate in RATES for overlapped in (False, True) for method in fewer]
    besides = corrected_all([beside_dense(method, dense, rate, by, overlapped) for rate, overlapped, method in every])
    found: dict[tuple[float, bool], dict[str, Beside | None]] = {}
    for (rate, beside, method), each in zip(every, besides, strict=True):
        found.setdefault((rate, beside), {})[method.label] = each
    without, overlapped = (_by_rate({rate: found[rate, each] for rate in RATES}) for each in (False, True))
    if not without or not overlapped:
        return
    tests = [label for those in found.values() for label, each in those.items() if _tested(each)]
    run = dense[0].runs[0]
    mine = [method.runs for method in (*dense, *(method for method in fewer if method.label in tests))]
    rules = trust.rules_of(mine, "seeds") + trust.rules_of(([each] for each in by.runs), "")
    broken = f" (these records break rules of trust: {', '.join(dict.fromkeys(rules))})" if rules else ""
    workers, parameters = run.record["world_size"], f"{run.record['parameters'] / 1e6:.2g} million parameters"
    rates, ratios = (listed(each) for each in ([f"{rate:g}" for rate in RATES], _ratios(dense[0], by)))
    yield (
        f"**When does sending less pay? A GPT of {parameters}, {workers} workers, at {rates} Gbit/s, where the dense "
        f"exchange takes {ratios} times as long as a step's forward and backward pass ({by.passes:.2g} s).** Each "
        f"setting that sends less than dense training (AdamW) is held against the best of {len(dense)} dense runs that "
        "took no longer, most of them on fewer tokens or in larger batches. How many settings end with a lower test "
        f"loss (Welch, {len(tests)} comparisons, together at {100 * LEVEL:.0f} % by Holm; in brackets the lowest, as a "
        f"multiple of the dense one), without overlap: {without}. With each exchange of gradients overlapped with its "
        "backward pass: "
        f"{overlapped}. Computing is measured, the network is simulated{broken} ([table]({link(folder)}))."
    )


def _ratios(dense: Method, by: Yardstick) -> list[str]:
    """The seconds of a dense exchange over those of the passes, by link rate; a rate without a time is a dash."""
    paces = [mean_pace(dense, rate, by) for rate in RATES]
    return ["-" if each is None or not by.passes else f"{each.exposed / by.passes:.2g}" for each in paces]


def _by_rate(found: Mapping[float, Mapping[str, Beside | None]]) -> str:
    """The sentence's part for each rate, rates with the same words together; "" where one has nothing to compare."""
    said = [(rate, told(each)) for rate, each in found.items()]
    if not all(words for _, words in said):
        return ""
    parts = ((words, [f"{rate:g}" for rate, _ in those]) for words, those in groupby(said, key=lambda each: each[1]))
    return "; ".join(f"at {listed(rates)} Gbit/s {words}" for words, rates in parts)


def told(found: Mapping[str, Beside | None]) -> str:
    """How many are below dense training, the lowest of them, and how many are open; "" where none is compared.

    A method that ends before the shortest dense run has an upper bound of its ratio. One that diverged, or has too few
    seeds or no time, is not compared.
    """
    compared = {
        label: (each, each.compared)
        for label, each in found.items()
        if _tested(each) and each is not None and each.compared is not None
    }
    lower = {label: each for label, (each, test) in compared.items() if "better" in (test.said, test.within)}
    open_ = sum(not each.decides for each, _ in compared.values())
    if not compared:
        return ""
    order = sorted(lower.items(), key=lambda item: (item[1].ratio, item[0]))
    lowest = [f"{label} {'' if each.within else 'at most '}{each.ratio:.2f}x" for label, each in order[:TOLD]]
    counted = f"{len(lower)} of {len(compared)}" if lower else f"none of {len(compared)}"
    undecided = f", {open_} not decided" if open_ else ""
    undecided += f", {len(found) - len(compared)} not compared" if len(found) > len(compared) else ""
    more = f" ({', '.join(lowest)}{', ...' if order[TOLD:] else ''})" if lowest else ""
    return f"{counted}{more}{undecided}"


def _tested(each: Beside | None) -> bool:
    """Whether there are seeds enough of both sides."""
    return each is not None and each.compared is not None and each.compared.p is not None
