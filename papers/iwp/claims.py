"""The IWP paper's claims beside what was measured: ratios, intervals, densification, accuracies, also on ImageNet."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from papers.accuracy.rows import MethodRuns
from papers.accuracy.verdicts import points_below
from papers.claim import Claim, Verdict
from papers.estimate import difference, mean
from papers.findings import Finding, of_rows
from papers.iwp.measured import CountedValues
from papers.iwp.variants import DENSE, DGC, FIXED, LAYERWISE, kind
from papers.launched import on_cluster
from papers.published import load
from papers.rows import Row
from wirebench.compressors.terngrad import TernGrad
from wirebench.record.notes import NotedRun

PUBLISHED = load(Path(__file__).parent)
CLAIMED: Mapping[str, Claim] = PUBLISHED.claims
MODELS = ("alexnet", "resnet50")
"""The paper's."""
ONE_MASK = 32.0


def of_ratios(parts: Mapping[str, Sequence[CountedValues]]) -> Iterator[Finding]:
    """What was counted on a paper's model; of IWP once with its masks and once by the values alone."""
    for claim in CLAIMED.values():
        models = [model for model in MODELS if claim.about.get("ratio") in (model, "both")]
        found = {model: list(_of_model(claim, model, parts.get(model, ()))) for model in models}
        for model, those in found.items():
            # Of a claim about both models, one of which was not run.
            yield from those or ([Finding(claim, "-", claim.judge(None), model)] if any(found.values()) else ())


def _of_model(claim: Claim, model: str, rows: Sequence[CountedValues]) -> Iterator[Finding]:
    for row in rows:
        if kind(row.label) == claim.about["method"] and not row.run.diverged:
            yield from _ratios(claim, model, row)


def _ratios(claim: Claim, model: str, row: CountedValues) -> Iterator[Finding]:
    where = f"{model}, {row.label}"
    counted = {"with masks" if row.is_iwp else "as sent": row.as_sent, "values only": row.values}
    for how, ratio in counted.items():
        if ratio is None:
            continue
        judged, measured = claim, ratio
        here = f"{ratio:.2f}x {how}" + (f", {row.wire:.2f}x on the wire" if row.wire else "")
        if how == "values only":
            # No argument forbids the figure where masks are left out, and no share is more than all of the gradient.
            judged = replace(claim, contradicted="", no_effect=None)
        elif "workers" in claim.about:
            measured = _terngrad(row.run.record["parameters"], claim.about["workers"])
            here += f" of {row.run.record['world_size']}; {measured:.2f}x of {claim.about['workers']}, computed"
        verdict = judged.judge(measured)
        if row.is_iwp and row.unlearned:
            verdict = Verdict("not run here", ratio, row.unlearned)
        yield Finding(judged, here, verdict, f"{where}, {how}", records=(row.run.folder,), rules=row.rules)


def _terngrad(parameters: int, workers: int) -> float:
    """Dense bytes over a worker's own words: the sum of many workers' needs more bits."""
    return 4 * parameters / TernGrad().wire_bytes(parameters, workers)


def of_masks() -> Iterator[Finding]:
    """Computed: with the mask of one voter, a bit for each of 32, no ratio is larger than 32."""
    for claim in CLAIMED.values():
        if "ratio" in claim.about and claim.contradicted:
            here = f"computed: at most {ONE_MASK:.2f}x with the mask of one voter"
            yield Finding(claim, here, claim.judge(ONE_MASK), "with masks, computed")


def of_intervals(rows: Sequence[CountedValues]) -> Iterator[Finding]:
    """How often a coordinate is sent: of coordinates sent at random, one step more than the mean age of the residual.

    Runs that are shorter than the claim's interval say nothing of it.
    """
    for claim in CLAIMED.values():
        for row in rows:
            if claim.about.get("waiting") and row.waited and row.steps > claim.number[-1] and not row.run.diverged:
                mean, longest = row.waited
                here = f"sent {mean:.1f} steps ago on average, {longest:.0f} at most, of {row.steps}"
                yield Finding(claim, here, claim.judge(mean + 1), row.label, records=(row.run.folder,), rules=row.rules)


