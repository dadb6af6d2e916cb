"""Worlds of compressors that return updates: three ranks, a few steps of noise, what each returned and keeps."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.helpers import Log, answer_all, cut, lay_out
from wirebench import compressors
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Method

SHAPES = [(6, 8), (5,), (3, 2, 2), (7, 3)]
LAYERS = lay_out(SHAPES)
NUMEL = LAYERS[-1].stop
RANKS = 3


def gradients(step: int, ranks: int = RANKS, numel: int = NUMEL) -> list[Tensor]:
    """One for each rank."""
    chance = torch.Generator().manual_seed(step)
    return [torch.randn(numel, generator=chance) for _ in range(ranks)]


def world_of(name: str, ranks: int = RANKS, **options: Any) -> list[Method]:
    """A fresh compressor for each rank."""
    return [compressors.build(name, **options) for _ in range(ranks)]


def step_of(methods: Sequence[Method], step: int, grads: Sequence[Tensor], log: Log | None = None) -> Tensor:
    """One exchange of the whole model; what all ranks returned, which is the same to the bit."""
    buckets = [cut(grad.clone(), LAYERS, [range(len(LAYERS))])[0] for grad in grads]
    worlds = [ExchangeContext(rank, len(methods), step) for rank in range(len(methods))]
    exchanges = [m.exchange(b, w) for m, b, w in zip(methods, buckets, worlds, strict=True)]
    results = [each.clone() for each in answer_all(exchanges, log)]
    assert all(torch.equal(each, results[0]) for each in results)
    return results[0]
