"""Holders of a rank's exchange state, and how a saved state is restored, also from a run with another schedule."""

from collections.abc import Mapping, Sequence
from typing import Any

from wirebench.exchange import easgd, outer  # noqa: F401, saved states may be of theirs
from wirebench.exchange.driver import GRADIENTS
from wirebench.exchange.own_weights import OwnWeights
from wirebench.gradient.contract import Method

Holder = Method | OwnWeights
"""The rank's compressor or, if weights are exchanged, the state of that exchange."""


def exchanges(holder: Holder) -> str:
    """The name of what `holder` exchanges, as text for messages."""
    return GRADIENTS if isinstance(holder, Method) else holder.exchanges


def exchanged(state: Mapping[str, Any]) -> str:
    """The name of what the holder of `state` exchanged, as text for messages."""
    return next((each.exchanges for each in OwnWeights.kinds if each.made(state)), GRADIENTS)


def restore(holder: Holder, states: Sequence[Mapping[str, Any]], joins: bool = False, weight: float = 1.0) -> None:
    """Restore a saved state. `joins` and `weight`: see Method.take_over.

    A schedule that exchanges something else starts from the model, whose weights are restored already: residuals of
    gradients and residuals of weights' differences have different units.
    """
    if exchanged(states[0]) != exchanges(holder):
        if not isinstance(holder, Method):
            holder.restart()
    elif joins or len(states) > 1 or weight != 1:
        holder.take_over(states, joins, weight)
    else:
        holder.load_state_dict(states[0])
