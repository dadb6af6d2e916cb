"""No overlap at all: every layer is its own message, sent after the backward pass (MG-WFBP, Eq. 3)."""

from collections.abc import Sequence

from wirebench.exchange.overlapped import AfterBackward
from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient.schedule import Cost, LayerCost


class Naive(Scheduler):
    """One message per parameter tensor, in backward order, once all gradients are there."""

    driver = AfterBackward

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """One group per layer."""
        return [range(i, i + 1) for i in range(len(layers))]
