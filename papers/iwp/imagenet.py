"""Table I and Fig. 7 and 8 from runs on ImageNet that a user with a cluster made by the claims' commands.

Runs are classified by their records: the model, and the compressor with its mode. Trainings have an accuracy; of
others the steps are timed.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from papers.accuracy.rows import Method
from papers.alike import alike, refuse_twice
from papers.claim import Claim, Verdict
from papers.estimate import difference, mean
from papers.findings import Finding, of_rows
from papers.iwp.claims import CLAIMED, MODELS
from papers.iwp.measured import Counted
from papers.iwp.variants import DENSE, DGC, FIXED, LAYERWISE, kind
from papers.rows import Row
from papers.significance import LEAST_RUNS
from wirebench.errors import UserError
from wirebench.record import recorded
from wirebench.record.notes import NotedRun

BASELINE = "baseline"
NODES, EPOCHS = 96, 90
"""The paper's numbers, and the numbers of our commands."""
ABOVE = "above"
Trained = Mapping[tuple[str, str], Sequence[NotedRun]]
"""Finished runs by their model and variant."""


class Measured(NamedTuple):
    """Trainings by model and variant; of timed steps the rows of each model, labelled as in the part network."""

    trained: Trained
    timed: Mapping[str, Sequence[Row]]


def load(folder: Path | None) -> Measured:
    """The finished runs on image folders below `folder`, none for None; UserError where it has no such run."""
    trained, timed = (defaultdict[str, list[NotedRun]](list) for _ in range(2))
    for run in recorded.finished(folder) if folder is not None else ():
        model = str(run.has("config", "model", "name"))
        if run.has("config", "data", "name") == "imagefolder" and model in MODELS and run.record["engine"] != "local":
            (trained if run.is_whole else timed)[model].append(run)
    if folder is not None and not trained and not timed:
        raise UserError(f"--cluster: {folder}: has no finished run of {' or '.join(MODELS)} on an image folder")
    return Measured(
        {(model, label): those for model, runs in trained.items() for label, those in _by_variant(model, runs)},
        {
            model: [Row(f"{model}, {label}", those) for label, those in _by_variant(model, runs)]
            for model, runs in timed.items()
        },
    )


def _by_variant(model: str, runs: Sequence[NotedRun]) -> list[tuple[str, tuple[NotedRun, ...]]]:
    by: defaultdict[str, list[NotedRun]] = defaultdict(list)
    for run in alike(runs):
        by[variant_of(run)].append(run)
    for label, those in by.items():
        refuse_twice(f"{model}, {label}", those)
    return [(label, tuple(those)) for label, those in by.items()]


def variant_of(run: NotedRun) -> str:
    """By the words of the studies' labels: dense, fixed 0.05, layer-wise, dgc 0.1%, terngrad."""
    method, settings = method_of(run), run.record["config"]["compressor"]
    if method == FIXED:
        return f"{FIXED} {settings['threshold']:g}"
    if method == DGC:
        return f"{DGC} {100 * settings['density']:g}%"
    return DENSE if method == BASELINE else method


def counted(measured: Measured) -> dict[str, list[Counted]]:
    """By model, the runs that count bytes: IWP's and TernGrad's trainings, and what sends a fixed share in any run."""
    runs = [
        *((model, run) for (model, _), those in measured.trained.items() for run in those),
        *((model, run) for model, rows in measured.timed.items() for row in rows for run in row.runs),
    ]
    found: dict[str, list[Counted]] = {}
    for model, run in runs:
        label = variant_of(run)
        if label != DENSE and (run.is_whole or kind(label) == DGC):
            found.setdefault(model, []).append(Counted(run._replace(note={"label": f"{model}, {label}"})))
    return found


def methods(trained: Trained, model: str) -> list[Method]:
    """A model's trainings as methods of the study accuracy: dense, and every variant of IWP."""
    mine = {label: tuple(runs) for (name, label), runs in trained.items() if name == model}
    return [
        Method(label if label == DENSE else f"iwp {label}", runs)
        for label, runs in mine.items()
        if label == DENSE or kind(label) in (FIXED, LAYERWISE)
    ]


def method_of(run: NotedRun) -> str:
    """By the words of the claims: baseline, fixed, layer-wise, or the compressor's name."""
    name = str(run.has("config", "compressor", "name"))
    if name == "iwp":
        return LAYERWISE if run.has("config", "compressor", "mode") == "layerwise" else FIXED
    return BASELINE if name == "none" else name


def findings(trained: Trained) -> Iterator[Finding]:
    """What these runs say of each accuracy of which there is a run, and of a difference also the baseline."""
    for claim in CLAIMED.values():
        method = claim.about.get("trained", "")
        for (model, label), ours in trained.items():
            base = trained.get((model, DENSE), ())
            if model == claim.about.get("model") and kind(label) == (DENSE if method == BASELINE else method) and base:
                yield _finding(claim, ours, () if method == BASELINE else base, label)


def _finding(claim: Claim, ours: Sequence[NotedRun], base: Sequence[NotedRun], label: str) -> Finding:
    """Finding on the difference from the baseline's runs, or on the accuracy itself without such runs."""
    points, rows, what = _points(ours), [Row(label, tuple(ours))], "%"
    measured = mean(points)
    if base:
        above = claim.about["side"] == ABOVE
        measured = difference(points, _points(base)) if above else difference(_points(base), points)
        what = f"points {claim.about['side']}"
        rows.append(Row(DENSE, tuple(base)))
    seeds = min(len(row.runs) for row in rows)
    here = f"{measured.words('{:.2f} ' + what, '{:.2f}')} ({seeds} {'seed' if seeds == 1 else 'seeds'})"
    verdict = claim.judge(measured)
    if other := next((said for row in rows for run in row.runs if (said := _otherwise(run))), ""):
        verdict = Verdict("other setting", measured.value, other)
    elif seeds < LEAST_RUNS:
        verdict = Verdict("not decidable", measured.value, "too few seeds")
    return of_rows(claim, here, verdict, rows, label, needs="seeds")


def _otherwise(run: NotedRun) -> str:
    """How a training differs from the claims' setting; "" where it does not."""
    if not run.on_imagenet:
        return "trained on other images than ImageNet's 1,281,167"
    if run.record["world_size"] != NODES:
        return f"trained with {run.record['world_size']} workers, the claims are of {NODES} nodes"
    epochs = run.has("config", "train", "epochs") or 0
    return (
        f"trained for {epochs} epochs; the commands have {EPOCHS}, and the paper states none" if epochs < EPOCHS else ""
    )


def _points(runs: Sequence[NotedRun]) -> list[float]:
    return [100 * run.record["final"]["top1"] for run in runs]
