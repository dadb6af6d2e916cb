"""Drivers of schedules under which every rank has weights of its own, and what such a rank saves.

What is exchanged keeps the weights near those that all ranks share, e.g. EASGD's centre. The shared ones are evaluated
and saved as the model.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from wirebench.exchange.driver import Driver, Parts
from wirebench.exchange.lane import Lane
from wirebench.gradient.contract import OWN, SHARED
from wirebench.gradient.optimizer_state import OptimizerState
from wirebench.utils.background import Background, SideStream


class OwnWeights:
    """One rank's weights beside the common ones; saved and restored as a compressor's state is.

    optimizer   the rank's; its state is the rank's own too
    common      the weights that all ranks share, flat, in backward order
    own         the rank's weights while the model holds the common ones

    kinds       all such classes
    exchanges   what travels, in words
    prefix      of the names in its state, so that no other kind has the same
    shared      the name of the common weights in its state
    takes_over  see Method
    """

    kinds: ClassVar[list[type["OwnWeights"]]] = []
    exchanges: ClassVar[str]
    prefix: ClassVar[str] = ""
    shared: ClassVar[str]
    takes_over: bool = True

    def __init_subclass__(cls) -> None:
        OwnWeights.kinds.append(cls)

    def __init__(self, lane: Lane, optimizer: Optimizer) -> None:
        self.lane, self.flat = lane, lane.flat
        self.optimizer = OptimizerState(optimizer, lane.flat)
        self.common = self.flat.gather_weights()
        self.own: Tensor | None = None

    @classmethod
    def keys(cls) -> tuple[str, str, str]:
        """The keys of the rank's weights, of the common ones, and of the optimizer in a saved state."""
        return f"{OWN}{cls.prefix}weights", f"{SHARED}{cls.prefix}{cls.shared}", f"{OWN}{cls.prefix}optimizer"

    @classmethod
    def made(cls, state: Mapping[str, Any]) -> bool:
        """Whether this state is of such weights."""
        return {*cls.keys()[:2]} <= state.keys()

    @property
    def mine(self) -> Tensor:
        """The rank's own weights, flat."""
        return self.flat.gather_weights() if self.own is None else self.own

    def state_dict(self) -> dict[str, Any]:
        """The rank's own weights and optimizer, and what all ranks share."""
        return dict(zip(self.keys(), (self.mine, self.common, self.optimizer.state_dict()), strict=True))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; the model's weights are the rank's own then."""
        weights, common, optimizer = (state[key] for key in self.keys())
        self.flat.set_weights(weights.to(self.common))
        self.common.copy_(common)
        self.optimizer.load_state_dict(optimizer)

    def take_over(self, states: Sequence[Mapping[str, Any]], joins: bool = False, weight: float = 1.0) -> None:
        """Begin in another world, as far from the common weights as the ranks that are taken over were.

        The optimizer's state is the first one's.
        """
        OwnWeights.load_state_dict(self, states[0])
        own = [] if joins else [state[self.keys()[0]] for state in states]
        self.flat.set_weights(together(own, self.common, weight))

    def restart(self) -> None:
        """Begin from the model's current weights, and forget all earlier exchanges."""
        self.flat.gather_weights(self.common)

    def magnitude(self) -> float | None:
        """How far its weights are from the common ones, as a sum of magnitudes: what is lost with the rank.

        Its optimizer's state is lost, too, but is in other units.
        """
        return float((self.mine - self.common).abs().sum(dtype=torch.float64))


def together(weights: Sequence[Tensor], common: Tensor, weight: float) -> Tensor:
    """A rank's weights in place of several ranks' weights in an earlier world; `common` if it replaces no rank.

    Only the ranks' mean distance from the common weights matters, so that mean must not change. As with residuals, the
    distances are added and multiplied by `weight`, the new world size over the earlier one.
    """
    mine = common.clone()
    for each in weights:
        mine.add_(each - common, alpha=weight)
    return mine


class WeightsDriver(Driver):
    """Gradients stay where they are; what keeps the weights together is exchanged, beside the steps if `overlaps`.

    overlaps  exchanges run in a thread: one lane, as in a process of a real job
    """

    updates: ClassVar[bool] = True
    holders: Sequence[OwnWeights]

    def __init__(self, lanes: Sequence[Lane], holders: Sequence[OwnWeights], overlaps: bool) -> None:
        super().__init__(lanes)
        self.holders, self.overlaps = holders, overlaps
        self._background = Background("exchange")
        self._device = lanes[0].flat.grad.device
        self._side = SideStream(self._device, wanted=overlaps)
        for lane in lanes:
            lane.attach(lambda _: None)

    @classmethod
    def accepts(cls, parts: Parts) -> str | None:
        """No exchange has a gradient in it that could be measured."""
        if parts.health_every:
            return "exchanges no gradients to look into; set output.health_every=0"
        return super().accepts(parts)

    def finish(self) -> None:
        """Each rank's gradient is its own."""
        for lane in self.lanes:
            lane.fill_unused()

    @contextmanager
    def evaluation_view(self) -> Iterator[None]:
        """Meanwhile the models hold the common weights: they are what is evaluated and saved."""
        for holder in self.holders:
            holder.own = holder.flat.gather_weights()
            holder.flat.set_weights(holder.common)
        try:
            yield
        finally:
            for holder in self.holders:
                assert holder.own is not None
                holder.flat.set_weights(holder.own)
                holder.own = None

    def close(self) -> None:
        """Detach from the models, end the thread."""
        super().close()
        self._background.close()

    def _start(self, exchange: Callable[[], object]) -> threading.Event:
        """Run `exchange` in the thread, on a stream of its own; the event is set when it has ended, see `_await`."""
        ready = self._side.mark()

        def on_stream() -> None:
            with self._side.behind(ready):
                exchange()

        ended = threading.Event()
        self._background.submit(on_stream, ended.set)
        return ended

    def _await(self, ended: threading.Event) -> None:
        """Return when the exchange of `_start` has ended; raises what it raised."""
        ended.wait()
        if self._background.error is not None:
            raise self._background.error
        if self._side.stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._side.stream)
