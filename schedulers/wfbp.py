"""Wait-free backpropagation: every layer is its own message, sent as soon as its gradient is there.

Zhang et al., "Poseidon", USENIX ATC 2017; the baseline of MG-WFBP (arXiv 1811.11141).
"""

from collections.abc import Sequence

from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient.schedule import Cost, LayerCost


class Wfbp(Scheduler):
    """One message per parameter tensor, in backward order."""

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """One group per layer."""
        return [range(i, i + 1) for i in range(len(layers))]
