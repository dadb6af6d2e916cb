"""What tests of several rooms share: small models as layers, and ways to answer exchanges."""

import json
import time
from collections.abc import Callable, Generator, Sequence
from functools import cache
from itertools import accumulate
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from wirebench.collectives import build
from wirebench.collectives.execution.executor import REDUCE_SCATTER_DONE, RequestExecutor
from wirebench.comm.local import LocalHub
from wirebench.comm.metered import Metered
from wirebench.compressors import kernels
from wirebench.exchange.advance import Steps, advance, run
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.flat import Bucket, Layer
from wirebench.gradient.requests import Combine, Gather, Merge, Reduce, Request, Route, Sum, payload
from wirebench.topology.tree import Topology

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, CUDA])]
Exchanges = Sequence[Generator[Request, Any, Tensor]]
Log = list[list[Request]]


class Gathering:
    """A communicator that gathers these as JSON, with the caller's own in the place of `rank`; it counts its calls."""

    def __init__(self, *others: object, rank: int = 0) -> None:
        self.others, self.rank, self.calls = others, rank, 0

    def all_gather(self, mine: Tensor) -> Any:
        self.calls += 1
        parts = [torch.frombuffer(bytearray(json.dumps(each).encode()), dtype=torch.uint8) for each in self.others]
        parts.insert(self.rank, mine)
        return SimpleNamespace(wait=lambda: parts)


@cache
def pace() -> float:
    """Seconds that this processor takes to count to ten million: a measure of work that is the same on a slower one."""
    begin = time.process_time()
    sum(range(10_000_000))
    return time.process_time() - begin


