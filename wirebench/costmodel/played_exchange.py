"""Exchanges of a few ranks, run in lockstep with made-up answers: what each of their requests hands to the network.

A gradient is noise, as a replayed model's. A large one of which nothing but the shape counts has no data (PyTorch's
meta device), of which every operation takes 0.1 ms, and the first one a second to import what it needs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Method
from wirebench.gradient.flat import Bucket, Layer
from wirebench.gradient.requests import Answer, Gather, Merge, Reduce, Request, Route, handed_over, payload
from wirebench.utils.rng import generator

SAMPLE = 1 << 16
"""The most elements of a bucket of noise."""
GRADIENT_DEVIATION, PARAMETER_DEVIATION = 1e-4, 0.05
"""The same as in a replayed model (models/replay.py)."""
PLAYED = 8
"""Ranks that are played at most. How many entries a sum shows, as in gs_sgd, depends on how many ranks differ."""
REAL = 1 << 22
"""The most elements that have data where nothing but their shapes counts."""

Shapes = tuple[tuple[int, int, int], ...]
"""(elements, dimensions, rows) of each layer of a bucket."""


class RequestSize(NamedTuple):
    """One request: its kind, and the bytes that a rank hands to the network (of a Route: for all ranks together).

    num_bytes   mean over ranks
    most_bytes  of the rank that hands over most: where only some ranks send, the others hand over a byte, or nothing
    item_bytes  of an element, which is never cut
    """

    kind: type[Request]
    num_bytes: float
    most_bytes: float
    item_bytes: int = 4

    def sent(self, size: int) -> float:
        """Bytes that each of `size` ranks sends on average, by a collective in which nothing travels twice."""
        if self.kind is Gather:
            return (size - 1) * self.num_bytes
        return (1 if self.kind in (Reduce, Route) else 2) * (size - 1) / size * self.num_bytes

    def plus(self, other: "RequestSize", times: float = 1.0) -> "RequestSize":
        """This request with `times` times the other's bytes added."""
        num_bytes, most_bytes = self.num_bytes + times * other.num_bytes, self.most_bytes + times * other.most_bytes
        return RequestSize(self.kind, num_bytes, most_bytes, self.item_bytes)


def play(
    make: Callable[[], Method],
    buckets: Sequence[Bucket],
    ranks: Sequence[int],
    size: int,
    most: int | None = None,
    counted: int | None = None,
) -> list[RequestSize]:
    """Run the exchanges of these ranks in a world of `size` in lockstep, to their end or for `most` requests.

    With `most` the last request is not answered: nothing follows it, and thousands of ranks' answers take long to read.
    counted  ranks over which bytes are averaged, where a smaller world stands for them; None: `size`
    """
    exchanges = []
    for bucket, rank in zip(buckets, ranks, strict=False):
        method = make()
        exchanges.append(method.exchange(bucket, ExchangeContext(rank, size, method.usual_step)))
    answers: list[Answer] = [None] * len(exchanges)
    sizes: list[RequestSize] = []
    with torch.no_grad(), one_thread():
        while most is None or len(sizes) < most:
            try:
                requests = [exchange.send(answer) for exchange, answer in zip(exchanges, answers, strict=True)]
            except StopIteration:  # all make as many requests
                break
            sizes.append(_size_of(requests, size if counted is None else counted))
            if most is None or len(sizes) < most:
                answers = _answers(requests, ranks, size)
    return sizes


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch computes in one thread within the block.

    On short vectors more threads mostly wait, which costs their cores' time; and sums would depend on how many.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _size_of(requests: Sequence[Request], size: int) -> RequestSize:
    """The size of one request of `size` ranks, given the requests of the ranks that are played."""
    num_bytes = [sum(tensor.nbytes for tensor in handed_over(request)) for request in requests]
    most, last = max(num_bytes), num_bytes[-1]
    # All ranks that are not played are like the last one. They count only where that one sends less than others: else
    # all are alike, and the mean of those that are played is the mean of all.
    others = size - len(requests) if last < most / 2 else 0
    mean = (sum(num_bytes) + others * last) / (len(requests) + others)
    item_bytes = min((tensor.element_size() for tensor in handed_over(requests[0])), default=4)
    return RequestSize(type(requests[0]), mean, float(most), item_bytes)


def _answers(requests: Sequence[Request], ranks: Sequence[int], size: int) -> list[Answer]:
    """The answer to each of `ranks`, if all other ranks send the same as the last one."""
    kind, played = requests[0], dict(zip(ranks, requests, strict=False))
    everyone = [played.get(rank, requests[-1]) for rank in range(size)] if isinstance(kind, Gather | Route) else []
    if isinstance(kind, Gather):
        told = [payload(request) for request in everyone]
        return [list(told) for _ in requests]
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


def buckets(shapes: Shapes, scale: float, count: int, shaped: bool = False) -> list[Bucket]:
    """A bucket of these layers for each of `count` ranks, filled with noise of the rank's own.

    shaped  nothing but the shapes counts
    """
    layers, start = [], 0
    for number, (numel, ndim, rows) in enumerate(shapes):
        layers.append(Layer(f"layer{number}", start, start + numel, ndim, rows))
        start += numel
    with one_thread():
        return _filled(tuple(layers), start, scale, count, shaped)


def _filled(layers: tuple[Layer, ...], numel: int, scale: float, count: int, shaped: bool) -> list[Bucket]:
    """Buckets of these layers, `numel` elements together."""
    if shaped and numel > REAL:
        param = torch.empty(numel, device="meta")
        return [Bucket(0, torch.empty_like(param), param, layers) for _ in range(count)]
    if shaped:
        # Compressors change gradients, and only read parameters.
        param = _long_noise()[:numel]
        return [Bucket(0, GRADIENT_DEVIATION * param, param, layers) for _ in range(count)]
    param = PARAMETER_DEVIATION * _noise("param", numel)
    grads = [scale * GRADIENT_DEVIATION * _noise(f"grad {place}", numel) for place in range(count)]
    return [Bucket(0, grad, param, layers) for grad in grads]


def _noise(key: str, numel: int) -> Tensor:
    """Normal numbers, which repeat themselves where more than SAMPLE are wanted."""
    drawn = _drawn(key)
    return drawn[:numel] if numel <= SAMPLE else drawn.repeat(-(-numel // SAMPLE))[:numel]


@lru_cache(maxsize=1)
def _long_noise() -> Tensor:
    return _noise("param", REAL)


@lru_cache(maxsize=PLAYED + 1)
def _drawn(key: str) -> Tensor:
    return torch.randn(SAMPLE, generator=generator("sizing", key))
