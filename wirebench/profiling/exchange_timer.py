"""What an exchange costs inside the running job: the compressor's own exchange, timed at some sizes on all ranks.

Unlike a network benchmark's it includes compression, the copies of every call and the engine's own handling, which make
many small messages dearer than the network's start-up time alone.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from wirebench.comm.engine import Engine
from wirebench.comm.peers import gather
from wirebench.costmodel.piecewise import Points, spans
from wirebench.exchange.advance import Serve, advance, run
from wirebench.exchange.lane import Lane
from wirebench.gradient import conformance
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Compressor
from wirebench.gradient.flat import Bucket
from wirebench.utils.rng import generator

SECONDS_EACH, MOST_REPEATS = 0.3, 10
"""Time that is spent on each size, and how often at most it is timed."""


def measure_exchange(engine: Engine, lane: Lane, fresh: Callable[[], Compressor]) -> Points:
    """(elements, seconds) of one exchange at several sizes: medians of repeats, then of ranks; the same on all ranks.

    fresh  makes a compressor of the run's kind for each size: the run's own keeps its residuals
    Every rank calls it, between two steps. Buckets are runs of the model's own layers, so that matrices keep their
    shapes; the gradients are noise, of this rank alone, as large as the last step's.
    """
    flat, world = lane.flat, lane.world
    alike = ExchangeContext(world.rank, world.size, world.step, world.epoch, world.seed)
    models = (flat.bucket(0, layers) for layers in spans(tuple(layer.numel for layer in flat.layers)))
    buckets = (replace(flat.with_weights(model), grad=model.grad.clone()) for model in models)
    points = time_buckets(engine, buckets, flat.grad.std(), alike, lane.server.serve, fresh)
    lane.server.take_log()
    return points


def time_buckets(
    engine: Engine,
    buckets: Iterable[Bucket],
    scale: Tensor | float,
    world: ExchangeContext,
    serve: Serve,
    fresh: Callable[[], Compressor],
) -> Points:
    """(elements, seconds) of one exchange of each of these buckets, whose gradients are overwritten by noise.

    scale  the standard deviation of the noise
    See `measure_exchange`.
    """
    points, noise = [], torch.empty(0)
    for bucket in buckets:
        if not noise.numel():
            noise = torch.randn(bucket.model_numel, generator=generator("exchange profile", world.rank))
            noise = noise.to(bucket.grad)
            noise *= scale
        compressor = fresh()

        def exchange(bucket: Bucket = bucket, compressor: Compressor = compressor) -> None:
            run([advance(conformance.exchange(compressor, bucket, world), serve)])

        fill = partial(bucket.grad.copy_, noise[bucket.start : bucket.stop])
        points.append((bucket.grad.numel(), _median_of(engine, bucket.grad.device, exchange, fill)))
    return points


def measure_native(engine: Engine, numels: Sequence[int]) -> Points:
    """(elements, seconds) of the engine's own all-reduce of fp32 tensors of these sizes; every rank calls it."""
    points = []
    for numel in sorted(set(numels)):
        tensor = torch.zeros(numel, device=engine.device)
        points.append((numel, _median_of(engine, tensor.device, partial(_sum, engine, tensor))))
    return points


def _sum(engine: Engine, tensor: Tensor) -> None:
    engine.communicators[0].all_reduce(tensor).wait()


def _median_of(
    engine: Engine, device: torch.device, work: Callable[[], object], prepare: Callable[[], object] = lambda: None
) -> float:
    """Seconds of `work`: after one warm-up call, the median of the calls that fit into the time, then of the ranks."""
    ranks = engine.communicators[0]

    def once() -> float:
        prepare()
        # A barrier: all ranks begin at once, so that none is charged with waiting for another.
        ranks.all_reduce(torch.zeros(1)).wait()
        begin = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begin

    # The slowest rank decides how often, so that all ranks repeat it equally often.
    slowest = max(gather(ranks, once()))
    repeats = max(1, min(MOST_REPEATS, int(SECONDS_EACH / max(slowest, 1e-9))))
    return float(np.median(gather(ranks, float(np.median([once() for _ in range(repeats)])))))
