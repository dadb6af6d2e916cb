"""ASC-WFBP: a message waits for the next gradient only while the network is busy anyway.

Shi, Chu and Li, "Exploiting Simultaneous Communications to Accelerate Data Parallel Distributed Deep Learning", INFOCOM
2021. Its other half, two messages on the wire at once, is not here: messages go one after the other, as with all our
schedulers.
"""

from collections.abc import Sequence

from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient.schedule import Cost, LayerCost
from wirebench.schedulers.parts.greedy import Pending, merge


class AscWfbp(Scheduler):
    """A layer joins the pending group where it is ready before that group could start."""

    needs_profile = True

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """Groups of layers that were ready before the network was; O(L)."""

        def joins(pending: Pending) -> bool:
            return pending.start > pending.next_ready

        return merge(layers, cost, joins)
