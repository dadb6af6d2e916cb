"""Hooks that leave a model a model: it is copied, pickled and compiled as if it had none."""

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from wirebench.errors import UserError


class WeakHook:
    """Calls a bound method, which it holds weakly, as a hook of a module or of an optimizer.

    method     called with `arguments`, then with what the module gives its hook; what it returns is ignored
    lost       what is wrong where the method's object is gone: UserError; "" where that is no matter
    A copy or a pickle of the model has a hook of the standard library in its place that does nothing. torch.compile
    leaves it out of what it compiles: the model is one graph, and its passes are seen by their gradients alone.
    """

    def __init__(self, method: Callable[..., object], *arguments: object, lost: str = "") -> None:
        self._method, self._arguments, self._lost = weakref.WeakMethod(method), arguments, lost

    def __call__(self, *given: Any) -> None:
        """The module's call."""
        if not torch.compiler.is_compiling():
            self._call(*given)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A copy becomes a function that takes any arguments and returns None, wherever it is loaded."""
        return getattr, (nullcontext(), "__exit__")

    def _call(self, *given: Any) -> None:
        method = self._method()
        if method is not None:
            method(*self._arguments, *given)
        elif self._lost:
            raise UserError(self._lost)


class NeededHook(WeakHook):
    """A hook without which the model's pass is wrong: what torch.compile makes of the model stops to call it."""

    def __init__(self, method: Callable[..., object], *arguments: object) -> None:
        super().__init__(method, *arguments)
        # Here, and not as a decorator: it loads a compiler, which takes every process a second or two.
        self._outside = torch.compiler.disable(self._call)

    def __call__(self, *given: Any) -> None:
        """The module's call."""
        self._outside(*given)
