"""What a compressor would ask the network for, without a network: its own generator, advanced with made-up answers.

Where the layers' shapes decide, tensors have no data (PyTorch's meta device), and the sizes are exact. Else the
gradient is noise, as a replayed model's, and what is asked for is known at powers of four, and on lines in between.
A few ranks are played in lockstep; all others are taken to bring what the last of them does.
"""

import copy
import math
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from wirebench.exchange.lane import Exchanger
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.flat import Bucket, Layer
from wirebench.gradient.requests import Answer, Gather, Merge, Reduce, Request, Route, Sum, handed_over, payload
from wirebench.utils.rng import generator

SAMPLE, SMALL, TINY = 1 << 16, 1 << 12, 1 << 6
FLOAT_BYTES = 4
GRADIENT_DEVIATION, PARAMETER_DEVIATION = 1e-4, 0.05
"""Those of a replayed model (models/replay.py)."""
FEW = 2
"""Ranks of the world in which requests are counted: their number does not depend on it."""
REGIONS = 8
"""Ranks of the largest world that is played of a method in which each has a region: more would have next to nothing."""
ALIKE, TRIED, PLAYED = 3, 8, 8
"""Ranks that are played where all have a say; that are asked whether they have; that are played at most."""
META, CPU = torch.device("meta"), torch.device("cpu")

Shapes = tuple[tuple[int, int, int], ...]
"""Of a bucket's layers: elements, dimensions, rows."""
PROBE: Shapes = ((SMALL, 2, 64), (TINY, 1, TINY), (2 * SMALL, 4, 32))


class RequestSize(NamedTuple):
    """One request: its kind, and the bytes that a rank hands over (of a route: to all ranks together).

    num_bytes   mean over ranks
    most_bytes  of the rank that hands over most: where some vote, the others have a byte to say, or nothing
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
        """With so many times the other's bytes as well."""
        return RequestSize(
            self.kind, self.num_bytes + times * other.num_bytes, self.most_bytes + times * other.most_bytes
        )


