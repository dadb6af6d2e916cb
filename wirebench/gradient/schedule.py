"""What a schedule is made of: layers with their costs, and how long exchanges take."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple


class LayerCost(NamedTuple):
    """A layer as a scheduler sees it: its name, its elements, and the seconds its part of the backward pass takes."""

    name: str
    numel: int
    backward_seconds: float = 0.0


Cost = Callable[[int], float]
"""cost(numel): seconds of one exchange of `numel` elements; its start-up time is cost(0)."""


def ready_times(layers: Sequence[LayerCost]) -> list[float]:
    """Seconds from the start of the backward pass until each layer's gradient is there."""
    return list(accumulate(layer.backward_seconds for layer in layers))


class Duration(NamedTuple):
    """Seconds of a bucket's exchange.

    seconds       of all of it; under a `split` schedule, up to the end of its first sum's reduce-scatter
    copy_seconds  under a `split` schedule, of the all-gather and all that follows it; else 0
    """

    seconds: float
    copy_seconds: float = 0.0
