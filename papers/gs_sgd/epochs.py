"""After how many epochs a method has converged, by trainings that are as long as the paper's."""

from collections.abc import Iterator, Sequence

from papers import estimate
from papers.accuracy.rows import Method, history
from papers.claim import Verdict
from papers.findings import Finding, of_rows
from papers.gs_sgd.claims import AS_PRINTED, model_of
from papers.gs_sgd.paper import PUBLISHED
from wirebench.record.notes import NotedRun

LONG: int = PUBLISHED.tables["trained"]["epochs"]
"""A shorter run is at another point of its schedule: its accuracy rises until it ends."""
STEPS = [81.0, 122.0]
"""Epochs at which the rate falls, as in the gTop-k code (configs/cifar10_vgg16_dense.toml)."""
WITHIN = 0.005
"""Share of the images: what an accuracy may be below the last one where a run has converged. It is our reading."""


def of_epochs(methods: Sequence[Method], task: str) -> Iterator[Finding]:
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


def _is_the_papers(method: Method) -> bool:
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
