"""What a training's steps.jsonl says: importance by layer and epoch, Fig. 4's turning point, network I/O over time."""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from papers.estimate import mean
from papers.findings import Finding, of_rows
from papers.iwp.claims import CLAIMED, Trained
from papers.iwp.variants import LAYERWISE
from papers.rows import Row
from wirebench.compressors.sparse.importance import LOWS
from wirebench.errors import UserError
from wirebench.record.notes import NotedRun

FILE = "steps.jsonl"
SHARE = "compressor/importance_share/"
WINDOWS = 100
"""Windows of a run: a single step's rate varies much, and a training has many steps."""
Shares = tuple[float, ...]
"""Of a layer's coordinates, by LOWS."""


class Rate(NamedTuple):
    """Minutes since the run's first step, in the middle of a window of steps, and bytes a second that rank 0 sent."""

    minutes: float
    bytes_a_second: float


def rates(run: NotedRun) -> list[Rate]:
    """What rank 0 sent over time, without headers, in windows of as many steps; none for a run without the file."""
    steps = [(step["seconds"], step["wire_bytes"]) for step in having(run, "wire_bytes")]
    length, found, begin = max(-(-len(steps) // WINDOWS), 1), [], 0.0
    for window in (steps[start : start + length] for start in range(0, len(steps), length)):
        seconds = sum(each for each, _ in window)
        if seconds > 0:
            found.append(Rate((begin + seconds / 2) / 60, sum(sent for _, sent in window) / seconds))
        begin += seconds
    return found


def distributions(run: NotedRun) -> dict[str, dict[int, Shares]]:
    """Shares of importance by layer and epoch (from 1), the mean of an epoch's readings; {} for a run without them."""
    readings: defaultdict[str, defaultdict[int, list[Shares]]] = defaultdict(lambda: defaultdict(list))
    names = [f"{low:.3g}" for low in LOWS]
    for step in having(run, SHARE):
        layers = dict.fromkeys(key[len(SHARE) :].rpartition("/")[0] for key in step if key.startswith(SHARE))
        for layer in layers:
            shares = [step.get(f"{SHARE}{layer}/{name}") for name in names]
            known = tuple(share for share in shares if share is not None)
            if len(known) == len(names):
                readings[layer][step["epoch"] + 1].append(known)
    return {
        layer: {epoch: _mean(those) for epoch, those in sorted(by_epoch.items())}
        for layer, by_epoch in readings.items()
    }


def _mean(those: list[Shares]) -> Shares:
    return tuple(map(statistics.mean, zip(*those, strict=True)))


def having(run: NotedRun, key: str) -> Iterator[Mapping[str, Any]]:
    """The lines with a key that begins so; none where the file was not kept. UserError for a damaged one."""
    try:
        for step in run.files.get(FILE) or ():
            if any(each.startswith(key) for each in step):
                yield {**step, "seconds": float(step["seconds"]), "epoch": int(step["epoch"])}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{run.folder / FILE}: is not what a run writes: {error}") from error


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
    yield of_rows(claim, here, claim.judge(epoch), [Row(LAYERWISE, tuple(runs))], needs="seeds")


def by_epoch(run: NotedRun) -> dict[int, float]:
    """Variance over mean of the layer's importance, the mean of an epoch's readings; epochs count from 1."""
    readings: defaultdict[int, list[float]] = defaultdict(list)
    for step in having(run, VARIANCE):
        if step.get(MEAN) and step.get(VARIANCE):
            readings[step["epoch"] + 1].append(step[VARIANCE] / step[MEAN])
    return {epoch: statistics.mean(those) for epoch, those in sorted(readings.items())}


def turning(course: dict[int, float]) -> float:
    """The epoch that differs most from the one before, by the ratio of both; 0 where none differs by DRASTIC."""
    changes = {epoch: abs(math.log(course[epoch] / course[before])) for before, epoch in itertools.pairwise(course)}
    most = max(changes, key=changes.__getitem__)
    return float(most) if changes[most] >= math.log(DRASTIC) else 0.0
