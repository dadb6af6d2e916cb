"""Fig. 4: when the importance of ResNet-50's first downsampling layer changes most, by a training's steps.jsonl."""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator

from papers import trust
from papers.estimate import mean
from papers.findings import Finding
from papers.iwp import steps
from papers.iwp.claims import CLAIMED
from papers.iwp.imagenet import Trained
from papers.iwp.variants import LAYERWISE
from wirebench.record.notes import NotedRun

LAYER = "layer1.0.downsample.0.weight"
MEAN, VARIANCE = (f"compressor/importance_{name}/{LAYER}" for name in ("mean", "var"))
DRASTIC = 2.0
"""Times by which an epoch has to differ from the one before; it is our reading."""


def findings(trained: Trained) -> Iterator[Finding]:
    """What trainings of ResNet-50 with layer-wise thresholds say, of those that took readings in several epochs."""
    claim = CLAIMED["dispersion"]
    told = [(run, by_epoch(run)) for run in trained.get(("resnet50", LAYERWISE), ())]
    runs = [run for run, course in told if len(course) > 1]
    if not runs:
        return
    epochs = [turning(course) for _, course in told if len(course) > 1]
    epoch = mean(epochs)
    seeds = f"{len(runs)} {'seed' if len(runs) == 1 else 'seeds'}"
    here = f"epoch {epoch.words('{:.1f}', '{:.1f}')} ({seeds})" if any(epochs) else f"in no epoch ({seeds})"
    records = tuple(run.folder for run in runs)
    yield Finding(claim, here, claim.judge(epoch), "", "", records, trust.rules_of([runs], "seeds"))


def by_epoch(run: NotedRun) -> dict[int, float]:
    """Variance over mean of the layer's importance, the mean of an epoch's readings; epochs count from 1."""
    readings: defaultdict[int, list[float]] = defaultdict(list)
    for step in steps.having(run, VARIANCE):
        if step.get(MEAN) and step.get(VARIANCE):
            readings[step["epoch"] + 1].append(step[VARIANCE] / step[MEAN])
    return {epoch: statistics.mean(those) for epoch, those in sorted(readings.items())}


def turning(course: dict[int, float]) -> float:
    """The epoch that differs most from the one before, by the ratio of both; 0 where none differs by DRASTIC."""
    changes = {epoch: abs(math.log(course[epoch] / course[before])) for before, epoch in itertools.pairwise(course)}
    most = max(changes, key=changes.__getitem__)
    return float(most) if changes[most] >= math.log(DRASTIC) else 0.0
