"""The IWP paper's claims beside what was measured: ratios, intervals, densification, and accuracies of trainings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from papers.accuracy.rows import Method
from papers.accuracy.verdicts import judge_points
from papers.claim import Claim, Verdict
from papers.findings import Finding, of_rows
from papers.iwp.measured import Counted
from papers.iwp.variants import kind
from papers.published import load
from wirebench.compressors.terngrad import TernGrad

PUBLISHED = load(Path(__file__).parent)
CLAIMED: Mapping[str, Claim] = PUBLISHED.claims
MODELS = ("alexnet", "resnet50")
"""The paper's."""
ONE_MASK = 32.0


def of_ratios(parts: Mapping[str, Sequence[Counted]]) -> Iterator[Finding]:
    """What was counted on a paper's model; of IWP once with its masks and once by the values alone."""
    for claim in CLAIMED.values():
        models = [model for model in MODELS if claim.about.get("ratio") in (model, "both")]
        found = {model: list(_of_model(claim, model, parts.get(model, ()))) for model in models}
        for model, those in found.items():
            # Of a claim about both models, one of which was not run.
            yield from those or ([Finding(claim, "-", claim.judge(None), model)] if any(found.values()) else ())


def _of_model(claim: Claim, model: str, rows: Sequence[Counted]) -> Iterator[Finding]:
    for row in rows:
        if kind(row.label) == claim.about["method"] and not row.run.diverged:
            yield from _ratios(claim, model, row)


def _ratios(claim: Claim, model: str, row: Counted) -> Iterator[Finding]:
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


def of_intervals(rows: Sequence[Counted]) -> Iterator[Finding]:
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


def of_trainings(methods: Sequence[Method], task: str) -> Iterator[Finding]:
    """Accuracies of the study `accuracy`: IWP, in every setting that was trained, against dense."""
    known = {method.label: method for method in methods}
    for claim in CLAIMED.values():
        rival = known.get(claim.about.get("points_below", ""))
        for label, ours in known.items():
            if rival is not None and kind(label) == "iwp":
                about = f"{label}, {task}, {len(ours.runs[0].record['history'])} epochs"
                yield of_rows(claim, *judge_points(claim, ours, rival), (ours, rival), about, needs="seeds")
