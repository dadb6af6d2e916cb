"""The sizes of a compressor's requests, without a network: its own generator, advanced with made-up answers.

Where the layers' shapes decide, the sizes are exact. Else the gradient is noise, and requests are counted at powers of
four and interpolated in between. A few ranks are played, that is their exchanges are run in lockstep
(played_exchange.py); all others are taken to send what the last of these does.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, zip_longest
from typing import NamedTuple

from wirebench.costmodel.played_exchange import PLAYED, SAMPLE, RequestSize, Shapes, buckets, play
from wirebench.gradient.contract import Method
from wirebench.gradient.flat import FLOAT_BYTES, Layer
from wirebench.gradient.requests import Route, Sum

SMALL, TINY = 1 << 12, 1 << 6
"""Elements of a bucket of noise: a usual one; a quick one. Larger ones than SAMPLE are extrapolated from that."""
FEW, COUNTED = 2, 16
"""FEW: world size in which requests are counted. COUNTED: world size that shows whether large worlds have other
requests. For example, a vote's bits are gathered in a small world, and summed in a large one."""
REGIONS = 8
"""Largest world that is played of a method that gives each rank a region: in a larger one regions are nearly empty."""
SEARCHED = 1 << 10
"""Largest world in which the senders are searched, if not all ranks send: each rank has to be asked. In a larger world
the same number is taken to send, and all other ranks to be as quiet."""
PROBE: Shapes = ((SMALL, 2, 64), (TINY, 1, TINY), (2 * SMALL, 4, 32))

Asked = tuple[Shapes, bool, float]
"""The layers of a bucket, whether nothing but their shapes counts, and the scale of its noise."""
Known = Mapping[Asked, list[RequestSize]]


def nothing(size: int) -> Known:
    """An empty cache."""
    return {}


class Played(NamedTuple):
    """The ranks that are played, and the size of the world that they believe to be in."""

    ranks: tuple[int, ...]
    world: int


class Whole(NamedTuple):
    """The requests of a whole exchange, and the size of the world that the ranks believe to be in."""

    world: int
    requests: list[RequestSize]


class _Model(NamedTuple):
    """A model's layers, and what is known of its buckets.

    numels, sent, sent_numels  elements before each layer and of all; layers, and their elements, that are compressed
    """

    layers: tuple[Layer, ...]
    numels: list[int]
    sent: list[int]
    sent_numels: list[int]
    known: dict[range, list[RequestSize]]


