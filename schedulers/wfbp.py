"""Wait-free backpropagation: every layer is its own message, sent as soon as its gradient is there.

Zhang et al., "Poseidon", USENIX ATC 2017; the baseline of MG-WFBP (arXiv 1811.11141).
"""

from collections.abc import Sequence
from typing import ClassVar

from wirebench.exchange.driver import Driver
from wirebench.exchange.overlapped import Overlapped
from wirebench.gradient.schedule import Cost, LayerCost


class Wfbp:
    """One message per parameter tensor, in backward order."""

    needs_profile: ClassVar[bool] = False
    driver: ClassVar[type[Driver]] = Overlapped

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """One group per layer."""
        return [range(i, i + 1) for i in range(len(layers))]
