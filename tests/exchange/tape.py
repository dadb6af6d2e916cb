"""Record operations on a CPU as a CUDA graph records them, and replay them at the same addresses.

What a graph cannot do is refused: to read a number on the host, to take one from there, to draw. While it records
nothing is done for good: memory that was there before gets its values back, and new memory is filled with noise. A
replay repeats operations of PyTorch and launches of kernels, and no Python between them.
"""

from collections.abc import Callable
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import GridExecutor

Result = TypeVar("Result")
ON_HOST = {"_local_scalar_dense", "equal", "is_nonzero", "lift_fresh", "masked_select", "nonzero", "_unique2"}
DRAWS = {"bernoulli_", "normal_", "rand", "randint", "randn", "random_", "randperm", "uniform_"}
NOISE = 0xAB


class Tape:
    """A recorder for `Graphs`."""

    def record(self, work: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
        """See wirebench.exchange.graphs.Recorder."""
        recording = _Recording()
        interpret = GridExecutor.__call__

        def launched(kernel: Any, *args: Any, **kwargs: Any) -> None:
            with _disable_current_modes():
                recording.keep(args)
                recording.operations.append(lambda: interpret(kernel, *args, **kwargs))
                interpret(kernel, *args, **kwargs)

        with patch.object(GridExecutor, "__call__", launched), recording:
            result = work()
        recording.undo()
        return recording.replay, result


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Callable[[], object]] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        """Of each storage that was there and is written to, its bytes, and a copy of them."""
        self.fresh: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func._schema.name.removeprefix("aten::"), kwargs or {}
        if name in ON_HOST | DRAWS:
            raise RuntimeError(f"{name} is not permitted while a graph is recorded")
        given = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.keep(given.get(argument.name))
        known = {_storage(each) for each in _tensors(given)}
        result = func(*args, **kwargs)
        made = [each if _storage(each) not in known else None for each in _tensors(result)]
        self.fresh |= {_storage(each): _bytes(each) for each in made if each is not None}
        if "empty" not in name:
            self.operations.append(lambda: _again(func, args, kwargs, made))
        return result

    def keep(self, tensors: Any) -> None:
        """Note what they hold, of those that were there before."""
        for each in _tensors(tensors):
            if _storage(each) not in self.before and _storage(each) not in self.fresh:
                self.before[_storage(each)] = _bytes(each), _bytes(each).clone()

    def undo(self) -> None:
        for now, then in self.before.values():
            now.copy_(then)
        for each in self.fresh.values():
            each.fill_(NOISE)

    def replay(self) -> None:
        for operation in self.operations:
            operation()


def _again(func: Any, args: Any, kwargs: Any, made: list[Tensor | None]) -> None:
    for first, now in zip(made, _tensors(func(*args, **kwargs)), strict=True):
        if first is not None:
            first.copy_(now)


def _tensors(tree: Any) -> list[Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, Tensor)]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _bytes(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
