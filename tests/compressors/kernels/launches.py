"""Count what a compressor would launch on a GPU, on a machine without one.

Each operation of PyTorch that is not a view counts as a launch, as does each kernel; the answers of others do not, nor
does what the host draws.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from triton._C.libtriton import ir
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

from tests.helpers import answer_all, lay_out
from wirebench import compressors
from wirebench.compressors import iwp, randomk
from wirebench.compressors.lowrank.base import Factored
from wirebench.compressors.sketch import heavy_hitters
from wirebench.compressors.sketch.block_hash import BlockHash
from wirebench.compressors.sparse import thresholds
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.flat import Bucket

PAGE_BITS = 16
MEETING = ir.MEM_SEMANTIC.ACQUIRE_RELEASE
"""By it programs of a launch meet (`together.meet`)."""
NOTHING = np.zeros(1 << PAGE_BITS, dtype=bool)
# Neither reads nor writes memory of the GPU.
FREE = {
    *("view", "_unsafe_view", "as_strided", "_reshape_alias", "alias", "detach", "lift_fresh", "is_same_size"),
    *("slice", "select", "split", "split_with_sizes", "unbind", "diagonal", "expand", "unsqueeze", "squeeze"),
    *("t", "transpose", "permute", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
}


DRAWN = (
    *((randomk, "draw"), (BlockHash, "__init__"), (BlockHash, "redraw"), (Factored, "draws")),
    *((heavy_hitters, "_heavy_and_others"), (thresholds, "_strided"), (thresholds, "_quantile")),
    *((iwp, "due"), (iwp, "note"), (iwp, "typical_ratio")),
)
"""Where the host draws, or works on what it has read and keeps."""
CHOSEN = {"index_select"}
"""Reads as many numbers as it writes."""
LIKE = {"new_full", "new_zeros", "full_like", "zeros_like"}
"""Reads nothing."""


class _Counting(TorchDispatchMode):
    def __init__(self, seen: Counter[str], moved: Counter[str]) -> None:
        super().__init__()
        self.seen, self.moved = seen, moved

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name not in FREE:
            self.seen[name] += 1
        result = func(*args, **(kwargs or {}))
        if name not in FREE:
            read = result if name in CHOSEN else () if name in LIKE else args[1:2] if name == "copy_" else args
            self.moved[name] += sum(each.nbytes for each in tree_leaves((read, result)) if isinstance(each, Tensor))
        return result


class _Traffic:
    """Bytes that one launch reads and writes: each address once, and none is read that was written before; anew where
    its programs meet, since a vector does not stay in a cache.
    """

    def __init__(self) -> None:
        self.read: dict[int, np.ndarray[Any, Any]] = {}
        self.written: dict[int, np.ndarray[Any, Any]] = {}
        self.bytes = 0

    def note(self, pointers: Any, mask: Any, into: str) -> None:
        addresses = pointers.data[np.broadcast_to(mask.data, pointers.data.shape)].astype(np.int64)
        for page in np.unique(addresses >> PAGE_BITS):
            here = np.zeros(1 << PAGE_BITS, dtype=bool)
            here[addresses[addresses >> PAGE_BITS == page] & ((1 << PAGE_BITS) - 1)] = True
            known = [self.written] if into == "written" else [self.written, self.read]
            for pages in known:
                here &= ~pages.get(page, NOTHING)
            self.bytes += int(here.sum()) * (pointers.get_element_ty().primitive_bitwidth // 8)
            pages = getattr(self, into)
            pages[page] = here | pages.get(page, NOTHING)

    def watch(self, patched: Any) -> None:
        """Have the interpreter's loads and stores noted."""
        load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
        change = InterpreterBuilder.create_atomic_rmw

        def loaded(builder: Any, pointers: Any, mask: Any, *args: Any) -> Any:
            self.note(pointers, mask, "read")
            return load(builder, pointers, mask, *args)

        def stored(builder: Any, pointers: Any, value: Any, mask: Any, *args: Any) -> Any:
            self.note(pointers, mask, "written")
            return store(builder, pointers, value, mask, *args)

        def changed(builder: Any, operation: Any, pointers: Any, value: Any, mask: Any, sem: Any, scope: Any) -> Any:
            if sem == MEETING:
                self.read.clear()
                self.written.clear()
            return change(builder, operation, pointers, value, mask, sem, scope)

        patched.setattr(InterpreterBuilder, "create_atomic_rmw", changed)
        patched.setattr(InterpreterBuilder, "create_masked_load", loaded)
        patched.setattr(InterpreterBuilder, "create_masked_store", stored)


