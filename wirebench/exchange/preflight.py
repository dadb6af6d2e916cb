"""A tiny exchange before a run begins: limits of a compressor or an engine raise an error before any file is written.

Examples are a compressor that does not support the number of ranks or the dtype, and a mistake in a plugin. Without
this check they would show only at the first real exchange, when an earlier run's files have been moved aside.
"""

from collections.abc import Callable, Sequence

import torch

from wirebench.exchange.advance import advance, run
from wirebench.exchange.consistency import check_averages
from wirebench.exchange.lane import Lane
from wirebench.gradient import conformance
from wirebench.gradient.contract import Compressor
from wirebench.gradient.flat import Bucket, Layer
from wirebench.utils.rng import generator

LAYERS = (Layer("matrix", 0, 64, 2, 8), Layer("vector", 64, 68, 1, 4))


def preflight(lanes: Sequence[Lane], fresh: Callable[[], Compressor]) -> None:
    """Exchange a few numbers between all ranks; every rank calls it. Raises UserError for what cannot be done.

    fresh  makes a compressor that is thrown away afterwards, so that the run's own begins without memory of this
    """
    exchanges = []
    for lane in lanes:
        grad = torch.randn(LAYERS[-1].stop, generator=generator("preflight", lane.world.rank)).to(lane.flat.grad)
        bucket = Bucket(0, grad, torch.ones_like(grad), LAYERS, LAYERS)
        exchanges.append(advance(conformance.exchange(fresh(), bucket, lane.world), lane.server.serve))
    check_averages(lanes, run(exchanges), "a trial before the first step")
    for lane in lanes:
        lane.server.take_log()
