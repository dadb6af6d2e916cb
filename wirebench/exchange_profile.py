"""What an exchange costs inside the running job: the compressor's own exchange, timed at some sizes on all ranks.

What a network benchmark leaves out is in it: compression, the copies of every call, the engine's own handling. That is
what makes many small messages dearer than a network's start-up time says.
"""

import json
import math
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
import torch

from wirebench.comm.engine import Engine
from wirebench.comm.peers import gather_bytes
from wirebench.exchange import advance, run
from wirebench.lane import Exchanger, Lane
from wirebench.layout import Bucket
from wirebench.piecewise import Points
from wirebench.seeding import generator
from wirebench.world import World

SMALLEST, FACTOR = 256, 4
"""Sizes that are tried: about so many elements, and so many times more, up to the whole model."""
SECONDS_EACH, MOST_REPEATS = 0.3, 10


def measure_exchange(engine: Engine, lane: Lane, fresh: Callable[[], Exchanger]) -> Points:
    """Seconds of one exchange by its size: medians of repeats, then of ranks; the same on all ranks.

    fresh  makes a compressor that the exchanges may use up
    Every rank calls it, between two steps. Buckets are runs of the model's own layers, so that matrices keep their
    shapes; the gradients are noise, of this rank alone, as large as the last step's.
    """
    flat, world = lane.flat, lane.world
    noise = torch.randn(flat.grad.numel(), generator=generator("exchange profile", world.rank)).to(flat.grad)
    noise *= flat.grad.std()
    points = []
    alike = World(world.rank, world.size, world.step, world.epoch, world.seed)
    for layers in spans(tuple(layer.numel for layer in flat.layers)):
        model = flat.bucket(0, layers)
        bucket, compressor = Bucket(0, model.grad.clone(), model.param, model.layers, model.model), fresh()

        def once(bucket: Bucket = bucket, compressor: Exchanger = compressor) -> float:
            bucket.grad.copy_(noise[bucket.start : bucket.stop])
            engine.communicators[0].all_reduce(torch.zeros(1)).wait()
            begin = time.perf_counter()
            run([advance(compressor.exchange(bucket, alike), lane.server.serve)])
            if bucket.grad.device.type == "cuda":
                torch.cuda.synchronize(bucket.grad.device)
            return time.perf_counter() - begin

        points.append((bucket.grad.numel(), _median_of(engine, once)))
    lane.server.take_log()
    return points


def measure_native(engine: Engine, numels: Sequence[int]) -> Points:
    """Seconds of the engine's own sum of so many fp32 elements, each size once; every rank calls it."""
    points = []
    for numel in sorted(set(numels)):
        tensor = torch.zeros(numel, device=engine.device)

        def once(tensor: torch.Tensor = tensor) -> float:
            engine.communicators[0].all_reduce(torch.zeros(1)).wait()
            begin = time.perf_counter()
            engine.communicators[0].all_reduce(tensor).wait()
            if tensor.device.type == "cuda":
                torch.cuda.synchronize(tensor.device)
            return time.perf_counter() - begin

        points.append((numel, _median_of(engine, once)))
    return points


@lru_cache(maxsize=64)
def spans(sizes: tuple[int, ...]) -> list[range]:
    """Runs of neighbouring layers of about SMALLEST elements, FACTOR times as many and so on; the last is all."""
    ends = [0, *accumulate(sizes)]
    found: dict[int, range] = {}
    target = SMALLEST
    while target < ends[-1]:
        tries = (range(i, _nearest(ends, i, target)) for i in range(len(sizes)))
        best = min(tries, key=lambda r: abs(math.log((ends[r.stop] - ends[r.start]) / target)))
        found.setdefault(ends[best.stop] - ends[best.start], best)
        target *= FACTOR
    found[ends[-1]] = range(len(sizes))
    return [found[size] for size in sorted(found)]


def _nearest(ends: Sequence[int], start: int, target: int) -> int:
    """The end of the run from layer `start` on whose elements come nearest to `target`; at least one layer."""
    stop = bisect_left(ends, ends[start] + target)
    stop = min(max(stop, start + 1), len(ends) - 1)
    shorter = stop - 1
    if shorter > start and ends[start] + target - ends[shorter] < ends[stop] - ends[start] - target:
        return shorter
    return stop


def _median_of(engine: Engine, once: Callable[[], float]) -> float:
    """After one call to warm up, the median of as many as the time allows, then of ranks."""
    slowest = max(_of_ranks(engine, once()))
    repeats = max(1, min(MOST_REPEATS, int(SECONDS_EACH / max(slowest, 1e-9))))
    return float(np.median(_of_ranks(engine, float(np.median([once() for _ in range(repeats)])))))


def _of_ranks(engine: Engine, seconds: float) -> list[float]:
    return [json.loads(text) for text in gather_bytes(engine.communicators[0], json.dumps(seconds).encode())]