def of_densification() -> Iterator[Finding]:
    """Computed: what nodes choose at random, each for itself, is 1 - (1 - p)^N of the gradient together."""
    for claim in CLAIMED.values():
        if "share" in claim.about:
            share, nodes = claim.about["share"], claim.about["nodes"]
            together = ", ".join(
                f"{100 * united(share, each):.2f} % of {each} nodes"
                for each in PUBLISHED.tables["densification"]["nodes"]
            )
            yield Finding(claim, f"computed: {together}", claim.judge(united(share, nodes)))


def united(share: float, nodes: int) -> float:
    """Share of the coordinates that any of `nodes` chooses, each a share of them at random."""
    return 1 - (1 - share) ** nodes


def of_trainings(methods: Sequence[MethodRuns], task: str) -> Iterator[Finding]:
    """Accuracies of the study `accuracy`: IWP, in every setting that was trained, against dense."""
    known = {method.label: method for method in methods}
    for claim in CLAIMED.values():
        rival = known.get(claim.about.get("points_below", ""))
        for label, ours in known.items():
            if rival is not None and kind(label) == "iwp":
                epochs = len(ours.runs[0].record["history"])
                yield points_below(claim, ours, rival, f"{label}, {task}, {epochs} epochs")


BASELINE = "baseline"
NODES, EPOCHS = 96, 90
"""The paper's numbers, and the numbers of our commands."""
ABOVE = "above"
Trained = Mapping[tuple[str, str], Sequence[NotedRun]]
"""Finished runs by their model and variant."""


class MeasuredModel(NamedTuple):
    """Trainings by model and variant; of timed steps the rows of each model, labelled as in the part network."""

    trained: Trained
    timed: Mapping[str, Sequence[Row]]


def on_imagenet(folder: Path | None) -> MeasuredModel:
    """The finished runs on image folders below `folder`, none for None; UserError where it has no such run."""
    runs = on_cluster(folder, _model_of, variant_of, f"{' or '.join(MODELS)} on an image folder")
    return MeasuredModel(
        {(model, label): those for model, by in runs.trained.items() for label, those in by.items()},
        {model: [Row(f"{model}, {label}", those) for label, those in by.items()] for model, by in runs.timed.items()},
    )


def _model_of(run: NotedRun) -> str | None:
    """One of the paper's models that was trained on images by workers of their own; None for another run."""
    model = str(run.has("config", "model", "name"))
    on_images = run.has("config", "data", "name") == "imagefolder" and run.record["engine"] != "local"
    return model if on_images and model in MODELS else None


def variant_of(run: NotedRun) -> str:
    """By the words of the studies' labels: dense, fixed 0.05, layer-wise, dgc 0.1%, terngrad."""
    method, settings = method_of(run), run.record["config"]["compressor"]
    if method == FIXED:
        return f"{FIXED} {settings['threshold']:g}"
    if method == DGC:
        return f"{DGC} {100 * settings['density']:g}%"
    return DENSE if method == BASELINE else method


def counted(measured: MeasuredModel) -> dict[str, list[CountedValues]]:
    """By model, the runs that count bytes: IWP's and TernGrad's trainings, and what sends a fixed share in any run."""
    runs = [
        *((model, run) for (model, _), those in measured.trained.items() for run in those),
        *((model, run) for model, rows in measured.timed.items() for row in rows for run in row.runs),
    ]
    found: dict[str, list[CountedValues]] = {}
    for model, run in runs:
        label = variant_of(run)
        if label != DENSE and (run.is_whole or kind(label) == DGC):
            found.setdefault(model, []).append(CountedValues(run._replace(note={"label": f"{model}, {label}"})))
    return found


def methods(trained: Trained, model: str) -> list[MethodRuns]:
    """A model's trainings as methods of the study accuracy: dense, and every variant of IWP."""
    mine = {label: tuple(runs) for (name, label), runs in trained.items() if name == model}
    return [
        MethodRuns(label if label == DENSE else f"iwp {label}", runs)
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
    verdict = claim.judge_seeds(measured, seeds)
    if other := next((said for row in rows for run in row.runs if (said := _otherwise(run))), ""):
        verdict = Verdict("other setting", measured.value, other)
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
