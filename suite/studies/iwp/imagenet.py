"""Accuracies of Table I, from trainings on ImageNet that somebody with a cluster made by the claims' commands.

Runs are told apart by what their records say of them: the model, and the compressor with its mode.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from suite.studies import notes, trust
from suite.studies.claim import Claim, Verdict
from suite.studies.estimate import difference, mean
from suite.studies.findings import Finding
from suite.studies.iwp.claims import CLAIMED
from suite.studies.iwp.variants import FIXED, LAYERWISE
from suite.studies.notes import NotedRun
from suite.studies.significance import LEAST_RUNS
from wirebench.errors import UserError

BASELINE = "baseline"
ABOVE = "above"
Trained = Mapping[tuple[str, str], Sequence[NotedRun]]
"""Finished runs by their model and method."""


def load(folder: Path | None) -> Trained:
    """The finished runs on image folders below `folder`, None for none; UserError where it has no such run."""
    if folder is None:
        return {}
    found: defaultdict[tuple[str, str], list[NotedRun]] = defaultdict(list)
    for run in notes.finished(folder):
        if run.has("config", "data", "name") == "imagefolder" and run.has("final", "top1") is not None:
            found[str(run.has("config", "model", "name")), method_of(run)].append(run)
    if not found:
        raise UserError(f"--imagenet: {folder}: has no finished run on an image folder")
    return found


def method_of(run: NotedRun) -> str:
    """By the words of the claims: baseline, fixed, layer-wise, or the compressor's name."""
    name = str(run.has("config", "compressor", "name"))
    if name == "iwp":
        return LAYERWISE if run.has("config", "compressor", "mode") == "layerwise" else FIXED
    return BASELINE if name == "none" else name


def findings(trained: Trained) -> Iterator[Finding]:
    """What these runs say of each accuracy of which there is a run, and of a difference also the baseline."""
    for claim in CLAIMED.values():
        model, method = claim.about.get("model", ""), claim.about.get("trained", "")
        ours, base = trained.get((model, method), ()), trained.get((model, BASELINE), ())
        if ours and base:
            yield _finding(claim, ours, () if method == BASELINE else base)


def _finding(claim: Claim, ours: Sequence[NotedRun], base: Sequence[NotedRun]) -> Finding:
    """Of a difference from the baseline's runs, or of the accuracy itself where there are none."""
    points, runs, what = _points(ours), [ours], "%"
    measured = mean(points)
    if base:
        above = claim.about["side"] == ABOVE
        measured = difference(points, _points(base)) if above else difference(_points(base), points)
        what = f"points {claim.about['side']}"
        runs.append(base)
    seeds = min(map(len, runs))
    here = f"{measured.words('{:.2f} ' + what, '{:.2f}')} ({seeds} {'seed' if seeds == 1 else 'seeds'})"
    records = tuple(run.folder for those in runs for run in those)
    verdict = claim.judge(measured)
    if seeds < LEAST_RUNS:
        verdict = Verdict("not decidable", measured.value, "too few seeds")
    return Finding(claim, here, verdict, "", "", records, trust.rules_of(runs, "seeds"))


def _points(runs: Sequence[NotedRun]) -> list[float]:
    return [100 * run.record["final"]["top1"] for run in runs]
