"""Wrappers around any compressor: what is compressed, and how strongly at the start."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from compressors.base import Compressor, Exchange, Method
from compressors.feedback import Feedback
from wirebench.errors import UserError
from wirebench.layout import Bucket, Layer
from wirebench.requests import Sum
from wirebench.world import World

BYTES_PER_ELEMENT = 4
VELOCITY_KEY = "shared.dense_velocity"


class _HasDensity(Compressor, Protocol):
    density: float


class _Wrapper:
    """What a wrapper leaves to the compressor inside it: all that it does not do itself."""

    def __init__(self, inner: Compressor) -> None:
        self.inner = inner
        self.owns_momentum = inner.owns_momentum

    def __getattr__(self, name: str) -> Any:
        """The inner compressor's."""
        if name == "inner":  # not there yet, as while it is copied
            raise AttributeError(name)
        return getattr(self.inner, name)

    def state_dict(self) -> dict[str, Tensor]:
        """The inner compressor's state; the wrapper has none."""
        return self.inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the inner compressor's state."""
        self.inner.load_state_dict(state)


class Warmup(_Wrapper):
    """Density `densities[e]` in epoch e, the inner compressor's own one after the last of them.

    Raises UserError for a compressor without a density and for densities outside (0, 1].
    """

    def __init__(self, inner: Compressor, densities: Sequence[float]) -> None:
        super().__init__(inner)
        if not hasattr(inner, "density"):
            name = type(inner).__module__.removeprefix("compressors.")
            raise UserError(f"compressor.warmup: {name!r} has no density")
        if any(not 0 < density <= 1 for density in densities):
            raise UserError(f"compressor.warmup: densities lie in (0, 1], got {list(densities)}")
        self.densities = tuple(densities)
        self.final = cast(_HasDensity, inner).density

    def exchange(self, bucket: Bucket, world: World) -> Exchange:
        """The inner exchange at the density of the epoch."""
        inner = cast(_HasDensity, self.inner)
        inner.density = self.densities[world.epoch] if world.epoch < len(self.densities) else self.final
        try:
            return (yield from inner.exchange(bucket, world))
        finally:
            inner.density = self.final

    def wire_bytes(self, numel: int, size: int) -> int:
        """The inner compressor's bytes after the warm-up, that is in most of the run."""
        return self.inner.wire_bytes(numel, size)


