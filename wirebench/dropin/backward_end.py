"""The end of a backward pass, at which DistributedDataParallel has averaged the gradients, and so has `synchronise`."""

import weakref
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

Marks = tuple[tuple[int, int, int], ...]


class BackwardEnd:
    """Calls a bound method, held weakly, at the end of each backward pass in which `seen` was called.

    In a reentrant pass (as some checkpointing makes them) at the end of the inner ones, too. An error that the method
    raises ends the pass.
    """

    def __init__(self, method: Callable[[], object]) -> None:
        self._method = weakref.WeakMethod(method)
        self._task = -1

    def seen(self) -> None:
        """Note a gradient; call it from the gradient's hook."""
        # A pass that failed never ends, so that its number is kept, not whether one is awaited.
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            torch.autograd.Variable._execution_engine.queue_callback(self._ends)

    def _ends(self) -> None:
        self._task = -1
        method = self._method()
        if method is not None:
            method()


def marks(parameters: Iterable[Tensor]) -> Marks:
    """Which gradients there are and how often each was changed in place: other marks mean another gradient."""
    grads = (parameter.grad for parameter in parameters)
    return tuple((id(grad), grad._version, grad.data_ptr()) if grad is not None else (0, 0, 0) for grad in grads)