def examples(full: int) -> settings:
    """As many random examples as `make test-all` takes of a property; by day a fifth, other ones every day."""
    return settings(max_examples=full * settings().max_examples // 100, deadline=None)


def both(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> tuple[Any, Any]:
    """What the twin in PyTorch gives, and what the kernel gives."""
    found = []
    for usable in (False, True):
        monkeypatch.setattr(kernels, "usable", lambda x, usable=usable: usable)
        found.append(call())
    return found[0], found[1]


def lay_out(shapes: Sequence[tuple[int, ...]]) -> tuple[Layer, ...]:
    """Layers of these shapes, one after the other."""
    stops = list(accumulate(prod(shape) for shape in shapes))
    return tuple(
        Layer(f"layer{i}", stop - prod(shape), stop, len(shape), shape[0])
        for i, (shape, stop) in enumerate(zip(shapes, stops, strict=True))
    )


def cut(grad: Tensor, layers: tuple[Layer, ...], groups: Sequence[range], param: Tensor | None = None) -> list[Bucket]:
    """Buckets of the flat gradient `grad`: one for each group of layers."""
    param = torch.zeros_like(grad) if param is None else param
    buckets = []
    for index, group in enumerate(groups):
        chosen = layers[group.start : group.stop]
        piece = slice(chosen[0].start, chosen[-1].stop)
        buckets.append(Bucket(index, grad[piece], param[piece], chosen, layers))
    return buckets


def whole_numbers(size: int, seed: int, numel: int, most: int = 8) -> list[Tensor]:
    """A vector for each rank, of whole numbers of up to this magnitude, whose sums are exact."""
    rng = torch.Generator().manual_seed(seed)
    return [torch.randint(-most, most + 1, (numel,), generator=rng).float() for _ in range(size)]


def normal(size: int, seed: int, numel: int) -> list[Tensor]:
    """A vector of normally distributed numbers for each rank."""
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(numel, generator=rng) for _ in range(size)]


def whole(grad: Tensor) -> Bucket:
    """The bucket of a model with a single two-dimensional layer."""
    return Bucket(0, grad, torch.zeros_like(grad), (Layer("weight", 0, grad.numel(), 2),))


def exchange(
    ranks: Sequence[Any],
    grads: Sequence[Tensor],
    layers: tuple[Layer, ...] | None = None,
    log: Log | None = None,
    **world: Any,
) -> list[Tensor]:
    """One exchange of the whole model by all ranks' compressors, of copies of their gradients; their results.

    layers: by default one matrix; world: fields of ExchangeContext, such as step
    """
    worlds = [ExchangeContext(rank, len(ranks), **world) for rank in range(len(ranks))]
    copies = [grad.clone() for grad in grads]
    buckets = [cut(each, layers, [range(len(layers))])[0] if layers else whole(each) for each in copies]
    return answer_all([r.exchange(b, w) for r, b, w in zip(ranks, buckets, worlds, strict=True)], log)


def answer_all(exchanges: Exchanges, log: Log | None = None) -> list[Tensor]:
    """Run all ranks' exchanges with the plainest answers there are: sums, lists and folds in rank order.

    The reference of the real engines. Each round's requests, one per rank with a copy of its payload, go to `log`.
    """
    answers: list[Any] = [None] * len(exchanges)
    while True:
        requests: list[Request] = []
        results: list[Tensor] = []
        for exchange, answer in zip(exchanges, answers, strict=True):
            try:
                requests.append(exchange.send(answer))
            except StopIteration as stop:
                results.append(stop.value)
        if not requests:
            return results
        assert len(requests) == len(exchanges), "the ranks make different numbers of rounds"
        assert len({type(request) for request in requests}) == 1, f"the ranks ask for different things: {requests}"
        copies = [_copy(request) for request in requests]
        if log is not None:
            log.append(copies)
        answers = [_answer(copies, rank) for rank in range(len(requests))]


def _copy(request: Request) -> Request:
    if isinstance(request, Merge):
        return Merge(request.message.clone(), request.combine, request.values, request.accounting)
    if isinstance(request, Route):
        return Route([part.clone() for part in request.parts], request.values, request.lengths)
    return type(request)(request.tensor.clone(), request.values)


def _answer(requests: Sequence[Request], rank: int) -> Tensor | list[Tensor] | None:
    """What `rank` gets; of a merge rank 0 alone accounts, so that what all ranks have noted can be summed."""
    tensors = [(r.parts[rank] if isinstance(r, Route) else payload(r)).clone() for r in requests]
    assert len({tensor.dtype for tensor in tensors}) == 1, "the ranks hand over different dtypes"
    first = requests[rank]
    combine: Combine = Tensor.add_
    if isinstance(first, Merge):
        combine = first.combine if rank or first.accounting is None else first.accounting
    if isinstance(first, Route):
        lengths = [tensor.numel() for tensor in tensors]
        assert first.lengths is None or list(first.lengths) == lengths, "a rank knows the lengths of what comes to it"
    if isinstance(first, Gather | Route):
        assert all(tensor.dim() == 1 for tensor in tensors), "only vectors are gathered and routed"
        assert not isinstance(first, Route) or len(first.parts) == len(requests), "every rank has a part"
        return tensors
    total = tensors[0]
    for tensor in tensors[1:]:
        assert not isinstance(first, Sum | Reduce) or tensor.shape == total.shape, "the ranks sum different shapes"
        total = combine(total, tensor)
    return None if rank and isinstance(first, Reduce) else total


class LocalEngine:
    """`size` virtual workers on the suite's own local engine and the collective of this name."""

    def __init__(self, size: int, collective: str = "native"):
        topology, chosen = Topology.flat(size), build(collective)
        communicators = LocalHub(size).communicators
        self.servers = [RequestExecutor(Metered(communicator), chosen, topology) for communicator in communicators]

    def answer_all(self, exchanges: Exchanges) -> list[Tensor]:
        """Run all ranks' exchanges and return their results."""
        return run([advance(e, s.serve) for e, s in zip(exchanges, self.servers, strict=True)])

    def answer_in_halves(self, buckets: Sequence[Exchanges]) -> list[list[Tensor]]:
        """As `dear` does: each bucket's exchanges until a sum is half done, then the rest, the last bucket's first.

        `buckets` has one exchange for each rank of each bucket; returns their results likewise.
        """
        for server in self.servers:
            server.halves = True
        under_way = [[advance(e, s.serve) for e, s in zip(each, self.servers, strict=True)] for each in buckets]
        results = [_to_half(steps) for steps in under_way]
        for number in reversed(range(len(under_way))):
            # An exchange without a sum is over already.
            results[number] = results[number] or run(under_way[number])
        for server in self.servers:
            server.halves = False
        return [found for found in results if found is not None]


def _to_half(ranks: Sequence[Steps]) -> list[Tensor] | None:
    """Advance all ranks' exchanges round by round: their results, or None where they reach the half of a sum."""
    answers: list[Any] = [None] * len(ranks)
    while True:
        handles, results = [], []
        for steps, answer in zip(ranks, answers, strict=True):
            try:
                handles.append(steps.send(answer))
            except StopIteration as stop:
                results.append(stop.value)
        if results:
            return results
        if REDUCE_SCATTER_DONE in handles:
            assert all(handle is REDUCE_SCATTER_DONE for handle in handles)
            return None
        answers = [handle.wait() for handle in handles]
