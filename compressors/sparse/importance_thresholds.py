"""The importance that a coordinate must exceed: one for the run, one for every epoch, or one for every layer.

Cheng and Xu, arXiv 1901.01544, equation 4: a layer whose importance varies much, compared with its mean, gets a higher
threshold, another a lower one. "Much" is more than C, here the median over the layers in the epoch before. So C is
known when the first bucket of an epoch is exchanged, however the layers are cut into buckets.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Mode = Literal["fixed", "schedule", "layerwise"]
RATIOS, TYPICAL = "importance_ratios", "importance_typical"
MOST = 1e6
"""The most that a threshold, a factor on it and a factor on |w| may be: their product with any |w| stays in fp32."""


class Thresholds:
    """The threshold of a layer in an epoch.

    mode       fixed: `threshold`; schedule: the epoch's entry of `schedule`; layerwise: the same, adapted to the layer
    schedule   one threshold more than `epochs`, the epochs from which on the second, third ... hold
    beta       by how much a layer of the typical ratio differs, as a share
    limit      how many times larger or smaller it may become
    """

    def __init__(
        self, mode: Mode, threshold: float, schedule: Sequence[float], epochs: Sequence[int], beta: float, limit: float
    ) -> None:
        for each in (threshold, *schedule):
            if not 0 <= each <= MOST:
                raise ValueError(f"a threshold lies in [0, {MOST:g}], got {each}")
        if len(schedule) != len(epochs) + 1 or list(epochs) != sorted(set(epochs)) or any(e < 1 for e in epochs):
            raise ValueError(
                f"schedule_epochs are rising epochs from 1 on, one fewer than schedule's thresholds: "
                f"got {list(epochs)} for {list(schedule)}"
            )
        if not (0 <= beta <= MOST and 1 <= limit <= MOST):
            raise ValueError(f"beta lies in [0, {MOST:g}] and limit in [1, {MOST:g}], got {beta} and {limit}")
        self.mode, self.threshold, self.beta, self.limit = mode, threshold, beta, limit
        self.schedule, self.epochs = tuple(schedule), tuple(epochs)

    def base(self, epoch: int) -> float:
        """alpha: what holds in the epoch for all layers, or before it is adapted to each."""
        if self.mode == "fixed":
            return self.threshold
        return self.schedule[sum(epoch >= first for first in self.epochs)]

    def adapted(self, epoch: int, ratio: float, typical: float) -> float:
        """The threshold of a layer whose importance has this variance over mean; alpha where a ratio is unknown."""
        alpha = self.base(epoch)
        if not (math.isfinite(ratio) and math.isfinite(typical) and typical > 0):
            return alpha
        wanted = equation_4(ratio, typical, alpha, self.beta * alpha / typical)
        return min(max(wanted, alpha / self.limit), alpha * self.limit)


def equation_4(ratio: float, typical: float, alpha: float, beta: float) -> float:
    """The paper's threshold of a layer; `typical` is its C. It jumps by 2 beta C at C."""
    return alpha + beta * ratio if ratio > typical else alpha - beta * ratio


def due(shared: dict[str, Tensor], layers: Sequence[int], epoch: int, count: int) -> list[int]:
    """The layers, given as places among the model's `count`, that have given no ratio yet in this epoch."""
    taken = _table(shared, count)[1, list(layers)].tolist()
    return [layer for layer, when in zip(layers, taken, strict=True) if when != epoch]


def note(shared: dict[str, Tensor], layer: int, ratios: Sequence[float], epoch: int, count: int) -> None:
    """Remember a layer's ratio, the mean over the ranks that gave one."""
    known = [ratio for ratio in ratios if math.isfinite(ratio)]
    mean = sum(known) / len(known) if known else math.nan
    _table(shared, count)[:, layer] = torch.tensor([mean, epoch], dtype=torch.float64)


def typical_ratio(shared: dict[str, Tensor], epoch: int, count: int) -> float:
    """C of the epoch: the median of the ratios as they were when the epoch began; NaN if there were none."""
    if TYPICAL not in shared or shared[TYPICAL][0] != epoch:
        median = torch.nanquantile(_table(shared, count)[0], 0.5).item()
        shared[TYPICAL] = torch.tensor([epoch, median], dtype=torch.float64)
    return shared[TYPICAL][1].item()


def _table(shared: dict[str, Tensor], count: int) -> Tensor:
    """Rows: every layer's ratio, NaN if unknown, and the epoch in which it was taken."""
    if RATIOS not in shared:
        shared[RATIOS] = torch.tensor([[math.nan], [-1.0]], dtype=torch.float64).repeat(1, count)
    return shared[RATIOS]
