"""What an exchange may ask of the network: the requests that a compressor yields.

A compressor's `exchange` is a generator. It yields one of these per communication round and is sent the answer;
it never learns which collective or engine served it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

Combine = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Sum:
    """Elementwise sum over ranks.

    `tensor` has the same shape and dtype on every rank. It is consumed: it may be overwritten, and the answer may be
    the same tensor. The answer has its shape and is bit-identical on all ranks.
    `values` is how many of its elements stand for gradient values, be they quantised or sketched (None: all); the rest
    are indices, scales and masks. Only the byte counts of the record use it.
    """

    tensor: Tensor
    values: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Reduce:
    """Elementwise sum over ranks, on one of them.

    `tensor` and `values` as in `Sum`. The answer is the sum on one rank, which the plan chooses, and None elsewhere.
    """

    tensor: Tensor
    values: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Gather:
    """Every rank's tensor, on every rank.

    `tensor` is one-dimensional, of one dtype everywhere and of any length, which may differ between ranks and may be 0.
    The answer is a list of one tensor per rank, in rank order. `values` as in `Sum` (the rest being indices, scales
    or bits).
    """

    tensor: Tensor
    values: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Merge:
    """One indivisible message per rank, folded with `combine` along the plan.

    `message` is one-dimensional, of one dtype everywhere and of any length. `combine(mine, theirs)` returns the merged
    message; it may change `mine` but not `theirs`. The answer is the combined message, the same on all ranks. Where
    `combine` is not associative the answer depends on the plan, which the record therefore names. `values` as in
    `Gather`. `accounting` gives the same as `combine`; it is called in its place on one rank for each merge, also where
    a plan lets several ranks make the same one: what it counts of a merge can be summed over ranks.
    """

    message: Tensor
    combine: Combine
    values: int | None = None
    accounting: Combine | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One tensor from every rank to every rank (an all-to-all).

    `parts` is one tensor for every rank, in rank order, this rank's own among them: one-dimensional, of one dtype
    everywhere and of any length, which may be 0. The answer is a list of one tensor from every rank, in rank order.
    `values` as in `Gather`, of all parts together. `lengths` are the elements that come from every rank, in rank order,
    where all ranks know theirs: then no length travels in front of a part, and its receive is posted before any send.
    """

    parts: Sequence[Tensor]
    values: int | None = None
    lengths: Sequence[int] | None = None


Request = Sum | Reduce | Gather | Merge | Route
Answer = Tensor | list[Tensor] | None


def payload(request: Request) -> Tensor:
    """The tensor that a request hands to the network; a Route has several, see `handed_over`."""
    assert not isinstance(request, Route), "a route has no single tensor"
    return request.message if isinstance(request, Merge) else request.tensor


def handed_over(request: Request) -> list[Tensor]:
    """All tensors that a request hands to the network."""
    return list(request.parts) if isinstance(request, Route) else [payload(request)]