class DenseBelow(_Wrapper):
    """Layers with one dimension or with fewer than `numel` elements go dense, the others through `inner`.

    The dense layers of a bucket travel in one sum. The others are one bucket of `inner`, whose layers count their
    places among the compressed layers of the model alone: its memory has no gaps and does not depend on how buckets are
    cut. A bucket of one kind only is not copied; of others a copy is kept, 1 d, and as much for a method that reads the
    parameters. Where the inner compressor owns the momentum, the dense layers get the
    same one, applied to their average, as DGC does.
    """

    def __init__(self, inner: Compressor, numel: int) -> None:
        super().__init__(inner)
        if inner.owns_momentum and not isinstance(getattr(inner, "memory", None), Feedback):
            raise UserError("compressor.dense_below: this compressor applies a momentum, but its memory is no Feedback")
        self.numel = numel
        self._velocity: Tensor | None = None
        self._scratch: dict[tuple[int, int], dict[str, Tensor]] = {}
        self._model: tuple[Layer, ...] = ()
        self._places: dict[str, Layer] = {}
        self._dense: dict[str, Layer] = {}

    def exchange(self, bucket: Bucket, world: World) -> Exchange:
        """One sum for the dense layers, then the rounds of `inner` for the others, each where there are any."""
        sparse = [layer for layer in bucket.layers if not self._is_dense(layer)]
        renumbered = self._renumber(bucket)
        if not sparse:
            average = yield from _average(bucket.grad, world.size)
            return self._with_momentum(average, bucket)
        layers = tuple(renumbered[layer.name] for layer in sparse)
        model = tuple(renumbered.values())
        if len(sparse) == len(bucket.layers):
            whole = Bucket(bucket.index, bucket.grad, bucket.param, layers, model)
            return (yield from self.inner.exchange(whole, world))
        dense_places = _pieces(bucket, [layer for layer in bucket.layers if self._is_dense(layer)])
        dense = yield from _average(torch.cat(_at(bucket.grad, dense_places)), world.size)
        _scatter(self._with_momentum(dense, bucket), bucket.grad, dense_places)
        sparse_places = _pieces(bucket, sparse)
        part = _Part(bucket, sparse_places, layers, model, self._scratch_of(bucket))
        result = yield from self.inner.exchange(part, world)
        return _scatter(result, bucket.grad, sparse_places)

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

    def take_over(self, states: Sequence[Mapping[str, Tensor]], joins: bool = False) -> None:
        """As Method.take_over."""
        cast(Method, self.inner).take_over([self._keep_mine(state) for state in states], joins)

    def held_back(self, numel: int) -> Tensor | None:
        """As Method.held_back: nothing of the dense layers."""
        held_back = getattr(self.inner, "held_back", lambda numel: None)
        packed = held_back(sum(layer.numel for layer in self._places.values()))
        if packed is None:
            return None
        return _scatter(packed, packed.new_zeros(numel), self.compressed(self._model))

    def compressed(self, layers: Sequence[Layer]) -> list[slice]:
        """Where in the flat gradient of these layers the compressed ones lie."""
        return [slice(layer.start, layer.stop) for layer in layers if not self._is_dense(layer)]

    def _keep_mine(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Restore the dense layers' momentum; the rest is the inner compressor's."""
        velocity = state.get(VELOCITY_KEY)
        self._velocity = None if velocity is None else velocity.clone()
        return {name: tensor for name, tensor in state.items() if name != VELOCITY_KEY}

    def _with_momentum(self, average: Tensor, bucket: Bucket) -> Tensor:
        """`average`, of the bucket's dense layers one after the other, as momentum SGD takes it."""
        if not self.owns_momentum:
            return average
        if self._velocity is None:
            self._velocity = average.new_zeros(sum(layer.numel for layer in self._dense.values()))
        self._velocity = self._velocity.to(average.device)  # checkpoints are read to the CPU
        dense = [self._dense[layer.name] for layer in bucket.layers if self._is_dense(layer)]
        places = [slice(layer.start, layer.stop) for layer in dense]
        feedback = cast(Feedback, cast(Method, self.inner).memory)
        velocity = torch.cat(_at(self._velocity, places)).mul_(feedback.momentum).add_(average)
        _scatter(velocity, self._velocity, places)
        return average.add_(velocity, alpha=feedback.momentum) if feedback.nesterov else velocity

    def _scratch_of(self, bucket: Bucket) -> dict[str, Tensor]:
        """Where this bucket's copies go; those of an earlier cut are given back."""
        place = (bucket.start, bucket.stop)
        if bucket.index == 0 and place not in self._scratch:
            self._scratch.clear()
        return self._scratch.setdefault(place, {})

    def _is_dense(self, layer: Layer) -> bool:
        return layer.ndim <= 1 or layer.numel < self.numel

    def _renumber(self, bucket: Bucket) -> dict[str, Layer]:
        """The model's compressed layers by name, one after the other from 0; `_dense` has the others likewise."""
        model = bucket.model or bucket.layers
        if model is not self._model:
            self._places = _lay_out([layer for layer in model if not self._is_dense(layer)])
            self._dense = _lay_out([layer for layer in model if self._is_dense(layer)])
            self._model = model
        return self._places


def _lay_out(layers: Sequence[Layer]) -> dict[str, Layer]:
    """The layers by name, at places one after the other from 0."""
    places, start = {}, 0
    for layer in layers:
        places[layer.name] = layer._replace(start=start, stop=start + layer.numel)
        start += layer.numel
    return places


class _Part(Bucket):
    """Some pieces of a bucket, copied together; the parameters only if they are asked for."""

    def __init__(
        self,
        whole: Bucket,
        pieces: list[slice],
        layers: tuple[Layer, ...],
        model: tuple[Layer, ...],
        scratch: dict[str, Tensor],
    ) -> None:
        grad = _packed(whole.grad, pieces, scratch, "grad")
        fields = {"index": whole.index, "grad": grad, "layers": layers, "model": model}
        # Not through Bucket's constructor: it would set `param`, which is found below when it is wanted.
        self.__dict__.update(fields, _whole=whole, _pieces=pieces, _scratch=scratch)

    @cached_property
    def param(self) -> Tensor:
        """The parameters of the pieces: a copy, for reading."""
        found = self.__dict__
        return _packed(found["_whole"].param, found["_pieces"], found["_scratch"], "param")


def _packed(flat: Tensor, pieces: Sequence[slice], scratch: dict[str, Tensor], name: str) -> Tensor:
    """The pieces copied together, where those of the step before were: fresh memory costs more than the copy."""
    numel = sum(piece.stop - piece.start for piece in pieces)
    kept = scratch.get(name)
    if kept is None or kept.numel() != numel or kept.device != flat.device:
        kept = scratch[name] = flat.new_empty(numel)
    return torch.cat(_at(flat, pieces), out=kept)


def _average(dense: Tensor, size: int) -> Exchange:
    total = yield Sum(dense)
    assert isinstance(total, Tensor)
    return total.div_(size)


def _pieces(bucket: Bucket, layers: Sequence[Layer]) -> list[slice]:
    """Where `layers` lie within the bucket."""
    return [slice(layer.start - bucket.start, layer.stop - bucket.start) for layer in layers]


def _at(flat: Tensor, pieces: Sequence[slice]) -> list[Tensor]:
    return [flat[piece] for piece in pieces]


def _scatter(packed: Tensor, flat: Tensor, pieces: Sequence[slice]) -> Tensor:
    """Write `packed` back to the pieces of `flat` that it was copied from; return `flat`."""
    targets = _at(flat, pieces)
    for target, values in zip(targets, packed.split([t.numel() for t in targets]), strict=True):
        target.copy_(values)
    return flat
