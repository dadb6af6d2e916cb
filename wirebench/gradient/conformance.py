"""Check a compressor's promises at run time: one line names a user's plugin that breaks one.

wirebench/gradient/contract.py has the whole contract; tests/compressors/test_contract.py holds a method to all of it.
"""

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from wirebench.errors import UserError
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Bare, Compressor, Exchange, Method
from wirebench.gradient.flat import Bucket
from wirebench.gradient.requests import Request

TAKEN = (torch.float32, torch.bfloat16)
"""Gradient dtypes that every method accepts."""
DENSE = "none"
"""The name of the compressor that does not compress."""
PARTS = ("exchange", "wire_bytes", "state_dict", "load_state_dict")


def method_of(compressor: Any) -> Method:
    """A compressor that has just been built, as what the suite works with; UserError unless it has all it must."""
    check(compressor)
    return compressor if isinstance(compressor, Method) else Bare(compressor)


def check(compressor: Any) -> None:
    """UserError unless a compressor that has just been built has all that the suite calls."""
    for part in PARTS:
        promised = vars(Compressor)[part]  # a class that is made from the contract has this, which does nothing
        if not callable(getattr(compressor, part, None)) or getattr(type(compressor), part, None) is promised:
            raise broken(
                compressor, f"has no {part}(); Method (wirebench/gradient/contract.py) is a base to begin with"
            )
    if not hasattr(compressor, "owns_momentum"):
        raise broken(
            compressor, "has no owns_momentum; Method (wirebench/gradient/contract.py) is a base to begin with"
        )
    try:
        compressor.state_dict()
    except AttributeError as error:
        text = f"cannot give its state ({error}); does its constructor call super().__init__()?"
        raise broken(compressor, text) from error


def exchange(compressor: Compressor, bucket: Bucket, world: ExchangeContext) -> Exchange:
    """The compressor's exchange of a bucket, of any floating dtype and with layers of any size, checked on the way.

    Yields its requests and returns the average in the bucket's dtype. A compressor never gets a layer without elements;
    a bucket of these alone asks for nothing. A bfloat16 gradient comes to it as fp32 (Bucket.wire_dtype) unless it
    takes any dtype. Raises UserError as `refuse_dtype` does, and where the exchange is no generator, yields something
    else than requests, or returns something else than a tensor of the bucket's shape.
    """
    if not bucket.numel:
        return bucket.grad
    fitting = _fitting(compressor, bucket)
    average = yield from _checked(compressor, fitting, world)
    if fitting is bucket:
        return average
    mine = bucket.grad[_part(bucket, fitting)]
    if average.data_ptr() != mine.data_ptr():
        mine.copy_(average)
    return bucket.grad


def refuse_dtype(compressor: Compressor, dtype: torch.dtype) -> None:
    """UserError for a gradient of a dtype that the compressor does not take."""
    if dtype not in TAKEN and not (_takes_any(compressor) and dtype.is_floating_point):
        taken = "real floating dtypes" if _takes_any(compressor) else "float32 or bfloat16"
        kind = str(dtype).removeprefix("torch.")
        raise UserError(f"compressor.name: {name_of(compressor)!r} takes gradients of {taken}, not of {kind}")


def _takes_any(compressor: Compressor) -> bool:
    return not isinstance(compressor, Method) or compressor.any_dtype


def _fitting(compressor: Compressor, bucket: Bucket) -> Bucket:
    """The bucket as the compressor gets it: the same one where all layers have elements and it takes the dtype."""
    dtype = bucket.grad.dtype
    refuse_dtype(compressor, dtype)
    if not all(layer.start < layer.stop for layer in bucket.layers):
        layers = tuple(layer for layer in bucket.layers if layer.numel)
        part = _part(bucket, replace(bucket, layers=layers))
        bucket = replace(bucket, grad=bucket.grad[part], param=bucket.param[part], layers=layers)
    if dtype != torch.float32 and not _takes_any(compressor):
        reads = isinstance(compressor, Method) and compressor.reads_weights
        param = bucket.param.float() if reads else bucket.param
        bucket = replace(bucket, grad=bucket.grad.float(), param=param, wire_dtype=dtype)
    return bucket


def _part(bucket: Bucket, inner: Bucket) -> slice:
    """Where a bucket of some of the layers lies in this one's gradient: padding may come before its first layer."""
    return slice(inner.start - bucket.start, inner.stop - bucket.start)


def _checked(compressor: Compressor, bucket: Bucket, world: ExchangeContext) -> Exchange:
    steps = compressor.exchange(bucket, world)
    if not isinstance(steps, Generator):
        raise broken(compressor, f"its exchange must be a generator that yields requests, and is {_kind(steps)}")
    answer = None
    while True:
        try:
            request = steps.send(answer)
        except StopIteration as stop:
            average = stop.value
            break
        if not isinstance(request, Request):
            raise broken(
                compressor, f"its exchange must yield requests (wirebench/gradient/requests.py), not {_kind(request)}"
            )
        answer = yield request
    if not isinstance(average, Tensor) or average.shape != bucket.grad.shape:
        shape = tuple(bucket.grad.shape)
        raise broken(compressor, f"its exchange must return the average, of shape {shape}, not {_kind(average)}")
    return average


def broken(compressor: Compressor, text: str) -> UserError:
    """The error that names the plugin."""
    return UserError(f"compressor.name: {name_of(compressor)!r}: {text}")


def name_of(compressor: Compressor) -> str:
    """The plugin's name as a config has it; for a wrapper, the name of the compressor inside."""
    return type(unwrapped(compressor)).__module__.removeprefix("wirebench.compressors.")


def unwrapped(compressor: Compressor) -> Compressor:
    """The compressor inside all wrappers."""
    while isinstance(compressor, Method) and compressor.inner is not None:
        compressor = compressor.inner
    return compressor


def _kind(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
