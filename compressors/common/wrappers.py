"""Wrappers around any compressor: what is compressed, and how strongly at the start."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from wirebench.compressors import kernels
from wirebench.compressors.common.dense import dense_average
from wirebench.compressors.common.feedback import Feedback
from wirebench.compressors.sparse.gaps import joined
from wirebench.errors import UserError
from wirebench.gradient.conformance import name_of
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Method
from wirebench.gradient.flat import Bucket, Layer
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Sum

BYTES_PER_ELEMENT = 4
VELOCITY_KEY = "shared.dense_velocity"


class Wrapper(Method):
    """Base of wrappers: everything that a wrapper does not change is the inner method's."""

    def __init__(self, inner: Method) -> None:
        super().__init__()
        self.inner: Method = inner
        for name in set(Method.__annotations__) - {"inner", "restored"}:
            setattr(self, name, getattr(inner, name))
        self.memory, self.measures = inner.memory, inner.measures

    @property
    def restored(self) -> int:  # type: ignore[override]
        """See Method."""
        return self.inner.restored

    def wire_bytes(self, numel: int, size: int) -> int:
        """The inner method's bytes, after a warm-up: that is in most of the run."""
        return self.inner.wire_bytes(numel, size)

    def prepare(self, device: torch.device) -> None:
        """See Method.prepare."""
        self.inner.prepare(device)

    def scatter(self, whole: Tensor, world: ExchangeContext) -> Exchange:
        """See Method.scatter."""
        return self.inner.scatter(whole, world)

    def state_dict(self) -> dict[str, Tensor]:
        """The inner method's state; the wrapper has none."""
        return self.inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the inner method's state."""
        self.inner.load_state_dict(state)

    def take_over(self, states: Sequence[Mapping[str, Tensor]], joins: bool = False, weight: float = 1.0) -> None:
        """See Method.take_over."""
        self.inner.take_over(states, joins, weight)

    def held_back(self, numel: int) -> Tensor | None:
        """See Method.held_back."""
        return self.inner.held_back(numel)

    def unsent(self, numel: int) -> Tensor | None:
        """See Method.unsent."""
        return self.inner.unsent(numel)

    def magnitude(self) -> float | None:
        """See Method.magnitude."""
        return self.inner.magnitude()

    def sent_share(self, numel: int) -> float | None:
        """See Method.sent_share."""
        return self.inner.sent_share(numel)

    def compressed(self, layers: Sequence[Layer]) -> list[slice]:
        """See Method.compressed."""
        return self.inner.compressed(layers)


class Warmup(Wrapper):
    """Density `densities[e]` in epoch e, the inner compressor's own one after the last of them.

    Raises UserError for a compressor without a density and for densities outside (0, 1].
    """

    def __init__(self, inner: Method, densities: Sequence[float]) -> None:
        super().__init__(inner)
        if inner.density is None:
            raise UserError(f"compressor.warmup: {name_of(inner)!r} has no density")
        if any(not 0 < density <= 1 for density in densities):
            raise UserError(f"compressor.warmup: densities lie in (0, 1], got {list(densities)}")
        self.uncaptured = inner.uncaptured or "the warm-up changes its density by epoch"
        self.densities = tuple(densities)
        self.final = inner.density

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """The inner exchange at the density of the epoch."""
        density = self.densities[world.epoch] if world.epoch < len(self.densities) else self.final
        steps, answer = self.inner.exchange(bucket, world), None
        while True:
            # Set the density around each part of the work. A driver may leave an exchange at a request, work on another
            # bucket and come back (`dear` does), and each exchange must find its own density then.
            self.inner.density = density
            try:
                request = steps.send(answer)
            except StopIteration as stop:
                return stop.value
            finally:
                self.inner.density = self.final
            answer = yield request


