"""The sizes of a compressor's requests, without a network: its own generator, advanced with made-up answers.

Where the layers' shapes decide, tensors have no data (PyTorch's meta device), and the sizes are exact. Else the
gradient is noise, as a replayed model's, and requests are counted at powers of four and interpolated in between. A few
ranks are played, that is their exchanges are run in lockstep; all others are taken to send what the last of these does.
"""

import copy
import math
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Method
from wirebench.gradient.flat import Bucket, Layer
from wirebench.gradient.requests import Answer, Gather, Merge, Reduce, Request, Route, Sum, handed_over, payload
from wirebench.utils.rng import generator

SAMPLE, SMALL, TINY = 1 << 16, 1 << 12, 1 << 6
"""Elements of a bucket of noise: the largest, from which larger ones are extrapolated; a usual one; a quick one."""
FLOAT_BYTES = 4
GRADIENT_DEVIATION, PARAMETER_DEVIATION = 1e-4, 0.05
"""The same as in a replayed model (models/replay.py)."""
FEW = 2
"""World size in which requests are counted: their number does not depend on it."""
REGIONS = 8
"""Largest world that is played of a method that gives each rank a region: in a larger one regions are nearly empty."""
PLAYED = 8
"""Ranks that are played at most; of these it is tried whether all send. How many entries a sum shows, as in gs_sgd,
depends on how many ranks differ."""
META, CPU = torch.device("meta"), torch.device("cpu")

Shapes = tuple[tuple[int, int, int], ...]
"""(elements, dimensions, rows) of each layer of a bucket."""
PROBE: Shapes = ((SMALL, 2, 64), (TINY, 1, TINY), (2 * SMALL, 4, 32))


class RequestSize(NamedTuple):
    """One request: its kind, and the bytes that a rank hands to the network (of a Route: for all ranks together).

    num_bytes   mean over ranks
    most_bytes  of the rank that hands over most: where only some ranks send, the others hand over a byte, or nothing
    """

    kind: type[Request]
    num_bytes: float
    most_bytes: float

    def sent(self, size: int) -> float:
        """Bytes that each of `size` ranks sends on average, by a collective in which nothing travels twice."""
        if self.kind is Gather:
            return (size - 1) * self.num_bytes
        return (1 if self.kind in (Reduce, Route) else 2) * (size - 1) / size * self.num_bytes

    def plus(self, other: "RequestSize", times: float = 1.0) -> "RequestSize":
        """This request with `times` times the other's bytes added."""
        return RequestSize(
            self.kind, self.num_bytes + times * other.num_bytes, self.most_bytes + times * other.most_bytes
        )


