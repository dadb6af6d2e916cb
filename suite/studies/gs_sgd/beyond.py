"""The gs-SGD paper's claims beside its Table II: averages, communication and bytes of runs, accuracies of trainings."""

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from suite.studies import trust
from suite.studies.claim import Claim
from suite.studies.convergence.rows import Method
from suite.studies.convergence.verdicts import judge_points
from suite.studies.findings import Finding
from suite.studies.gs_sgd.claims import PUBLISHED, of_method
from suite.studies.notes import NotedRun
from suite.studies.rows import Row, size, times_faster

LITERAL = "gs_sgd literal"
"""The variant that is the paper's own algorithm, with our reading of what it leaves out."""
MODELS = tuple(PUBLISHED.tables["images_per_second"].keys() - {"where", "unit"})
TRAININGS = "wirebench study convergence run --data FOLDER"
Spread = tuple[float, float, float]
"""A ratio in the median of turns, at least, and at most."""


def of_runs(models: Mapping[str, Sequence[Row]]) -> list[Finding]:
    """What runs say of claims about both networks, or about what is behind their throughput.

    models  rows by the paper's name of their model
    """
    found: list[Finding] = []
    for claim in PUBLISHED.claims.values():
        if "mean_over" in claim.about:
            found += _means(claim, models, claim.about["mean_over"])
        elif "communication" in claim.about:
            found += _communication(claim, models.get(claim.about["communication"], ()))
        elif "bytes_over" in claim.about:
            found += _bytes(claim, models, claim.about["bytes_over"])
    return found


def of_trainings(methods: Sequence[Method], task: str) -> list[Finding]:
    """What trainings to the end say of claims about accuracy, for our defaults and for the paper's own algorithm."""
    known = {method.label: method for method in methods}
    found = []
    for claim in PUBLISHED.claims.values():
        rival = known.get(claim.about.get("points_below", ""))
        for label in ("gs_sgd", LITERAL):
            if rival is not None and label in known:
                ours = known[label]
                here, verdict = judge_points(claim, ours, rival)
                runs = (*ours.runs, *rival.runs)
                about = f"{label}, {task}, {len(ours.runs[0].record['history'])} epochs"
                rules = trust.rules_of((ours.runs, rival.runs), "seeds")
                found.append(Finding(claim, here, verdict, about, "", _folders(runs), rules, TRAININGS))
    return found


def _means(claim: Claim, models: Mapping[str, Sequence[Row]], rival: str) -> Iterator[Finding]:
    """The mean of both networks' ratios, for every pair of variants that both have."""
    pairs = [_pairs(rows, rival) for rows in models.values()]
    if len(pairs) < len(MODELS):
        return
    for ours, other in sorted(set.intersection(*map(set, pairs))):
        rows = [row for each in pairs for row in each[ours, other]]
        ratios = [times_faster(*each[ours, other]) for each in pairs]
        known = [ratio for ratio in ratios if ratio]
        if len(known) == len(pairs):
            yield _of_ratio(claim, _mean(known), rows, f"{ours} over {other}")


def _mean(ratios: Sequence[Spread]) -> Spread:
    middle, low, high = (statistics.mean(each) for each in zip(*ratios, strict=True))
    return middle, low, high


def _pairs(rows: Sequence[Row], rival: str) -> dict[tuple[str, str], tuple[Row, Row]]:
    """Every variant of gs-SGD with every variant of the rival, by their labels."""
    both = itertools.product(of_method(rows, "gs_sgd"), of_method(rows, rival))
    return {(ours.label, other.label): (ours, other) for ours, other in both}


def _communication(claim: Claim, rows: Sequence[Row]) -> Iterator[Finding]:
    """Sketched-SGD's seconds of communication over gs-SGD's, turn by turn."""
    for (label, rivals), (ours, rival) in sorted(_pairs(rows, "sketched_sgd").items()):
        mine, theirs = _by_turn(ours), _by_turn(rival)
        ratios = sorted(theirs[turn] / seconds for turn, seconds in mine.items() if seconds and theirs.get(turn))
        if ratios:
            kept = ratios[1:-1] if len(ratios) >= trust.TURNS else ratios
            spread = statistics.median(ratios), kept[0], kept[-1]
            yield _of_ratio(claim, spread, (ours, rival), f"{rivals} over {label}")


def _by_turn(row: Row) -> dict[str, float]:
    """Seconds of communication, by the turn's number."""
    known = {run.folder.name.rpartition("-")[2]: communication(run) for run in row.runs}
    return {turn: seconds for turn, seconds in known.items() if seconds is not None}


def communication(run: NotedRun) -> float | None:
    """Seconds of a step that exchange gradients and do not compress them; None for a run that did not tell them."""
    exposed, compress = run.has("phases", "exchange_exposed"), run.has("phases", "compress")
    return None if exposed is None or compress is None else max(exposed - compress, 0.0)


def _bytes(claim: Claim, models: Mapping[str, Sequence[Row]], rival: str) -> Iterator[Finding]:
    """The rival's bytes over those of the paper's algorithm, of the worker that sends most: counted, not timed."""
    for model, rows in models.items():
        known = {row.label: row for row in rows}
        ours, other = known.get(LITERAL), known.get(rival)
        if ours is None or other is None:
            continue
        mine, theirs = (row.median("bytes_per_step", "wire") for row in (ours, other))
        if mine and theirs:
            sizes = f"{theirs / mine:.2f}x: {size(theirs)} against {size(mine)} a step"
            rows_of = (*ours.runs, *other.runs)
            rules = trust.rules_of((ours.runs, other.runs), "turns")
            yield Finding(claim, sizes, claim.judge(theirs / mine), model, records=_folders(rows_of), rules=rules)


def _of_ratio(claim: Claim, ratio: Spread, rows: Sequence[Row], about: str) -> Finding:
    middle, low, high = ratio
    rules = trust.rules_of((row.runs for row in rows), "turns")
    runs = [run for row in rows for run in row.runs]
    here = f"{middle:.2f}x [{low:.2f} - {high:.2f}]"
    return Finding(claim, here, claim.judge(middle, (low, high)), about, records=_folders(runs), rules=rules)


def _folders(runs: Sequence[NotedRun]) -> tuple[Path, ...]:
    return tuple(run.folder for run in runs)
