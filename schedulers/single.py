"""SyncEASGD as MG-WFBP reads it: the whole gradient in one message, after the backward pass.

It is plain synchronous SGD: nothing elastic is averaged (MG-WFBP, arXiv 1811.11141, section II, which takes from Sync
EASGD the single message alone). The name is kept because the paper's tables use it; elastic averaging is `easgd`.
"""

from collections.abc import Sequence

from wirebench.exchange.overlapped import AfterBackward
from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient.schedule import Cost, LayerCost


class SyncEasgd(Scheduler):
    """One message of all layers."""

    driver = AfterBackward

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """A single group."""
        return [range(len(layers))]
