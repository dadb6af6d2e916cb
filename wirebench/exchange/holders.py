"""What keeps a rank's state of the exchange, and how it gets back what was saved, also by a run of another schedule."""

from collections.abc import Mapping, Sequence
from typing import Any

from wirebench.exchange.anchored import Anchored
from wirebench.exchange.easgd import Pull
from wirebench.gradient.contract import Method

Holder = Method | Pull | Anchored
"""The rank's compressor or, where weights are sent, its side of that."""
GRADIENTS = "gradients"
BY_MODE = {"outer": Anchored.exchanges, "elastic": Pull.exchanges}
"""What is exchanged, by the scheduler's mode; by any other gradients."""


def exchanges(holder: Holder) -> str:
    """What its state is about, in words."""
    return GRADIENTS if isinstance(holder, Method) else holder.exchanges


def exchanged(state: Mapping[str, Any]) -> str:
    """What the state of a holder is about, in words."""
    return next((each.exchanges for each in (Anchored, Pull) if each.keys <= state.keys()), GRADIENTS)


def restore(holder: Holder, states: Sequence[Mapping[str, Any]], joins: bool = False, weight: float = 1.0) -> None:
    """Go on from what was saved. `joins` and `weight`: see Method.take_over.

    A schedule that exchanges something else goes on from the model, which has its weights already: residuals of
    gradients are in other units than those of weights' differences.
    """
    if exchanged(states[0]) != exchanges(holder):
        if not isinstance(holder, Method):
            holder.restart()
    elif joins or len(states) > 1 or weight != 1:
        holder.take_over(states, joins, weight)
    else:
        holder.load_state_dict(states[0])
