"""What compressors are compared with: PyTorch's own hooks, and the obvious ways of selecting and of sketching.

Each is a compressor, so that the same loop times it. None of them splits its work: a hook's time is one piece.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Method
from wirebench.gradient.flat import FLOAT_BYTES, Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Sum

POWERSGD_RANK = 1
"""PyTorch's own default, and ours."""
DDP_POWERSGD = f"DDP PowerSGD, rank {POWERSGD_RANK}"
SKETCH_ROWS = 5
COLUMNS_PER_ENTRY = 4


class Rival(Method):
    """Base class of all baselines; no plan uses them."""

    def wire_bytes(self, numel: int, size: int) -> int:
        """The size of the vector in bytes, fp32."""
        return FLOAT_BYTES * numel


class Copy(Rival):
    """The unit itself, timed as all methods are: shows how much the measurement scatters."""

    def __init__(self) -> None:
        super().__init__()
        self._target: dict[str, Tensor] = {}

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """No request."""
        if not self._target:
            self._target["target"] = torch.zeros_like(bucket.grad)
        self._target["target"].copy_(bucket.grad)
        yield from ()
        return bucket.grad


class TopKOfTorch(Rival):
    """`torch.topk(x.abs(), k)`, the selection alone: nothing is encoded, kept or averaged."""

    def __init__(self, density: float) -> None:
        super().__init__()
        self.density = density

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """No request."""
        with phase("select"):
            torch.topk(bucket.grad.abs(), max(int(bucket.grad.numel() * self.density), 1))
        yield from ()
        return bucket.grad


class SketchOfTorch(Rival):
    """A Count-Sketch of 5 rows of 4 k columns by `index_add_`, the sketching alone.

    Buckets (int32) and signs (fp32) of all elements are drawn at the first step and kept, so hashing costs no time,
    but 10 times the memory of the vector.
    """

    def __init__(self, density: float) -> None:
        super().__init__()
        self.density = density
        self.hashes: dict[str, Tensor] = {}

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """No request."""
        grad = bucket.grad
        columns = COLUMNS_PER_ENTRY * max(int(grad.numel() * self.density), 1)
        if not self.hashes:
            self._draw(grad, columns)
        with phase("select"):
            rows = grad.new_zeros(SKETCH_ROWS, columns)
            for row, places, signs in zip(rows, self.hashes["places"], self.hashes["signs"], strict=True):
                row.index_add_(0, places, grad * signs)
        yield from ()
        return grad

    def state_dict(self) -> dict[str, Tensor]:
        """The hashes."""
        return self.hashes

    def _draw(self, grad: Tensor, columns: int) -> None:
        shape = (SKETCH_ROWS, grad.numel())
        self.hashes = {
            "places": torch.randint(columns, shape, dtype=torch.int32, device=grad.device),
            "signs": torch.empty(shape, device=grad.device).bernoulli_().mul_(2).sub_(1),
        }


class DdpHook(Rival):
    """A communication hook of DistributedDataParallel on one bucket.

    Its all-reduces are answered at once with the same tensor, as ours are. Its time is not split into parts, since
    reading the gradient, keeping state and writing back happen in one call.
    """

    def __init__(self, hook: Callable[[Any, Any], torch.futures.Future], state: Any) -> None:
        super().__init__()
        self.hook, self.state = hook, state

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """A sum for every all-reduce that the hook makes; they are asked for after it, only to be counted."""
        sent: list[Tensor] = []
        with _answered(sent):
            group = _Group(world.size)
            state = group if self.state is None else self.state
            if isinstance(state, PowerSGDState):
                state.process_group = group
            result = self.hook(state, _GradBucket(bucket)).wait()
        for tensor in sent:
            yield Sum(tensor)
        return result

    def state_dict(self) -> dict[str, Tensor]:
        """What PowerSGD keeps: the errors, and the last P and Q."""
        if not isinstance(self.state, PowerSGDState):
            return {}
        kept = (self.state.error_dict, self.state.p_memory_dict, self.state.q_memory_dict)
        return {f"{number}.{index}": tensor for number, each in enumerate(kept) for index, tensor in each.items()}


class _Group:
    """Stands in for a process group."""

    def __init__(self, size: int) -> None:
        self._size = size

    def size(self) -> int:
        return self._size


class _GradBucket:
    """Stands in for torch.distributed.GradBucket, which cannot be made in Python."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def buffer(self) -> Tensor:
        return self._bucket.grad

    def gradients(self) -> Sequence[Tensor]:
        pieces = [(layer, self._bucket.grad[layer.start : layer.stop]) for layer in self._bucket.layers]
        return [piece.view(layer.rows, -1) if layer.ndim > 1 else piece for layer, piece in pieces]


@contextmanager
def _answered(sent: list[Tensor]) -> Iterator[None]:
    """While it lasts, torch.distributed.all_reduce notes its tensor in `sent` and is done at once."""

    def all_reduce(tensor: Tensor, *_: object, **__: object) -> SimpleNamespace:
        sent.append(tensor)
        future: torch.futures.Future = torch.futures.Future(devices=[tensor.device] if tensor.is_cuda else None)
        future.set_result([tensor])
        return SimpleNamespace(get_future=lambda: future)

    with mock.patch.object(dist, "all_reduce", all_reduce):
        yield


def _powersgd() -> DdpHook:
    state = PowerSGDState(None, matrix_approximation_rank=POWERSGD_RANK, start_powerSGD_iter=2)
    state.iter = 2  # past the steps that it leaves dense
    return DdpHook(powerSGD_hook, state)


def rivals(density: float) -> dict[str, Callable[[], Method]]:
    """How each is made, by the name that it has in the table."""
    return {
        "copy": Copy,
        "torch.topk": partial(TopKOfTorch, density),
        "index_add_ sketch": partial(SketchOfTorch, density),
        "DDP fp16": partial(DdpHook, fp16_compress_hook, None),
        DDP_POWERSGD: _powersgd,
    }
