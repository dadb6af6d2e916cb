"""Worlds of compressors that return updates: three ranks, a few steps of noise, what each returned and keeps."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tests.helpers import Log, exchange, lay_out
from wirebench import compressors
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
    results = [each.clone() for each in exchange(methods, grads, LAYERS, log, step=step)]
    assert all(torch.equal(each, results[0]) for each in results)
    return results[0]
