"""The engines' own gradient synchronisers, driven as ours are: the baselines that every result is compared with."""

import inspect
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from wirebench.collectives.execution.executor import RequestLog
from wirebench.comm.base import ring_reduce_bytes
from wirebench.comm.engine import Engine
from wirebench.errors import UserError

# The name since torch 2.15; the one before still works there but warns.
_NAMES = inspect.signature(DistributedDataParallel).parameters
_KEEP_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _NAMES else "broadcast_buffers"


class DdpSync:
    """torch.nn.parallel.DistributedDataParallel; `module` is what the train loop calls.

    bucket_cap_mb  DDP's bucket size in MiB; 0: its default (25, the first bucket 1)
    find_unused    some parameters take no part in the loss
    Buffers of the model (statistics of normalisation) stay each rank's own, as they do with our schedulers.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, device: torch.device, bucket_cap_mb: float, find_unused: bool
    ) -> None:
        self.optimizer = optimizer
        self.served = _served("DistributedDataParallel", model, dist.get_world_size())
        options: dict[str, Any] = {
            "device_ids": [device] if device.type == "cuda" else None,
            "bucket_cap_mb": bucket_cap_mb or None,
            "find_unused_parameters": find_unused,
            _KEEP_BUFFERS: False,
        }
        self.module = DistributedDataParallel(model, **options)

    def begin(self, step: int, epoch: int) -> None:
        """Forget the gradients of the step before; accumulate without synchronising."""
        for parameter in self.module.parameters():
            parameter.grad = None
        self.module.require_backward_grad_sync = False

    def enable_sync(self) -> None:
        """Synchronise in the backward pass that comes."""
        self.module.require_backward_grad_sync = True

    def finish(self) -> None:
        """DDP has already waited, at the end of the backward pass."""

    def take_logs(self) -> list[list[RequestLog]]:
        """One step's bytes, by the formula of a ring."""
        return [[self.served]]

    def stepping(self) -> AbstractContextManager[None]:
        """A context that does nothing: the optimizer's step needs no change."""
        return nullcontext()

    def met(self, step: int) -> int:
        """Every step has an exchange of all ranks."""
        return step

    def settle(self) -> None:
        """The engine ends with the step."""

    def evaluation_view(self) -> AbstractContextManager[None]:
        """The model is what it is."""
        return nullcontext()

    def close(self) -> None:
        """Do nothing: the suite has attached nothing."""


class HorovodSync:
    """hvd.DistributedOptimizer; `optimizer` is what the train loop steps."""

    def __init__(self, hvd: Any, model: nn.Module, optimizer: Optimizer, accumulation: int) -> None:
        self.module = model
        self.served = _served("hvd.DistributedOptimizer", model, hvd.size())
        self.optimizer = hvd.DistributedOptimizer(
            optimizer, model.named_parameters(), op=hvd.Average, backward_passes_per_step=accumulation
        )

    def begin(self, step: int, epoch: int) -> None:
        """Forget the gradients of the step before."""
        self.optimizer.zero_grad()

    def enable_sync(self) -> None:
        """Horovod counts the backward passes itself."""

    def finish(self) -> None:
        """Wait for the all-reduces."""
        self.optimizer.synchronize()

    def take_logs(self) -> list[list[RequestLog]]:
        """One step's bytes, by the formula of a ring."""
        return [[self.served]]

    def stepping(self) -> AbstractContextManager[None]:
        """The gradients are synchronised already."""
        return self.optimizer.skip_synchronize()

    def met(self, step: int) -> int:
        """Every step has an exchange of all ranks."""
        return step

    def settle(self) -> None:
        """The engine ends with the step."""

    def evaluation_view(self) -> AbstractContextManager[None]:
        """The model is what it is."""
        return nullcontext()

    def close(self) -> None:
        """Do nothing: the suite has attached nothing."""


def native_sync(
    engine: Engine,
    model: nn.Module,
    optimizer: Optimizer,
    *,
    bucket_cap_mb: float,
    accumulation: int,
    unused: Collection[str],
) -> DdpSync | HorovodSync:
    """The synchroniser that comes with the engine. The local engine has none: UserError."""
    engine.uncounted = True
    if engine.name == "torch":
        return DdpSync(model, optimizer, engine.device, bucket_cap_mb, find_unused=bool(unused))
    if engine.name == "horovod":
        return HorovodSync(engine.module, model, optimizer, accumulation)
    raise UserError("scheduler.name: 'native' needs an engine with a synchroniser of its own: torch or horovod")


def _served(plan: str, model: nn.Module, size: int) -> RequestLog:
    """A step's bytes by the formula of a ring, since the engine does not report its messages."""
    dense = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    return RequestLog("Sum", plan, 1, dense, dense, ring_reduce_bytes(dense, size), 0.0)
