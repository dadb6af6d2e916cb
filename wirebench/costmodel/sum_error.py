"""The error of a sum in few bits, from the plan that makes it: the law of docs/sums.md.

Quantising loses a share of the energy of all that the plan codes. The energy of a sum of h gradients of one size is
h + h(h - 1)c, if two ranks' gradients have the correlation c: 0 for noise, 1 for gradients that are alike. So the
number of gradients in each message is enough, and no gradient is needed.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wirebench.collectives.plan import Plan, copied_pieces, messages

MOST_RANKS = 256
"""Of the largest plan that is looked at: a ring's has 130,000 transfers."""


class CodedEnergy(NamedTuple):
    """Energy of all that a plan codes, over the sum's.

    within   of messages within a machine, where they have a format of their own; between: of all others
    """

    between: float
    within: float

    def error(self, lost: float, lost_within: float = 0.0) -> float:
        """The relative error: root of the squares of what is off, over the root of the sum's squares.

        lost  share of a gradient's energy that the format between machines cuts off; lost_within: the format within
        """
        return math.sqrt(lost * self.between + lost_within * self.within)


def coded_energy(plan: Plan, alike: float) -> CodedEnergy:
    """What the plan, which has a wire format, codes of gradients of one size whose correlation is `alike`.

    A plan without its copy half is a reduce-scatter.
    """
    wire = plan.wire
    assert wire is not None, "a plan with a wire format"
    size = len(wire.machines)
    items = max(t.stop for transfers in (*plan.reduce, *plan.copy) for t in transfers)
    held = np.ones((size, items))
    between = within = 0.0
    for transfers in plan.reduce:
        for each in messages(transfers):
            energy = float(_energy(held[each.src, each.start : each.stop], alike).sum())
            if wire.code(each.src, each.dst) == wire.between:
                between += energy
            else:
                within += energy
        sent = [held[t.src, t.start : t.stop].copy() for t in transfers]
        for t, content in zip(transfers, sent, strict=True):
            place = held[t.dst, t.start : t.stop]
            place[:] = content if t.fresh else place + content
    whole = size + size * (size - 1) * alike
    between += sum(stop - start for start, stop, _ in copied_pieces(plan)) * whole
    return CodedEnergy(between / (items * whole), within / (items * whole))


def _energy(gradients: NDArray[np.float64], alike: float) -> NDArray[np.float64]:
    """Of sums of these numbers of gradients, in energies of one."""
    return gradients + gradients * (gradients - 1) * alike
