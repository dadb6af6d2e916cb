"""What the steps.jsonl of a training tells beside its record: bytes sent over time, and how importance is distributed.

A study's own runs do not keep the file; runs that a user makes by a claim's command do.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

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
