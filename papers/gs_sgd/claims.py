"""The gs-SGD paper's claims beside runs and trainings: throughput, communication, bytes, accuracies, epochs."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from papers import estimate
from papers.accuracy.rows import MethodRuns, history
from papers.accuracy.verdicts import points_below
from papers.claim import Claim, Verdict
from papers.estimate import Estimate
from papers.findings import Finding, of_rows
from papers.gs_sgd.variants import PUBLISHED, READINGS, SWEEPS, SWEPT, at, swept
from papers.rows import Row, size, times_faster
from wirebench.record.notes import NotedRun

_MODELS: tuple[tuple[str, dict[str, object]], ...] = (
    ("ResNet-20", {"name": "replay", "trace": "resnet20_gtx1080ti"}),
    ("ResNet-20", {"name": "resnet_cifar", "depth": 20}),
    ("VGG-16", {"name": "replay", "trace": "vgg16_cifar_gtx1080ti"}),
    ("VGG-16", {"name": "vgg_cifar", "depth": 16}),
)
METHODS = ("gtopk", "gs_sgd", "sketched_sgd")
AS_PRINTED = {"gtopk": "gtopk", "gs_sgd": "gs_sgd literal", "sketched_sgd": "sketched_sgd literal"}
"""Of the readings of what the paper leaves open, the one that a claim is judged by: the algorithms as printed, all with
the same k, both sketches of the same size."""
BASES = ("gtopk", "gtopk 16 bytes", "sketched_sgd", "sketched_sgd literal")
"""What throughputs are compared with."""


def model_of(section: Mapping[str, Any]) -> str | None:
    """The paper's name of the model of a record's config.model; None for one that it says nothing of."""
    names = (name for name, keys in _MODELS if all(section.get(key) == value for key, value in keys.items()))
    return next(names, None)


def findings(rows: Sequence[Row]) -> list[Finding]:
    """Each claim about the throughput of the rows' model, or of any; none where the paper has no such model.

    Judged are the methods as printed (AS_PRINTED); results of the other readings are added.
    """
    model = model_of(rows[0].runs[0].record["config"]["model"])
    known = {row.label: row for row in rows if not row.diverged}
    found: list[Finding] = []
    for claim in PUBLISHED.claims.values():
        if model is None or "rival" not in claim.about or claim.about.get("model", model) != model:
            continue
        ours, rival = (known.get(AS_PRINTED[method]) for method in ("gs_sgd", claim.about["rival"]))
        measured = times_faster(ours, rival) if ours and rival else None
        if ours and rival and measured:
            others = _others(rows, claim.about["rival"]) + _sparser(known, claim.about["rival"])
            here = f"{measured.words()}; {_bytes(ours, rival)}{others}"
            about = "" if "model" in claim.about else model
            found.append(of_rows(claim, here, claim.judge(measured), (ours, rival), about))
    return found


def _others(rows: Sequence[Row], rival: str) -> str:
    """The least and the largest factor of all readings of both methods, of 1 %."""
    usual = [row for row in rows if not any(row.label.endswith(at("", share)) for share in READINGS)]
    pairs = itertools.product(of_method(usual, "gs_sgd"), of_method(usual, rival))
    ratios = [ratio.value for pair in pairs if (ratio := times_faster(*pair))]
    return f"; {min(ratios):.2f}x to {max(ratios):.2f}x in {len(ratios)} readings" if len(ratios) > 1 else ""


def _sparser(known: Mapping[str, Row], rival_method: str) -> str:
    """The factor at the densities beside 1 %, where both were measured."""
    said = ""
    for share in READINGS:
        ours, rival = (known.get(at(AS_PRINTED[method], share)) for method in ("gs_sgd", rival_method))
        if ours and rival and (ratio := times_faster(ours, rival)):
            said += f"; at {100 * share:g} % {ratio.words()}"
    return said


def of_method(rows: Sequence[Row], method: str) -> list[Row]:
    """The rows of a method and its variants that did not diverge, in the order of their labels."""
    those = [row for row in rows if row.label.partition(" ")[0] == method and not row.diverged]
    return sorted(those, key=lambda row: row.label)


def most_sent(row: Row) -> float | None:
    """Bytes of a step of the worker that sends most; older records have rank 0's only."""
    most = row.median("bytes_per_step", "wire_max")
    return row.median("bytes_per_step", "wire") if most is None else most


def _bytes(ours: Row, rival: Row) -> str:
    """What a worker sends in a step by either, and the rival's bytes over ours, of the worker that sends most."""
    sizes = " against ".join(size(row.median("bytes_per_step", "wire_mean")) for row in (ours, rival))
    most, rivals = most_sent(ours), most_sent(rival)
    return sizes + (f", {rivals / most:.2f}x by bytes" if most and rivals else "")


LONG: int = PUBLISHED.tables["trained"]["epochs"]
"""A shorter run is at another point of its schedule: its accuracy rises until it ends."""
STEPS = [81.0, 122.0]
"""Epochs at which the rate falls, as in the gTop-k code (configs/cifar10_vgg16_dense.toml)."""
WITHIN = 0.005
"""Share of the images: what an accuracy may be below the last one where a run has converged. It is our reading."""


