"""The gs-SGD paper's claims beside its Table II: averages, communication and bytes of runs, accuracies of trainings."""

from collections.abc import Iterator, Mapping, Sequence

from papers import estimate
from papers.accuracy.rows import Method
from papers.accuracy.verdicts import judge_points
from papers.claim import Claim
from papers.estimate import Estimate
from papers.findings import Finding, of_rows
from papers.gs_sgd.claims import AS_PRINTED, most_sent
from papers.gs_sgd.paper import PUBLISHED
from papers.gs_sgd.variants import SWEEPS, SWEPT, swept
from papers.rows import Row, size, times_faster
from wirebench.record.notes import NotedRun

MODELS = tuple(PUBLISHED.tables["images_per_second"].keys() - {"where", "unit"})
TRAININGS = "wirebench study accuracy run --task quick resnet20 --data FOLDER"


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
        elif "especially" in claim.about:
            found += _especially(claim, *(models.get(claim.about[key], ()) for key in ("especially", "than")))
        elif "bytes_over" in claim.about:
            found += _bytes(claim, models, claim.about["bytes_over"])
    return found


def of_trainings(methods: Sequence[Method], task: str) -> list[Finding]:
    """What trainings to the end say of claims about accuracy, for our defaults and for the paper's own algorithm."""
    known = {method.label: method for method in methods}
    found = []
    for claim in PUBLISHED.claims.values():
        rival = known.get(claim.about.get("points_below", ""))
        for label in ("gs_sgd", AS_PRINTED["gs_sgd"]):
            if rival is not None and label in known:
                ours = known[label]
                about = f"{label}, {task}, {len(ours.runs[0].record['history'])} epochs"
                judged = judge_points(claim, ours, rival)
                found.append(of_rows(claim, *judged, (ours, rival), about, needs="seeds", command=TRAININGS))
    return found


def of_sweeps(methods: Sequence[Method], task: str) -> Iterator[Finding]:
    """What the smallest of a sweep loses beside its largest, for either reading of the "parameter of 10000"."""
    known = {method.label: method for method in methods}
    for claim in PUBLISHED.claims.values():
        for what in SWEEPS if claim.about.get("swept") else ():
            ours, rival = (known.get(swept(what, value)) for value in (SWEPT[0], SWEPT[-1]))
            if ours and rival:
                about = f"{what} of {SWEPT[0]:,} against {SWEPT[-1]:,}, {task}"
                yield of_rows(claim, *judge_points(claim, ours, rival), (ours, rival), about, needs="seeds")


def _means(claim: Claim, models: Mapping[str, Sequence[Row]], rival: str) -> Iterator[Finding]:
    """The mean of both networks' ratios."""
    pairs = [pair for rows in models.values() if (pair := _pair(rows, rival))]
    ratios = [ratio for pair in pairs if (ratio := times_faster(*pair))]
    if len(ratios) == len(MODELS):
        yield _of_ratio(claim, estimate.mean_of(ratios), [row for pair in pairs for row in pair])


def _pair(rows: Sequence[Row], rival: str) -> tuple[Row, Row] | None:
    """gs-SGD and its rival as printed; None where one was not measured."""
    known = {row.label: row for row in rows if not row.diverged}
    ours, other = known.get(AS_PRINTED["gs_sgd"]), known.get(AS_PRINTED[rival])
    return (ours, other) if ours and other else None


def _communication(claim: Claim, rows: Sequence[Row]) -> Iterator[Finding]:
    """Sketched-SGD's seconds of communication over gs-SGD's, turn by turn."""
    pair = _pair(rows, "sketched_sgd")
    saved = _saved(*pair) if pair else None
    if pair and saved:
        yield _of_ratio(claim, saved, pair)


def _especially(claim: Claim, first: Sequence[Row], second: Sequence[Row]) -> Iterator[Finding]:
    """The first network's ratio of communication over the second's."""
    pairs = [pair for rows in (first, second) if (pair := _pair(rows, "sketched_sgd"))]
    ratios = [saved for pair in pairs if (saved := _saved(*pair))]
    if len(ratios) == 2:
        yield _of_ratio(claim, estimate.ratio_of(*ratios), [row for pair in pairs for row in pair])


def _saved(ours: Row, rival: Row) -> Estimate | None:
    """The rival's seconds of communication over ours, turn by turn; None where no turn of both tells them."""
    return estimate.ratio_of_turns(_by_turn(rival), _by_turn(ours))


def _by_turn(row: Row) -> dict[str, float]:
    """Seconds of communication, by the turn's number."""
    known = {run.turn: communication(run) for run in row.runs}
    return {turn: seconds for turn, seconds in known.items() if seconds}


def communication(run: NotedRun) -> float | None:
    """Seconds of a step that exchange gradients and do not compress them; None for a run that did not tell them."""
    exposed, compress = run.has("phases", "exchange_exposed"), run.has("phases", "compress")
    return None if exposed is None or compress is None else max(exposed - compress, 0.0)


def _bytes(claim: Claim, models: Mapping[str, Sequence[Row]], rival: str) -> Iterator[Finding]:
    """The rival's bytes over the bytes of the paper's algorithm, of the worker that sends most: counted, not timed."""
    for model, rows in models.items():
        pair = _pair(rows, rival)
        mine, theirs = map(most_sent, pair) if pair else (None, None)
        if pair and mine and theirs:
            sizes = f"{theirs / mine:.2f}x: {size(theirs)} against {size(mine)} a step"
            yield of_rows(claim, sizes, claim.judge(theirs / mine), pair, model)


def _of_ratio(claim: Claim, ratio: Estimate, rows: Sequence[Row]) -> Finding:
    return of_rows(claim, ratio.words(), claim.judge(ratio), rows)