class DenseBelow(Wrapper):
    """Layers with one dimension or with fewer than `numel` elements go dense, the others through `inner`.

    The dense layers of a bucket travel in one sum. `inner` gets the bucket as it lies, copied nowhere: they are gaps
    between its layers, where the gradient is 0 and its memory stays 0. Densities, `k` and the widths of sketches are of
    the elements in layers. What codes every element (casts, quantisers) sends the zeros of gaps with them. Where the
    inner compressor owns the momentum, the dense layers get the same one, applied to their average, as DGC does.

    Memory: the dense layers' average, and their momentum.
    """

    def __init__(self, inner: Method, numel: int) -> None:
        super().__init__(inner)
        if inner.owns_momentum and not isinstance(inner.memory, Feedback):
            raise UserError("compressor.dense_below: this compressor applies a momentum, but its memory is no Feedback")
        self.numel = numel
        self._velocity: Tensor | None = None
        self._model: tuple[Layer, ...] = ()
        self._splits: dict[tuple[int, int], _Split] = {}

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """One sum for the dense layers, then the rounds of `inner` for the others, each where there are any."""
        split = self._split(bucket)
        part = split.part(bucket)
        if part is None and not self.owns_momentum:
            return (yield from dense_average(bucket, bucket.grad, world.size))
        if not split.dense and part is not None:
            return (yield from self.inner.exchange(part, world))
        if kernels.usable(bucket.grad) and bucket.grad.dtype == torch.float32:
            return (yield from self._exchange_at_once(bucket, world, split, part))
        dense = [bucket.grad[piece] for piece in split.dense]
        with phase("encode"):
            message = torch.cat(dense)
        average = yield from dense_average(bucket, message, world.size)
        with phase("decode"):
            average = self._with_momentum(average, split)
            for piece in dense:
                piece.zero_()
        if part is not None:
            result = yield from self.inner.exchange(part, world)
        with phase("decode"):
            if part is not None and result.data_ptr() != part.grad.data_ptr():
                part.grad.copy_(result)
            for piece, values in zip(dense, average.split([piece.numel() for piece in dense]), strict=True):
                piece.copy_(values)
        return bucket.grad

    def _exchange_at_once(
        self, bucket: Bucket, world: ExchangeContext, split: "_Split", part: Bucket | None
    ) -> Exchange:
        """The rest of an exchange, by kernels: one before the inner exchange and one behind it, of all dense layers."""
        from wirebench.compressors.kernels import momentum

        grad = bucket.grad
        with phase("encode"):
            table = momentum.slices_of(tuple((piece.start, piece.stop) for piece in split.dense), grad.device)
            message = momentum.take_pieces(grad, table, sum(piece.stop - piece.start for piece in split.dense))
        total = yield Sum(bucket.narrow(message))
        assert isinstance(total, Tensor)
        if part is not None:
            result = yield from self.inner.exchange(part, world)
            if result.data_ptr() != part.grad.data_ptr():
                part.grad.copy_(result)
        with phase("decode"):
            velocity, beta, nesterov = None, 0.0, False
            if self.owns_momentum:
                feedback = cast(Feedback, self.inner.memory)
                velocity, beta, nesterov = self._momentum_of(message, split), feedback.momentum, feedback.nesterov
            momentum.put_pieces(grad, table, total.to(grad.dtype), world.size, velocity, beta, nesterov)
        return grad

    def wire_bytes(self, numel: int, size: int) -> int:
        """Dense bytes below the limit, the inner compressor's above: a bucket's layers are not known here."""
        return BYTES_PER_ELEMENT * numel if numel < self.numel else self.inner.wire_bytes(numel, size)

    def state_dict(self) -> dict[str, Tensor]:
        """The inner compressor's state and the momentum of the dense layers, which is the same on all ranks."""
        mine = {} if self._velocity is None else {VELOCITY_KEY: self._velocity}
        return self.inner.state_dict() | mine

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self.inner.load_state_dict(self._keep_mine(state))

    def take_over(self, states: Sequence[Mapping[str, Tensor]], joins: bool = False, weight: float = 1.0) -> None:
        """See Method.take_over."""
        self.inner.take_over([self._keep_mine(state) for state in states], joins, weight)

    def held_back(self, numel: int) -> Tensor | None:
        """See Method.held_back: 0 for the dense layers; the memory ends with the last layer that is not."""
        held = self.inner.held_back(numel)
        return held if held is None or held.numel() == numel else pad(held, (0, numel - held.numel()))

    def compressed(self, layers: Sequence[Layer]) -> list[slice]:
        """The slices of the compressed layers in the flat gradient of these layers."""
        return [slice(layer.start, layer.stop) for layer in layers if not _is_dense(layer, self.numel)]

    def _split(self, bucket: Bucket) -> "_Split":
        """The result of the function `_split`, cached for each bucket, since a step may have hundreds."""
        model, place = bucket.model or bucket.layers, (bucket.start, bucket.stop)
        if model is not self._model or (bucket.index == 0 and place not in self._splits):
            self._model, self._splits = model, {}
        if place not in self._splits:
            self._splits[place] = _split(bucket.layers, model, self.numel)
        return self._splits[place]

    def _keep_mine(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Restore the dense layers' momentum; the rest is the inner compressor's."""
        velocity = state.get(VELOCITY_KEY)
        self._velocity = None if velocity is None else velocity.clone()
        return {name: tensor for name, tensor in state.items() if name != VELOCITY_KEY}

    def _with_momentum(self, average: Tensor, split: "_Split") -> Tensor:
        """`average`, of the bucket's dense layers one after the other, as momentum SGD takes it."""
        if not self.owns_momentum:
            return average
        feedback, velocity = cast(Feedback, self.inner.memory), self._momentum_of(average, split)
        velocity.mul_(feedback.momentum).add_(average)
        return average.add_(velocity, alpha=feedback.momentum) if feedback.nesterov else velocity

    def _momentum_of(self, average: Tensor, split: "_Split") -> Tensor:
        """The momentum of the bucket's dense layers, a view like their `average`; zeros at first."""
        if self._velocity is None:
            self._velocity = average.new_zeros(split.model_dense_numel)
        self._velocity = self._velocity.to(average.device)  # checkpoints are read to the CPU
        return self._velocity[split.dense_place : split.dense_place + average.numel()]


class _Split(NamedTuple):
    """A bucket's layers and its model's, those that are compressed; and where in the bucket the others lie.

    dense_place        where the bucket's dense layers begin among all of the model's, one after the other
    model_dense_numel  elements of all of those
    """

    layers: tuple[Layer, ...]
    model: tuple[Layer, ...]
    dense: list[slice]
    dense_place: int
    model_dense_numel: int

    def part(self, bucket: Bucket) -> Bucket | None:
        """The bucket from its first compressed layer to its last one; None if there are none."""
        if not self.layers:
            return None
        place = slice(self.layers[0].start - bucket.start, self.layers[-1].stop - bucket.start)
        grad, param = bucket.grad[place], bucket.param[place]
        return replace(bucket, grad=grad, param=param, layers=self.layers, model=self.model)


def _split(layers: tuple[Layer, ...], model: tuple[Layer, ...], limit: int) -> _Split:
    dense = [layer for layer in model if _is_dense(layer, limit)]
    return _Split(
        tuple(layer for layer in layers if not _is_dense(layer, limit)),
        tuple(layer for layer in model if not _is_dense(layer, limit)),
        joined([layer for layer in layers if _is_dense(layer, limit)], layers[0].start),
        sum(layer.numel for layer in dense if layer.start < layers[0].start),
        sum(layer.numel for layer in dense),
    )


def _is_dense(layer: Layer, limit: int) -> bool:
    return layer.ndim <= 1 or layer.numel < limit
