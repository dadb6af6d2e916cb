"""One rank's side of local steps with an outer optimizer: its weights, the anchor, and what is under way."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from wirebench.errors import UserError
from wirebench.exchange.lane import Lane
from wirebench.exchange.own_weights import OwnWeights
from wirebench.gradient.contract import OWN, SHARED
from wirebench.gradient.flat import Bucket

NEVER = -1
_PREFIX = "outer."
_OWN, _SHARED = f"{OWN}{_PREFIX}", f"{SHARED}{_PREFIX}"


class OuterRule(Protocol):
    """A scheduler whose groups are fragments of such exchanges (schedulers/outer.py)."""

    every: int
    fragments: int
    rate: float
    momentum: float
    nesterov: bool
    delay: int
    keep: float

    def starts(self, fragment: int, step: int) -> bool:
        """Whether the fragment is sent after this step, the first being 0."""
        ...


class Anchored(OwnWeights):
    """One rank's weights beside the anchor that all ranks share; saved and restored as a compressor's state is.

    anchor    the weights that the outer optimizer updates; velocity: its momentum; all flat, in backward order
    message   a fragment's difference, and later the ranks' mean of it
    due       by fragment, the step after which its mean is applied; NEVER: nothing is under way
    sent      by fragment, how often it was exchanged
    """

    exchanges: ClassVar[str] = "weights' differences"
    prefix: ClassVar[str] = _PREFIX
    shared: ClassVar[str] = "anchor"

    def __init__(self, lane: Lane, optimizer: Optimizer, rule: OuterRule) -> None:
        super().__init__(lane, optimizer)
        self.rule, self.anchor = rule, self.common
        self.velocity = torch.zeros_like(self.anchor)
        self.message = torch.zeros_like(self.anchor)
        self.due = torch.full((len(lane.buckets),), NEVER, dtype=torch.int64)
        self.sent = torch.zeros_like(self.due)
        self.takes_over = lane.compressor.takes_over

    def state_dict(self) -> dict[str, Any]:
        """The compressor's state, the rank's own weights and optimizer, and what all ranks share."""
        shared = {
            "velocity": self.velocity, "message": self.message,
            "due": self.due, "sent": self.sent, "cuts": self._cuts(), "rhythm": self._rhythm(),
        }  # fmt: skip
        mine = {**self.lane.compressor.state_dict(), **super().state_dict()}
        return mine | {f"{_SHARED}{name}": value for name, value in shared.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; the model's weights are the rank's own then."""
        self.lane.compressor.load_state_dict(_compressors(state))
        super().load_state_dict(state)
        self._go_on(state)

    def take_over(self, states: Sequence[Mapping[str, Any]], joins: bool = False, weight: float = 1.0) -> None:
        """Begin in another world, as far from the anchor as the ranks that are taken over were (own_weights.py).

        The inner optimizer's state is the first one's. Means under way are applied now if the new world counts its
        steps in another way. A world of the same size does not: there some ranks continue with their own state, and
        this rank may replace a lost one.
        """
        super().take_over(states, joins, weight)
        self._go_on(states[0], recounts=weight != 1)
        self.lane.compressor.take_over([_compressors(state) for state in states], joins, weight)

    def restart(self) -> None:
        """Begin from the model's current weights, and forget all earlier exchanges."""
        super().restart()
        self.velocity.zero_()
        self.due.fill_(NEVER)
        self.sent.zero_()

    def _go_on(self, state: Mapping[str, Any], recounts: bool = False) -> None:
        """Restore the exchanges: wait for the means that are under way, or apply them now if their delay is not over.

        recounts  steps are counted otherwise from now on, so that what is due has no meaning; nor has it where
                  fragments are cut anew, or are sent at other steps
        """
        for name, mine in (("velocity", self.velocity), ("message", self.message)):
            mine.copy_(state[f"{_SHARED}{name}"])
        # Fragments that are cut anew go on with the number of the last one; of before it was saved: with the first.
        sent = state.get(f"{_SHARED}sent", torch.zeros(1))
        self.sent.copy_(sent) if sent.shape == self.sent.shape else self.sent.fill_(int(sent.max()))
        due, cuts, rhythm = (state.get(f"{_SHARED}{name}") for name in ("due", "cuts", "rhythm"))
        assert due is not None
        self.due.fill_(NEVER)
        under_way = [place for place, step in enumerate(due.tolist()) if step != NEVER]
        if not under_way:
            return
        if cuts is None and len(due) != len(self.due):  # of before cuts were saved
            raise UserError(
                f"the saved state does not say how its {len(due)} fragments are cut, of which one is under way; go on "
                f"with as many fragments, not with {len(self.due)}"
            )
        cuts, rhythm = self._cuts() if cuts is None else cuts.cpu(), self._rhythm() if rhythm is None else rhythm.cpu()
        if torch.equal(cuts, self._cuts()) and torch.equal(rhythm, self._rhythm()) and not recounts:
            self.due.copy_(due)
            return
        for place in under_way:
            self.apply(*cuts[place].tolist())

    def _rhythm(self) -> Tensor:
        """The schedule of the fragments' exchanges: steps between them, and their delay."""
        return torch.tensor([self.rule.every, self.rule.delay])

    def _cuts(self) -> Tensor:
        """The begin and end of each fragment, shape (fragments, 2)."""
        return torch.tensor([(bucket.start, bucket.stop) for bucket in self.lane.buckets])

    def magnitude(self) -> float | None:
        """With what its compressor remembers of such differences."""
        held, away = self.lane.compressor.magnitude(), super().magnitude()
        return None if held is None or away is None else held + away

    def next_exchange(self, fragment: int) -> int:
        """The number of the exchange that begins, the fragment's first being 0."""
        self.sent[fragment] += 1
        return int(self.sent[fragment]) - 1

    def put(self, bucket: Bucket) -> Bucket:
        """The fragment's difference, in place of its gradient."""
        piece = slice(bucket.start, bucket.stop)
        self.flat.gather_weights(self.message, self._layers_in(bucket.start, bucket.stop))
        torch.sub(self.anchor[piece], self.message[piece], out=self.message[piece])
        return replace(bucket, grad=self.message[piece], param=self.anchor[piece])

    @torch.no_grad()
    def apply(self, start: int, stop: int) -> None:
        """Let the outer optimizer step with this piece of the mean difference, and bring the weights to the anchor.

        start, stop  elements of whole layers: a fragment's, of this cut or of an earlier one
        """
        rule, piece = self.rule, slice(start, stop)
        mean, anchor, velocity = self.message[piece], self.anchor[piece], self.velocity[piece]
        if rule.momentum:
            velocity.mul_(rule.momentum).add_(mean)
            mean = mean.add(velocity, alpha=rule.momentum) if rule.nesterov else velocity
        anchor.sub_(mean, alpha=rule.rate)
        layers = self._layers_in(start, stop)
        torch._foreach_lerp_([*self.flat.parameters[layers]], self.flat.views_of(self.anchor, layers), 1 - rule.keep)

    def _layers_in(self, start: int, stop: int) -> slice:
        """The layers that lie between two places of the flat gradient."""
        inside = [place for place, layer in enumerate(self.flat.layers) if start <= layer.start and layer.stop <= stop]
        return slice(inside[0], inside[-1] + 1)


def _compressors(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if not name.startswith((_OWN, _SHARED))}