class Sizes:
    """Request sizes of one compressor in a world of `size`, by bucket.

    make         makes the compressor, without wrappers
    dense_below  layers with one dimension or fewer elements than this are sent dense, in a Sum of their own before all
                 other requests (compressors/common/wrappers.py); 0: none are
    """

    def __init__(self, make: Callable[[], Method], size: int, dense_below: int = 0) -> None:
        self.dense_below = dense_below
        # Thousands of compressors are needed, and a copy is made far faster than one is built from name and options.
        fresh = make()
        self.make, self.size = lambda: copy.deepcopy(fresh), size
        self._known: dict[tuple[Shapes, torch.device, float], list[RequestSize]] = {}
        self._buckets: dict[tuple[Layer, ...], list[RequestSize]] = {}

    def of_world(self, size: int) -> "Sizes":
        """The same compressor in a world of another size."""
        return Sizes(self.make, size, self.dense_below)

    def of(self, layers: Sequence[Layer]) -> list[RequestSize]:
        """The requests of one exchange of a bucket of these neighbouring layers; kept, for no network changes them."""
        bucket = tuple(layers)
        if bucket not in self._buckets:
            self._buckets[bucket] = self._counted(bucket)
        return self._buckets[bucket]

    def _counted(self, layers: Sequence[Layer]) -> list[RequestSize]:
        limit = self.dense_below
        sent = [layer for layer in layers if not limit or (layer.ndim > 1 and layer.numel >= limit)]
        dense_bytes = FLOAT_BYTES * (sum(layer.numel for layer in layers) - sum(layer.numel for layer in sent))
        dense = [RequestSize(Sum, dense_bytes, dense_bytes)] if len(sent) < len(layers) else []
        return dense + (self._of(sent) if sent else [])

    def _of(self, layers: Sequence[Layer]) -> list[RequestSize]:
        shapes = tuple((layer.numel, layer.ndim, layer.rows) for layer in layers)
        if self.by_shape:
            return self._layer_by_layer(shapes) if self._is_sum_of_layers else self._requests(shapes, META)
        one_layer = self._interpolated(sum(numel for numel, _, _ in shapes))
        pairs = zip_longest(one_layer, self._of_a_layer[: len(one_layer)])
        return [a.plus(more, len(shapes) - 1) if more and more.kind is a.kind else a for a, more in pairs]

    @cached_property
    def by_shape(self) -> bool:
        """Whether layers of one size but other shapes have other requests, as with matrices of low rank."""
        return self._requests(((SMALL, 2, 1),)) != self._requests(((SMALL, 2, 64),))

    @cached_property
    def by_value(self) -> bool:
        """Whether requests depend on how large the gradient's values are: then noise does not tell what they cost."""
        return self._requests(((SMALL, 2, 64),)) != self._requests(((SMALL, 2, 64),), scale=1000.0)

    @cached_property
    def _is_sum_of_layers(self) -> bool:
        """Whether each request of a bucket has the bytes of the same requests of its layers, one by one, together."""
        return self._layer_by_layer(PROBE) == self._requests(PROBE, META)

    def _layer_by_layer(self, shapes: Shapes) -> list[RequestSize]:
        """The requests of the layers one by one, added; models have few shapes of layers, and many buckets."""
        total: list[RequestSize] = []
        for shape in shapes:
            pairs = zip_longest(total, self._requests((shape,), META))
            total = [one.plus(other) if one and other else one or other for one, other in pairs]
        return total

    @cached_property
    def _of_a_layer(self) -> list[RequestSize]:
        """What each further layer of a bucket adds to every request, whatever its size: scales and the like."""
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

    def _requests(self, shapes: Shapes, device: torch.device = CPU, scale: float = 1.0) -> list[RequestSize]:
        """The requests of a bucket of these layers, on noise of `scale` times the usual deviation; played once."""
        key = (shapes, device, scale)
        if key not in self._known:
            self._known[key] = self._played_requests(*key)
        return self._known[key]

    def _played_requests(self, shapes: Shapes, device: torch.device, scale: float) -> list[RequestSize]:
        def play(ranks: Sequence[int], size: int, most: int | None = None) -> list[RequestSize]:
            return _play(self.make, _buckets(shapes, device, scale, len(ranks)), ranks, size, most)

        if self.size <= FEW:
            return play(range(self.size), self.size)
        # A whole exchange of few ranks tells how many requests there are, and whether ranks have regions.
        many = device == CPU and sum(numel for numel, _, _ in shapes) >= SMALL
        # Without data all ranks are alike, so that one of them tells it.
        few = self._of_few if many else play((0,) if device == META else range(FEW), FEW)
        if any(request.kind is Route for request in few):
            worlds = (play(range(size), size, len(few)) for size in (REGIONS // 2, min(self.size, REGIONS)))
            return [_grown(one, two, self.size) for one, two in zip(*worlds, strict=True)]
        return play((0,) if device == META else self._played, self.size, len(few))

    @cached_property
    def _of_few(self) -> list[RequestSize]:
        """The requests of a whole exchange of few ranks; from SMALL elements on their number is the same."""
        return _play(self.make, _buckets(((SMALL, 2, 64),), CPU, 1.0, FEW), range(FEW), FEW)

    @cached_property
    def _played(self) -> tuple[int, ...]:
        """The ranks that are played; where not all send (iwp has voters), those that do, and at the end one other."""

        def sends(rank: int) -> bool:
            return _play(self.make, _buckets(((TINY, 2, 8),), CPU, 1.0, 1), (rank,), self.size, 1)[0].num_bytes > 1

        if all(sends(rank) for rank in range(min(self.size, PLAYED))):
            return tuple(range(min(self.size, PLAYED)))
        sending = [rank for rank in range(self.size) if sends(rank)][: PLAYED - 1]
        quiet = next(rank for rank in range(self.size) if rank not in sending)
        return (*sending, quiet) if sending else tuple(range(min(self.size, PLAYED)))


def _play(
    make: Callable[[], Method], buckets: Sequence[Bucket], ranks: Sequence[int], size: int, most: int | None = None
) -> list[RequestSize]:
    """Run the exchanges of these ranks in a world of `size` in lockstep, to their end or for `most` requests.

    With `most` the last request is not answered: nothing follows it, and thousands of ranks' answers take long to read.
    """
    exchanges = []
    for bucket, rank in zip(buckets, ranks, strict=False):
        method = make()
        exchanges.append(method.exchange(bucket, ExchangeContext(rank, size, method.usual_step)))
    answers: list[Answer] = [None] * len(exchanges)
    sizes: list[RequestSize] = []
    with torch.no_grad():
        while most is None or len(sizes) < most:
            try:
                requests = [exchange.send(answer) for exchange, answer in zip(exchanges, answers, strict=True)]
            except StopIteration:  # all make as many requests
                break
            sizes.append(_size_of(requests, size))
            if most is None or len(sizes) < most:
                answers = _answers(requests, ranks, size)
    return sizes


def _grown(one: RequestSize, two: RequestSize, size: int) -> RequestSize:
    """A request in a world of `size`, from those in worlds of REGIONS / 2 (`one`) and of REGIONS ranks (`two`).

    Its bytes stay, or are in proportion to the number of ranks, or to its inverse: the power of 2 that doubling the
    world has shown.
    """
    power = round(math.log2(two.num_bytes / one.num_bytes)) if size > REGIONS and one.num_bytes and two.num_bytes else 0
    return RequestSize(two.kind, 0.0, 0.0).plus(two, (size / REGIONS) ** power)


def _size_of(requests: Sequence[Request], size: int) -> RequestSize:
    """The size of one request of `size` ranks, from those of the ranks that are played."""
    num_bytes = [sum(tensor.nbytes for tensor in handed_over(request)) for request in requests]
    most, last = max(num_bytes), num_bytes[-1]
    # All ranks that are not played are like the last one. They count only where that one sends less than others: else
    # all are alike, and the mean of those that are played is the mean of all.
    others = size - len(requests) if last < most / 2 else 0
    return RequestSize(type(requests[0]), (sum(num_bytes) + others * last) / (len(requests) + others), float(most))


def _answers(requests: Sequence[Request], ranks: Sequence[int], size: int) -> list[Answer]:
    """What each of `ranks` gets, if all other ranks send what the last one does."""
    kind, played = requests[0], dict(zip(ranks, requests, strict=False))
    everyone = [played.get(rank, requests[-1]) for rank in range(size)] if isinstance(kind, Gather | Route) else []
    if isinstance(kind, Gather):
        return [[payload(request) for request in everyone] for _ in requests]
    if isinstance(kind, Route):
        return [[request.parts[rank] for request in everyone if isinstance(request, Route)] for rank in played]
    first, *others = (payload(request) for request in requests)
    if isinstance(kind, Merge):
        total = first.clone()
        for other in others:
            total = kind.combine(total, other)
    else:
        total = payload(requests[-1]) * (size - len(others))
        for other in (first, *others)[:-1]:
            total += other
    if isinstance(kind, Reduce):
        return [total, *(None for _ in others)]
    return [total.clone() for _ in requests]


def _buckets(shapes: Shapes, device: torch.device, scale: float, count: int) -> list[Bucket]:
    """A bucket of these layers for each of `count` ranks, filled with noise of the rank's own."""
    layers, start = [], 0
    for number, (numel, ndim, rows) in enumerate(shapes):
        layers.append(Layer(f"layer{number}", start, start + numel, ndim, rows))
        start += numel
    if device == META:
        param = torch.empty(start, device=device)
        return [Bucket(0, torch.empty_like(param), param, tuple(layers)) for _ in range(count)]
    param = PARAMETER_DEVIATION * _noise("param")[:start]
    grads = [scale * GRADIENT_DEVIATION * _noise(f"grad {place}")[:start] for place in range(count)]
    return [Bucket(0, grad, param, tuple(layers)) for grad in grads]


@lru_cache(maxsize=PLAYED + 1)
def _noise(key: str) -> Tensor:
    return torch.randn(SAMPLE, generator=generator("sizing", key))
