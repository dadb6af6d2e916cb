"""Count what a compressor would launch on a GPU, on a machine without one.

Each operation of PyTorch that is not a view counts as a launch, as does each kernel; the answers of others do not.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime.interpreter import GridExecutor

from tests.helpers import answer_all, lay_out
from wirebench import compressors
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.flat import Bucket

# Neither reads nor writes memory of the GPU.
FREE = {
    *("view", "_unsafe_view", "as_strided", "_reshape_alias", "alias", "detach", "lift_fresh", "is_same_size"),
    *("slice", "select", "split", "split_with_sizes", "unbind", "diagonal", "expand", "unsqueeze", "squeeze"),
    *("t", "transpose", "permute", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
}


class _Counting(TorchDispatchMode):
    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name not in FREE:
            self.seen[name] += 1
        return func(*args, **(kwargs or {}))


class _Counted:
    """An exchange whose own work is counted, and the work of answering it is not."""

    def __init__(self, exchange: Any, seen: Counter[str]) -> None:
        self.exchange, self.seen = exchange, seen

    def send(self, answer: Any) -> Any:
        with _Counting(self.seen):
            return self.exchange.send(answer)


def launches(monkeypatch: Any, name: str, shapes: Sequence[tuple[int, ...]], **options: Any) -> Counter[str]:
    """What a rank launches in the third exchange of one bucket with these layers, by name; kernels have a capital K."""
    seen: Counter[str] = Counter()
    interpret = GridExecutor.__call__

    def counted(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        seen[f"K:{kernel.fn.__name__}"] += 1
        with _disable_current_modes():
            return interpret(kernel, *args, **kwargs)

    method = compressors.build(name, **options)
    layers = lay_out(shapes)
    generator = torch.Generator().manual_seed(0)
    for step in range(3):
        grad = torch.randn(layers[-1].stop, generator=generator)
        bucket = Bucket(0, grad, torch.zeros_like(grad), layers)
        seen.clear()
        with monkeypatch.context() as patched:
            patched.setattr(GridExecutor, "__call__", counted)
            exchange: Any = _Counted(method.exchange(bucket, ExchangeContext(0, 1, step)), seen)
            answer_all([exchange])
    return seen
