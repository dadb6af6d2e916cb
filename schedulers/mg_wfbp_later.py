"""The rule of the MG-WFBP authors' later code, which merges only what is not hidden anyway.

Shi, Chu and Li, "MG-WFBP: Merging Gradients Wisely for Efficient Communication in Distributed Deep Learning", TPDS
2021, as implemented in the authors' code for DeAR.
"""

from collections.abc import Sequence

from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient.schedule import Cost, LayerCost
from wirebench.schedulers.parts.greedy import Pending, merge


class MgWfbpLater(Scheduler):
    """Like `mg_wfbp`, but a message that would end before the next gradient is ready is sent at once.

    least_elements  a smaller group waits for the next layer in any case; 0: off
    """

    needs_profile = True

    def __init__(self, least_elements: int = 8192) -> None:
        if least_elements < 0:
            raise ValueError(f"least_elements is at least 0, got {least_elements}")
        self.least_elements = least_elements

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """Groups of layers that wait for each other; O(L)."""
        start_up = cost(0)

        def joins(pending: Pending) -> bool:
            if pending.numel < self.least_elements:
                return True
            hidden = pending.start + cost(pending.numel) <= pending.next_ready
            return not hidden and pending.next_ready - pending.start < start_up

        return merge(layers, cost, joins)