class Sizes:
    """What one compressor asks for in a world of `size`, by the bucket.

    make         makes the compressor, without wrappers
    dense_below  layers with one dimension or fewer elements than this go dense, in a sum of their own before all others
                 (compressors/common/wrappers.py); 0: none do
    """

    def __init__(self, make: Callable[[], Exchanger], size: int, dense_below: int = 0) -> None:
        self.dense_below = dense_below
        # A copy is made far faster than what a name and options stand for.
        fresh = make()
        self.make, self.size = lambda: copy.deepcopy(fresh), size
        self._known: dict[tuple[Shapes, torch.device, float], list[RequestSize]] = {}

    def of_world(self, size: int) -> "Sizes":
        """The same compressor in a world of another size."""
        return Sizes(self.make, size, self.dense_below)

    def of(self, layers: Sequence[Layer]) -> list[RequestSize]:
        """The requests of one exchange of neighbouring layers."""
        limit = self.dense_below
        sent = [layer for layer in layers if not limit or (layer.ndim > 1 and layer.numel >= limit)]
        dense_bytes = FLOAT_BYTES * (sum(layer.numel for layer in layers) - sum(layer.numel for layer in sent))
        dense = [RequestSize(Sum, dense_bytes, dense_bytes)] if len(sent) < len(layers) else []
        return dense + (self._of(sent) if sent else [])

    def _of(self, layers: Sequence[Layer]) -> list[RequestSize]:
        shapes = tuple((layer.numel, layer.ndim, layer.rows) for layer in layers)
        if self.by_shape:
            return self._added_up(shapes) if self._adds_up else self._asked(shapes, META)
        found = self._between(sum(numel for numel, _, _ in shapes))
        pairs = zip_longest(found, self._of_a_layer[: len(found)])
        return [a.plus(more, len(shapes) - 1) if more and more.kind is a.kind else a for a, more in pairs]

    @cached_property
    def by_shape(self) -> bool:
        """Whether layers of one size but other shapes ask for something else, as with matrices of low rank."""
        return self._asked(((SMALL, 2, 1),)) != self._asked(((SMALL, 2, 64),))

    @cached_property
    def by_value(self) -> bool:
        """Whether it matters how large the gradient is: then noise says nothing of what real gradients would cost."""
        return self._asked(((SMALL, 2, 64),)) != self._asked(((SMALL, 2, 64),), scale=1000.0)

    @cached_property
    def _adds_up(self) -> bool:
        """Whether a bucket asks for what its layers would ask for one by one, request by request."""
        return self._added_up(PROBE) == self._asked(PROBE, META)

    def _added_up(self, shapes: Shapes) -> list[RequestSize]:
        total: list[RequestSize] = []
        for shape in shapes:
            pairs = zip_longest(total, self._asked((shape,), META))
            total = [one.plus(other) if one and other else one or other for one, other in pairs]
        return total

    @cached_property
    def _of_a_layer(self) -> list[RequestSize]:
        """What each further layer of a bucket adds to every request, whatever its size: scales and the like."""
        small, large = (
            [two.plus(one, -1.0) for one, two in zip(*map(self._asked, (whole, halves)), strict=True)]
            for whole, halves in ((((n, 2, 64),), ((n // 2, 2, 64),) * 2) for n in (SMALL, 4 * SMALL))
        )
        return [a if a == b else RequestSize(a.kind, 0.0, 0.0) for a, b in zip(small, large, strict=True)]

    def _between(self, numel: int) -> list[RequestSize]:
        """On a line through two sizes of a single layer that were tried."""
        low = min(1 << 2 * ((max(numel, 1).bit_length() - 1) // 2), SMALL)
        high = 4 * low if numel < 4 * SMALL else SAMPLE
        one, other = self._of_numel(low), self._of_numel(high)
        if [asked.kind for asked in one] != [asked.kind for asked in other]:
            return self._of_numel(numel)  # so few elements that a method sends them all, or none
        share = (numel - low) / (high - low)
        return [a.plus(a, -share).plus(b, share) for a, b in zip(one, other, strict=True)]

    def _of_numel(self, numel: int) -> list[RequestSize]:
        return self._asked(((numel, 2, min(1 << (numel.bit_length() // 2), numel)),))

    def _asked(self, shapes: Shapes, device: torch.device = CPU, scale: float = 1.0) -> list[RequestSize]:
        """The requests of a bucket of these layers, on noise of this deviation."""
        key = (shapes, device, scale)
        if key not in self._known:
            self._known[key] = self._try(*key)
        return self._known[key]

    def _try(self, shapes: Shapes, device: torch.device, scale: float) -> list[RequestSize]:
        def play(ranks: Sequence[int], size: int, most: int | None = None) -> list[RequestSize]:
            return _play(self.make, _buckets(shapes, device, scale, len(ranks)), ranks, size, most)

        if self.size <= FEW:
            return play(range(self.size), self.size)
        many = device == CPU and sum(numel for numel, _, _ in shapes) >= SMALL
        few = self._of_few if many else play(range(FEW), FEW)
        if any(asked.kind is Route for asked in few):
            worlds = (play(range(size), size, len(few)) for size in (REGIONS // 2, min(self.size, REGIONS)))
            return [_grown(one, two, self.size) for one, two in zip(*worlds, strict=True)]
        return play((0,) if device == META else self._played, self.size, len(few))

    @cached_property
    def _of_few(self) -> list[RequestSize]:
        """Of a whole exchange of few ranks; from SMALL elements on the number of requests is the same."""
        return _play(self.make, _buckets(((SMALL, 2, 64),), CPU, 1.0, FEW), range(FEW), FEW)

    @cached_property
    def _played(self) -> tuple[int, ...]:
        """The ranks that are played; where not all have a say, those who have, and one of the others at the end."""

        def has_a_say(rank: int) -> bool:
            return _play(self.make, _buckets(((TINY, 2, 8),), CPU, 1.0, 1), (rank,), self.size, 1)[0].num_bytes > 1

        if all(has_a_say(rank) for rank in range(min(self.size, TRIED))):
            return tuple(range(min(self.size, ALIKE)))
        talking = [rank for rank in range(self.size) if has_a_say(rank)][: PLAYED - 1]
        quiet = next(rank for rank in range(self.size) if rank not in talking)
        return (*talking, quiet) if talking else tuple(range(min(self.size, ALIKE)))


def _play(
    make: Callable[[], Exchanger], buckets: Sequence[Bucket], ranks: Sequence[int], size: int, most: int | None = None
) -> list[RequestSize]:
    """Advance the exchanges of these ranks in a world of `size` together, to their end or for `most` requests.

    The last request is not answered then: no more is asked for, and thousands of ranks' answers take long to read.
    """
    exchanges = [
        make().exchange(bucket, ExchangeContext(rank, size)) for bucket, rank in zip(buckets, ranks, strict=False)
    ]
    answers: list[Answer] = [None] * len(exchanges)
    asked: list[RequestSize] = []
    with torch.no_grad():
        while most is None or len(asked) < most:
            try:
                requests = [exchange.send(answer) for exchange, answer in zip(exchanges, answers, strict=True)]
            except StopIteration:  # all make as many requests
                break
            asked.append(_told(requests, size))
            if most is None or len(asked) < most:
                answers = _answers(requests, ranks, size)
    return asked


def _grown(one: RequestSize, two: RequestSize, size: int) -> RequestSize:
    """A request of `size` ranks, from those of REGIONS / 2 and of REGIONS: it stays, or goes with their number, or
    with one over it.
    """
    power = round(math.log2(two.num_bytes / one.num_bytes)) if size > REGIONS and one.num_bytes and two.num_bytes else 0
    return RequestSize(two.kind, 0.0, 0.0).plus(two, (size / REGIONS) ** power)


def _told(requests: Sequence[Request], size: int) -> RequestSize:
    num_bytes = [sum(tensor.nbytes for tensor in handed_over(request)) for request in requests]
    most, last = max(num_bytes), num_bytes[-1]
    # All who are not played are like the last. Where that one has little to say, it is not one of many alike.
    others = size - len(requests) if last < most / 2 else 0
    return RequestSize(type(requests[0]), (sum(num_bytes) + others * last) / (len(requests) + others), float(most))


def _answers(requests: Sequence[Request], ranks: Sequence[int], size: int) -> list[Answer]:
    """What each of `ranks` gets; all others bring what the last one does."""
    kind, brought = requests[0], dict(zip(ranks, requests, strict=False))
    everyone = [brought.get(rank, requests[-1]) for rank in range(size)] if isinstance(kind, Gather | Route) else []
    if isinstance(kind, Gather):
        return [[payload(request) for request in everyone] for _ in requests]
    if isinstance(kind, Route):
        return [[request.parts[rank] for request in everyone if isinstance(request, Route)] for rank in brought]
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
    """The same layers on so many ranks."""
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
