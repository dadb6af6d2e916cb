"""The whole gradient in one message, after the backward pass.

The MG-WFBP paper calls it SyncEASGD (arXiv 1811.11141, section II), since it takes from Sync EASGD the single message
alone. It is plain synchronous SGD. `sync_easgd` is an alias of the name, which the paper's tables, earlier configs and
earlier records have; elastic averaging is `easgd`.
"""

from collections.abc import Sequence

from wirebench.exchange.overlapped import AfterBackward
from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient.schedule import Cost, LayerCost


class Single(Scheduler):
    """One message of all layers."""

    driver = AfterBackward

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """A single group."""
        return [range(len(layers))]