class Sizes:
    """Request sizes of one compressor in a world of `size`, by bucket.

    make         makes the compressor, without wrappers
    dense_below  layers with one dimension or fewer elements than this are sent dense, in a Sum of their own before all
                 other requests (compressors/common/wrappers.py); 0: none are
    before       by the size of a world, what was played before
    """

    def __init__(
        self,
        make: Callable[[], Method],
        size: int,
        dense_below: int = 0,
        before: Callable[[int], Known] = nothing,
    ) -> None:
        self.dense_below = dense_below
        # Thousands of compressors are needed, and a copy is made far faster than one is built from name and options.
        fresh = make()
        self.make, self.size, self._before = lambda: copy.deepcopy(fresh), size, before
        self.known = dict(before(size))
        self._buckets: dict[tuple[Layer, ...], list[RequestSize]] = {}
        self._models: dict[tuple[Layer, ...], _Model] = {}
        self._latest: _Model | None = None

    def of_world(self, size: int) -> "Sizes":
        """The same compressor in a world of another size."""
        return Sizes(self.make, size, self.dense_below, self._before)

    def of(self, layers: Sequence[Layer]) -> list[RequestSize]:
        """The requests of one exchange of a bucket of these neighbouring layers; kept, for no network changes them."""
        bucket = tuple(layers)
        if bucket not in self._buckets:
            self._buckets[bucket] = self._counted(bucket)
        return self._buckets[bucket]

    def of_spans(self, model: tuple[Layer, ...]) -> Callable[[range], list[RequestSize]]:
        """The same by the places of a bucket's layers in a model, which are looked up faster than its layers."""
        if self._latest is None or self._latest.layers is not model:
            if model not in self._models:
                self._models[model] = self._model(model)
            self._latest = self._models[model]
        latest = self._latest
        known = latest.known

        def of(span: range) -> list[RequestSize]:
            if span not in known:
                known[span] = self._of_span(latest, span)
            return known[span]

        return of

    def _model(self, layers: tuple[Layer, ...]) -> _Model:
        numels, sent = [layer.numel for layer in layers], [int(self._is_compressed(layer)) for layer in layers]
        sent_numels = [one * numel for one, numel in zip(sent, numels, strict=True)]
        before = [[0, *accumulate(each)] for each in (numels, sent, sent_numels)]
        return _Model(layers, before[0], before[1], before[2], {})

    def _of_span(self, model: _Model, span: range) -> list[RequestSize]:
        """The requests of a bucket; without a look at each of its layers, where shapes do not count."""
        sums = model.numels, model.sent, model.sent_numels
        numel, sent, sent_numel = (each[span.stop] - each[span.start] for each in sums)
        if sent and self.by_shape:
            return self.of(model.layers[span.start : span.stop])
        compressed = self._of_total(sent_numel, sent) if sent else []
        return self._dense(numel - sent_numel) + compressed if sent < len(span) else compressed

    def _is_compressed(self, layer: Layer) -> bool:
        return not self.dense_below or (layer.ndim > 1 and layer.numel >= self.dense_below)

    def _counted(self, layers: Sequence[Layer]) -> list[RequestSize]:
        sent = [layer for layer in layers if self._is_compressed(layer)]
        rest = sum(layer.numel for layer in layers) - sum(layer.numel for layer in sent)
        return (self._dense(rest) if len(sent) < len(layers) else []) + (self._of(sent) if sent else [])

    def _dense(self, numel: int) -> list[RequestSize]:
        return [RequestSize(Sum, FLOAT_BYTES * numel, FLOAT_BYTES * numel)]

    def _of(self, layers: Sequence[Layer]) -> list[RequestSize]:
        if self.by_shape:
            shapes = tuple((layer.numel, layer.ndim, layer.rows) for layer in layers)
            return self._layer_by_layer(shapes) if self._is_sum_of_layers else self._requests(shapes, shaped=True)
        return self._of_total(sum(layer.numel for layer in layers), len(layers))

    def _of_total(self, numel: int, layers: int) -> list[RequestSize]:
        """The requests of `numel` elements in `layers` layers, if shapes do not matter."""
        one_layer = self._interpolated(numel)
        pairs = zip_longest(one_layer, self._of_a_layer[: len(one_layer)])
        return [a.plus(more, layers - 1) if more and more.kind is a.kind else a for a, more in pairs]

    def of_sample(self) -> list[RequestSize]:
        """The requests of one matrix of SAMPLE elements, on noise: what differs between worlds is seen in it."""
        return self._of_numel(SAMPLE)

    @cached_property
    def by_shape(self) -> bool:
        """Whether layers of one size but other shapes have other requests, as with matrices of low rank."""
        return self._requests(((SMALL, 2, 1),)) != self._requests(((SMALL, 2, 64),))

    @cached_property
    def by_value(self) -> bool:
        """Whether requests depend on how large the gradient's values are: then noise does not show their cost."""
        return self._requests(((SMALL, 2, 64),)) != self._requests(((SMALL, 2, 64),), scale=1000.0)

    @cached_property
    def _is_sum_of_layers(self) -> bool:
        """Whether each request of a bucket has the bytes of the same requests of its layers, one by one, together."""
        return self._layer_by_layer(PROBE) == self._requests(PROBE, shaped=True)

    def _layer_by_layer(self, shapes: Shapes) -> list[RequestSize]:
        """The requests of the layers one by one, added; models have few shapes of layers, and many buckets."""
        total: list[RequestSize] = []
        for shape in shapes:
            pairs = zip_longest(total, self._requests((shape,), shaped=True))
            total = [one.plus(other) if one and other else one or other for one, other in pairs]
        return total

    @cached_property
    def _of_a_layer(self) -> list[RequestSize]:
        """The bytes that each further layer of a bucket adds to every request, whatever its size, such as scales."""
        small, large = (
            [two.plus(one, -1.0) for one, two in zip(*map(self._requests, (whole, halves)), strict=True)]
            for whole, halves in ((((n, 2, 64),), ((n // 2, 2, 64),) * 2) for n in (SMALL, 4 * SMALL))
        )
        # Only what is the same at both sizes belongs to the layer; a difference that changes with the size does not.
        return [a if a == b else RequestSize(a.kind, 0.0, 0.0) for a, b in zip(small, large, strict=True)]

    def _interpolated(self, numel: int) -> list[RequestSize]:
        """The requests of a single layer of `numel` elements, on a line through two sizes that were played."""
        low = min(1 << 2 * ((max(numel, 1).bit_length() - 1) // 2), SMALL)
        high = 4 * low if numel < 4 * SMALL else SAMPLE
        one, other = self._of_numel(low), self._of_numel(high)
        if [request.kind for request in one] != [request.kind for request in other]:
            return self._of_numel(numel)  # so few elements that a method sends them all, or none
        share = (numel - low) / (high - low)
        return [a.plus(a, -share).plus(b, share) for a, b in zip(one, other, strict=True)]

    def _of_numel(self, numel: int) -> list[RequestSize]:
        return self._requests(((numel, 2, min(1 << (numel.bit_length() // 2), numel)),))

    def _requests(self, shapes: Shapes, shaped: bool = False, scale: float = 1.0) -> list[RequestSize]:
        """The requests of a bucket of these layers, on noise of `scale` times the usual deviation; played once.

        shaped  only the shapes count, so that all ranks have the same requests, and one of them is enough
        """
        key = (shapes, shaped, scale)
        if key not in self.known:
            self.known[key] = self.played(*key)
        return self.known[key]

    def played(self, shapes: Shapes, shaped: bool, scale: float) -> list[RequestSize]:
        """The requests for these layers, played now (`Asked`)."""

        def of(
            ranks: Sequence[int], size: int, most: int | None = None, counted: int | None = None
        ) -> list[RequestSize]:
            return play(self.make, buckets(shapes, scale, len(ranks), shaped), ranks, size, most, counted)

        if self.size <= FEW:
            return of(range(self.size), self.size)
        # A whole exchange of few ranks tells how many requests there are, and whether ranks have regions.
        many = not shaped and sum(numel for numel, _, _ in shapes) >= SMALL
        few = self._of_few.requests if many else of((0,) if shaped else range(FEW), self._of_few.world)
        if any(request.kind is Route for request in few):
            worlds = (of(range(size), size, len(few)) for size in (REGIONS // 2, min(self.size, REGIONS)))
            return [_grown(one, two, self.size) for one, two in zip(*worlds, strict=True)]
        ranks, world = Played((0,), self.size) if shaped else self._played
        return of(ranks, world, len(few), self.size)

    @cached_property
    def _of_few(self) -> Whole:
        """A whole exchange of few ranks in the least world that makes the requests of this one.

        From SMALL elements on their number is the same.
        """

        def of(size: int, most: int | None = None) -> list[RequestSize]:
            return play(self.make, buckets(((SMALL, 2, 64),), 1.0, FEW), range(FEW), size, most)

        few, large = of(FEW), min(self.size, COUNTED)
        # The other ranks' messages are made up. So the last answer is not used, nor is any of a method with regions.
        many = few if any(request.kind is Route for request in few) else of(large, len(few))
        kinds = [[request.kind for request in those] for those in (few, many)]
        # Where the two ranks that are played have no say in the large world, they stop early there.
        return Whole(FEW, few) if kinds[0][: len(many)] == kinds[1] else Whole(large, of(large))

    @cached_property
    def _played(self) -> Played:
        """The ranks that are played: if not all ranks send (iwp has voters), the senders and one other at the end."""

        def sends(rank: int, world: int) -> bool:
            return play(self.make, buckets(((TINY, 2, 8),), 1.0, 1), (rank,), world, 1)[0].num_bytes > 1

        first, world = tuple(range(min(self.size, PLAYED))), min(self.size, SEARCHED)
        if all(sends(rank, self.size) for rank in first):
            return Played(first, self.size)
        sending = [rank for rank in range(world) if sends(rank, world)][: PLAYED - 1]
        quiet = next(rank for rank in range(world) if rank not in sending)
        return Played((*sending, quiet), world) if sending else Played(first, self.size)


def _grown(one: RequestSize, two: RequestSize, size: int) -> RequestSize:
    """A request in a world of `size`, from those in worlds of REGIONS / 2 (`one`) and of REGIONS ranks (`two`).

    Its bytes stay, or are in proportion to the number of ranks, or to its inverse: the power of 2 that doubling the
    world has shown.
    """
    power = round(math.log2(two.num_bytes / one.num_bytes)) if size > REGIONS and one.num_bytes and two.num_bytes else 0
    return two._replace(num_bytes=0.0, most_bytes=0.0).plus(two, (size / REGIONS) ** power)
