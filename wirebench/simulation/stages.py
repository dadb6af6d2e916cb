"""A bucket's exchange in its parts: what a compressor does, and the requests that it makes."""

from collections.abc import Sequence
from typing import NamedTuple

from wirebench.costmodel.played_exchange import RequestSize
from wirebench.costmodel.request_cost import Pricer
from wirebench.gradient.requests import Sum
from wirebench.gradient.schedule import Duration

COMPRESS = "compress"
"""The name of a compressor's own work among the stages of an exchange."""


class Factors(NamedTuple):
    """How many times as long as predicted parts of a step take: requests, the compressor's work, computation."""

    messages: float
    compress: float
    compute: float = 1.0


AS_PREDICTED = Factors(1.0, 1.0)


class Work(NamedTuple):
    """Seconds of a compressor on a bucket: before its requests are answered, and after the last one."""

    before: float
    after: float = 0.0


class Stage(NamedTuple):
    """A part of a bucket's exchange, one after the other: the compressor's work, or a request (or half of a sum).

    name       "compress", the request's kind, or "reduce-scatter" and "all-gather" for the halves of a split sum
    num_bytes  that a rank hands to the network
    copy       it belongs to the second part of a split exchange
    """

    name: str
    num_bytes: float
    seconds: float
    copy: bool = False


def duration(stages: Sequence[Stage], factors: Factors = AS_PREDICTED) -> Duration:
    """Seconds of a bucket's exchange, stage after stage, each multiplied by its factor in `factors`."""
    first = second = 0.0
    for name, _, seconds, copy in stages:
        seconds *= factors.compress if name == COMPRESS else factors.messages
        if copy:
            second += seconds
        else:
            first += seconds
    return Duration(first, second)


def work_of(stages: Sequence[Stage], factors: Factors = AS_PREDICTED) -> Work:
    """The compressor's work for a bucket; in a split exchange, the work of its first part."""
    first, last = stages[0], stages[-1]
    return Work(factors.compress * first.seconds, 0.0 if last.copy else factors.compress * last.seconds)


def whole(pricer: Pricer, requests: Sequence[RequestSize], work: Work) -> list[Stage]:
    """A bucket's exchange: the compressor's work around its requests; what it does between two comes before them."""
    asked = (_stage(pricer, each) for each in requests)
    return [Stage(COMPRESS, 0.0, work.before), *asked, Stage(COMPRESS, 0.0, work.after)]


def _stage(pricer: Pricer, request: RequestSize, copy: bool = False) -> Stage:
    return Stage(request.kind.__name__, request.num_bytes, pricer.seconds(request), copy)


def in_halves(pricer: Pricer, requests: Sequence[RequestSize], work: Work) -> list[Stage]:
    """A bucket's exchange that is interrupted at its first sum, as in a job (exchange/reduce_scatter.py).

    Up to that sum's reduce-scatter it runs in the backward pass; its all-gather, all requests after it and what is
    decoded run under the next forward pass. What a compressor does between two requests counts as before that sum.
    """
    place = next((number for number, each in enumerate(requests) if each.kind is Sum), None)
    if place is None:
        return whole(pricer, requests, work)
    first, second = pricer.halves(requests[place])
    num_bytes = requests[place].num_bytes
    return [
        *whole(pricer, requests[:place], Work(work.before)),
        Stage("reduce-scatter", num_bytes, first),
        Stage("all-gather", num_bytes, second, copy=True),
        *(_stage(pricer, each, copy=True) for each in requests[place + 1 :]),
        Stage(COMPRESS, 0.0, work.after, copy=True),
    ]