def of_epochs(methods: Sequence[MethodRuns], task: str) -> Iterator[Finding]:
    """Judge the epoch from which on a method's accuracy stays at its final value, in trainings of the paper's
    models.
    """
    known = {method.label: method for method in methods if _is_the_papers(method)}
    for claim in PUBLISHED.claims.values():
        name = claim.about.get("converges", "")
        for label in dict.fromkeys((name, AS_PRINTED.get(name, name))):
            if label in known:
                ours = known[label]
                epochs = [] if ours.ends else ours.each(converged)
                verdict = Verdict("not decidable", why=ours.title)
                if epochs:
                    verdict = claim.judge(estimate.mean(epochs))
                yield of_rows(claim, _words(epochs), verdict, [ours], f"{label}, {task}", needs="seeds")


def _is_the_papers(method: MethodRuns) -> bool:
    """Whether all its runs are of a model of the paper's, just as long as the paper's, and fall as gTop-k's code does.

    A rate that rises and falls over the whole run decides by itself when it has converged.
    """
    models = [model_of(run.record["config"]["model"]) for run in method.runs]
    return None not in models and all(
        (run.is_whole, run.has("config", "train", "epochs"), _falls(run)) == (True, LONG, STEPS) for run in method.runs
    )


def _falls(run: NotedRun) -> list[float] | None:
    """The epochs at which the rate falls; None where it does not fall by steps."""
    section = run.record["config"].get("optimizer", {})
    return [float(each) for each in section.get("milestones", ())] if section.get("schedule") == "step" else None


def converged(run: NotedRun) -> float | None:
    """The epoch, counted from 1, from which on no accuracy is more than WITHIN below the last; None without any."""
    tested = [(entry["epoch"] + 1, entry["top1"]) for entry in history(run) if entry["top1"] is not None]
    if not tested:
        return None
    below = [epoch for epoch, top1 in tested if top1 < tested[-1][1] - WITHIN]
    return float(next(epoch for epoch, _ in tested if epoch > max(below, default=0)))


def _words(epochs: Sequence[float]) -> str:
    if not epochs:
        return "-"
    return f"{estimate.mean(epochs).words('{:.1f} epochs', '{:.1f}')} ({len(epochs)} seeds)"


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
            found += _bytes_of(claim, models, claim.about["bytes_over"])
    return found


def of_trainings(methods: Sequence[MethodRuns], task: str) -> list[Finding]:
    """What trainings to the end say of claims about accuracy, for our defaults and for the paper's own algorithm."""
    known = {method.label: method for method in methods}
    found = []
    for claim in PUBLISHED.claims.values():
        rival = known.get(claim.about.get("points_below", ""))
        for label in ("gs_sgd", AS_PRINTED["gs_sgd"]):
            if rival is not None and label in known:
                ours = known[label]
                about = f"{label}, {task}, {len(ours.runs[0].record['history'])} epochs"
                found.append(points_below(claim, ours, rival, about, TRAININGS))
    return found


def of_sweeps(methods: Sequence[MethodRuns], task: str) -> Iterator[Finding]:
    """What the smallest of a sweep loses beside its largest, for either reading of the "parameter of 10000"."""
    known = {method.label: method for method in methods}
    for claim in PUBLISHED.claims.values():
        for what in SWEEPS if claim.about.get("swept") else ():
            ours, rival = (known.get(swept(what, value)) for value in (SWEPT[0], SWEPT[-1]))
            if ours and rival:
                yield points_below(claim, ours, rival, f"{what} of {SWEPT[0]:,} against {SWEPT[-1]:,}, {task}")


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
    return estimate.ratio_of_turns(rival.by_turn(communication), ours.by_turn(communication))


def communication(run: NotedRun) -> float | None:
    """Seconds of a step that exchange gradients and do not compress them; None for a run without any, or that did not
    tell them.
    """
    exposed, compress = run.has("phases", "exchange_exposed"), run.has("phases", "compress")
    return exposed - compress if exposed is not None and compress is not None and exposed > compress else None


def _bytes_of(claim: Claim, models: Mapping[str, Sequence[Row]], rival: str) -> Iterator[Finding]:
    """The rival's bytes over the bytes of the paper's algorithm, of the worker that sends most: counted, not timed."""
    for model, rows in models.items():
        pair = _pair(rows, rival)
        mine, theirs = map(most_sent, pair) if pair else (None, None)
        if pair and mine and theirs:
            sizes = f"{theirs / mine:.2f}x: {size(theirs)} against {size(mine)} a step"
            yield of_rows(claim, sizes, claim.judge(theirs / mine), pair, model)


def _of_ratio(claim: Claim, ratio: Estimate, rows: Sequence[Row]) -> Finding:
    return of_rows(claim, ratio.words(), claim.judge(ratio), rows)
