"""No overlap at all: every layer is its own message, sent after the backward pass (MG-WFBP, Eq. 3)."""

from collections.abc import Sequence
from typing import ClassVar

from wirebench.exchange.driver import Driver
from wirebench.exchange.overlapped import AfterBackward
from wirebench.gradient.schedule import Cost, LayerCost


class Naive:
    """One message per parameter tensor, in backward order, once all gradients are there."""

    needs_profile: ClassVar[bool] = False
    driver: ClassVar[type[Driver]] = AfterBackward

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """One group per layer."""
        return [range(i, i + 1) for i in range(len(layers))]