class _Counted:
    """An exchange whose own work is counted; that of answering it is not, nor that of other ranks.

    launch  what counts a kernel
    """

    def __init__(self, exchange: Any, counting: _Counting, launch: Any) -> None:
        self.exchange, self.counting, self.launch = exchange, counting, launch

    def send(self, answer: Any) -> Any:
        with self.counting, patch.object(GridExecutor, "__call__", self.launch):
            return self.exchange.send(answer)


def _on_host(draw: Any) -> Any:
    def drawn(*args: Any) -> Any:
        with _disable_current_modes():
            return draw(*args)

    return drawn


def launches(
    monkeypatch: Any, name: str, shapes: Sequence[tuple[int, ...]], ranks: int = 1, **options: Any
) -> Counter[str]:
    """What a rank launches in the third exchange of one bucket with these layers, by name; kernels have a capital K."""
    return _third(monkeypatch, name, shapes, options, False, ranks)[0]


def moved(monkeypatch: Any, name: str, shapes: Sequence[tuple[int, ...]], **options: Any) -> Counter[str]:
    """The bytes that these launches read and write, by name."""
    return _third(monkeypatch, name, shapes, options, True)[1]


def launches_of(call: Callable[[], object]) -> Counter[str]:
    """What a call launches, by name."""
    seen: Counter[str] = Counter()
    interpret = GridExecutor.__call__

    def counted(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        seen[f"K:{kernel.fn.__name__}"] += 1
        with _disable_current_modes():
            return interpret(kernel, *args, **kwargs)

    with _Counting(seen, Counter()), patch.object(GridExecutor, "__call__", counted):
        call()
    return seen


def _third(
    monkeypatch: Any,
    name: str,
    shapes: Sequence[tuple[int, ...]],
    options: dict[str, Any],
    weighed: bool,
    ranks: int = 1,
) -> tuple[Counter[str], Counter[str]]:
    seen: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    interpret = GridExecutor.__call__

    def counted(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        seen[f"K:{kernel.fn.__name__}"] += 1
        traffic = _Traffic()
        with _disable_current_modes(), monkeypatch.context() as patched:
            if weighed:
                traffic.watch(patched)
            result = interpret(kernel, *args, **kwargs)
        moved[f"K:{kernel.fn.__name__}"] += traffic.bytes
        return result

    methods = [compressors.build(name, **options) for _ in range(ranks)]
    layers = lay_out(shapes)
    generator = torch.Generator().manual_seed(0)
    for step in range(3):
        # Smaller ones, as a residual's growth, which a threshold has to follow, is smaller after many steps.
        grads = [torch.randn(layers[-1].stop, generator=generator) / (1 + step) for _ in methods]
        buckets = [Bucket(0, grad, torch.ones_like(grad), layers) for grad in grads]
        seen.clear()
        moved.clear()
        with monkeypatch.context() as patched:
            for place, name_there in DRAWN:
                patched.setattr(place, name_there, _on_host(getattr(place, name_there)))
            exchanges: list[Any] = [
                method.exchange(bucket, ExchangeContext(rank, ranks, step))
                for rank, (method, bucket) in enumerate(zip(methods, buckets, strict=True))
            ]
            exchanges[0] = _Counted(exchanges[0], _Counting(seen, moved), counted)
            answer_all(exchanges)
    return seen, moved
