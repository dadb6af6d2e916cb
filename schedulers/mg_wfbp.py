"""Merged-gradient wait-free backpropagation, as printed: Shi and Chu, INFOCOM 2019 (arXiv 1811.11141), Algorithm 1.

Its Theorem 1 calls the result optimal. It is not: the rule looks one layer ahead, forgets what a longer message costs,
and never undoes a merge. An example has three layers of 90 s and 35 bytes, a = 100 s and b = 1 s. The rule sends one
message and ends at 475 s. Sending the first layer with the second and the third alone ends at 440 s (`optimal`).
"""

from collections.abc import Sequence

from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient.schedule import Cost, LayerCost
from wirebench.schedulers.parts.greedy import merge


class MgWfbp(Scheduler):
    """A layer waits for the next one where that takes less than a start-up: R(l-1) - tau_c(l) < a (Eq. 27).

    With the slips of the printed Algorithm 1 put right: tau_b starts at t_f, the loops reach layer 1, and the gradient
    of layer l-1 is ready at tau_b(l-2), or at the end of the backward pass for l = 2.
    """

    needs_profile = True

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """Groups of layers that wait for each other; O(L)."""
        start_up = cost(0)
        return merge(layers, cost, lambda pending: pending.next_ready - pending.start < start_up)
